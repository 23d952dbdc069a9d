"""Breaks model files at random and checks that nothing crashes, hangs or fails without saying why.

    python -m tests.robustness                     SmolLM2: 200 truncations, 2,000 changed bytes of the header
    python -m tests.robustness --model path.gguf --truncations 20 --changes 100 --seed 7

A child process loads each broken file and, where it loads, generates a few tokens. The parent takes a child that dies,
or that makes no progress for a minute, for a failure and names the case; so does the child for an exception that is not
rsllm's own. A change that leaves a valid file is fine: the outcome is then a loaded model.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from rsllm._core import Engine, GgufFile
from rsllm.errors import RsllmError
from tests.support import assets

HANG_SECONDS = 60
ROOT = Path(__file__).parents[1]


def main() -> int:
    """1 when a case crashed, hung or failed in another way than by an error of rsllm's."""
    parser = argparse.ArgumentParser(prog="python -m tests.robustness", description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", type=Path, help="SmolLM2 unless given")
    parser.add_argument("--truncations", type=int, default=200)
    parser.add_argument("--changes", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        run_cases(arguments.model, arguments.truncations, arguments.changes, arguments.seed)
        return 0
    model = arguments.model or assets.smollm2_path()
    outcomes = check(model, truncations=arguments.truncations, changes=arguments.changes, seed=arguments.seed)
    for outcome, n in outcomes.most_common():
        print(f"{n:6}  {outcome}")
    return 0


def check(model: Path, *, truncations: int, changes: int, seed: int = 1) -> Counter[str]:
    """Runs all cases and counts outcomes by name. Raises `AssertionError` at the first crash, hang or foreign error."""
    with tempfile.TemporaryDirectory(prefix=".robustness-", dir=assets.cache_dir()) as folder:
        copy = Path(folder) / model.name
        shutil.copyfile(model, copy)
        command = [sys.executable, "-m", "tests.robustness", "--child", "--model", str(copy)]
        command += ["--truncations", str(truncations), "--changes", str(changes), "--seed", str(seed)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None and child.stderr is not None, "both were asked for"
            outcomes: Counter[str] = Counter()
            started = ""
            while True:
                ready, _, _ = select.select([child.stdout], [], [], HANG_SECONDS)
                if not ready:
                    child.kill()
                    raise AssertionError(f"no progress for {HANG_SECONDS} s after: {started}")
                line = child.stdout.readline()
                if not line:
                    break
                kind, _, text = line.strip().partition(" ")
                if kind == "case":
                    started = text
                else:
                    outcomes[text] += 1
            if child.wait() != 0:
                raise AssertionError(f"exit status {child.returncode} in: {started}\n{child.stderr.read()[-3000:]}")
    assert outcomes.total() == truncations + changes, outcomes
    return outcomes


def run_cases(path: Path, truncations: int, changes: int, seed: int) -> None:
    """The child: changes first, each undone, then truncations from the longest to the shortest."""
    rng = random.Random(seed)
    header = header_bytes(path)
    size = path.stat().st_size
    with path.open("r+b", buffering=0) as file:
        for _ in range(changes):
            offset, mask = rng.randrange(header), rng.randrange(1, 256)
            before = os.pread(file.fileno(), 1, offset)
            os.pwrite(file.fileno(), bytes([before[0] ^ mask]), offset)
            report(f"byte {offset} of {header} changed by {mask:#x}", path)
            os.pwrite(file.fileno(), before, offset)
        # Half of the cuts fall into the header, where every length is another case.
        cuts = [rng.randrange(header if i % 2 else size) for i in range(truncations)]
        for cut in sorted(cuts, reverse=True):
            os.truncate(path, cut)
            report(f"truncated to {cut} of {size}", path)


def report(case: str, path: Path) -> None:
    """Tries one case; an error of rsllm's is an outcome, any other exception ends the child."""
    print(f"case {case}", flush=True)
    try:
        engine = Engine(str(path), threads=1, context=64)
        try:
            generation = engine.generate(engine.tokenize("Hello world", add_special=True), options())
            while generation.next() is not None:
                pass
        finally:
            engine.close()
        outcome = "loads"
    except (RsllmError, OSError) as error:
        outcome = type(error).__name__
    print(f"outcome {outcome}", flush=True)


def options() -> dict[str, object]:
    """Four greedy tokens."""
    return {"max_tokens": 4, "temperature": 0.0, "seed": 1}


def header_bytes(path: Path) -> int:
    """How many bytes precede the tensor data."""
    file = GgufFile(str(path))
    return path.stat().st_size - sum(padded(tensor["n_bytes"], file.alignment) for tensor in file.tensors())


def padded(n: int, alignment: int) -> int:
    return -(-n // alignment) * alignment


if __name__ == "__main__":
    raise SystemExit(main())
