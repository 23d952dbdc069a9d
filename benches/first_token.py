"""How long a person waits: from starting a command to its first character, cold process, warm page cache.

    python -m benches.first_token                     rsllm run demo hi, five times
    python -m benches.first_token --repetitions 9 -- rsllm run model.gguf "Why is the sky blue?"

The command is started without a terminal, as in a pipe, and is ended after its first character. One run before the
measured ones fetches the model where needed and warms the page cache.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

DEFAULT = ("rsllm", "run", "demo", "hi")


def main() -> int:
    """Prints each time, the median and the range."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.first_token", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("command", nargs="*", default=list(DEFAULT))
    arguments = parser.parse_args()
    command = list(arguments.command)
    beside = Path(sys.executable).with_name(command[0])
    command[0] = str(beside) if beside.exists() else shutil.which(command[0]) or command[0]
    first_character(command)
    times = [first_character(command) for _ in range(arguments.repetitions)]
    print(" ".join(f"{seconds:.3f}" for seconds in times), "s")
    print(f"first token after {median(times):.3f} s (median of {len(times)}; {min(times):.3f} to {max(times):.3f})")
    return 0


def first_character(command: list[str]) -> float:
    """Seconds from starting the process until it has written something."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, bufsize=0) as child:
        assert child.stdout is not None, "it was asked for"
        first = os.read(child.stdout.fileno(), 1)
        seconds = time.perf_counter() - start
        child.kill()
    if not first:
        raise SystemExit(f"{' '.join(command)} wrote nothing and ended with status {child.returncode}")
    return seconds


if __name__ == "__main__":
    raise SystemExit(main())
