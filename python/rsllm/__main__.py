"""`python -m rsllm`: the command line, where the script is not on the path."""

from rsllm.cli.main import main

if __name__ == "__main__":
    main()
