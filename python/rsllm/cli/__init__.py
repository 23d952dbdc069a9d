"""The command line: a thin layer that parses, calls the package, and prints.

Modules here import nothing heavy at the top, so that `rsllm run` prints its first token soon and `rsllm --help` at
once; numpy, Jinja2 and the core are imported where they are needed.
"""
