"""What the benchmarks of concurrent streams share: arguments, a text of any length, and timed streams."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from pathlib import Path

import rsllm
from rsllm.refs import resolve


@dataclass
class Arguments:
    """What every one of these scripts takes."""

    model: Path
    threads: int
    short: bool


@dataclass
class Stream:
    """When each token of a stream came, in seconds of one clock."""

    started: float
    times: list[float] = field(default_factory=list)

    @property
    def gaps(self) -> list[float]:
        """Time between tokens."""
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)]


def arguments(module: str, document: str | None) -> Arguments:
    """The command line: a model, threads, and `--short`."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benches.{module}", description=document, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="demo", help="a path or a reference (default: demo)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--short", action="store_true", help="fewer tokens, for checking that it works")
    parsed = parser.parse_args()
    return Arguments(Path(resolve(parsed.model)), parsed.threads, parsed.short)


def text_ids(model: rsllm.Model, tokens: int, seed: int = 0) -> list[int]:
    """About a text: exactly `tokens` ids, different from the first on for every `seed`."""
    words = ("river", "engine", "paper", "winter", "signal", "garden", "number", "window", "letter", "copper")
    sentences = (f"{seed + i} {words[(seed + i * 7) % 10]}s and {words[(i * 3 + seed) % 10]}s. " for i in range(tokens))
    return model.tokenize("".join(sentences))[:tokens]


def run_stream(model: rsllm.Model, ids: list[int], tokens: int) -> Stream:
    """Generates exactly `tokens` tokens behind `ids` and notes when each came."""
    stream = Stream(time.perf_counter())
    for piece in model.stream(ids, temperature=0.0, max_tokens=tokens, ignore_eos=True):
        now = time.perf_counter()
        stream.times.extend([now] * len(piece.ids))
    return stream
