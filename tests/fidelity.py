"""Measures fidelity on the real models and fails when a bound is broken: the long form of `tests/e2e/test_fidelity.py`.

    python -m tests.fidelity                         both models, 1,024 positions, every instruction set
    python -m tests.fidelity --model path.gguf --positions 256 --isa avx2 --json out.json

Prints a line per model, instruction set and path; `margin` is the largest lead of the exact top token where the engine
prefers another. The bounds stand in `tests/support/fidelity.py`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rsllm._core import cpu_info
from tests.support import assets
from tests.support.fidelity import PREFILL_BOUND, TWIN_BOUND, Bound, Fidelity, Yardstick, yardstick

MODELS = {"smollm2": assets.smollm2_path, "gemma3": assets.gemma3_path}


@dataclass(frozen=True)
class Row:
    """One measurement and what it must keep (nothing, for the reference engine)."""

    isa: str
    path: str
    found: Fidelity
    bound: Bound | None

    @property
    def misses(self) -> list[str]:
        """What breaks the bound."""
        return self.found.misses(self.bound) if self.bound else []


def main() -> int:
    """Runs the measurements; 1 when a bound is broken."""
    arguments = parse_arguments()
    report: list[dict[str, Any]] = []
    failed = False
    for name in arguments.model:
        path = MODELS[name]() if name in MODELS else Path(name)
        print(f"\n{path.name}, {arguments.positions} positions", flush=True)
        print(f"{'isa':12} {'path':22} {'mean KL':>9} {'max KL':>9} {'top':>4} {'margin':>7} {'ppl':>8}  bound")
        with yardstick(path, arguments.positions) as exact:
            for row in measure(exact, arguments.isa):
                print(line(row), flush=True)
                failed |= bool(row.misses)
                report.append({"model": path.name, **asdict(row), "misses": row.misses})
    if arguments.json:
        arguments.json.write_text(json.dumps({"cpu": cpu_info(), "rows": report}, indent=1) + "\n")
    print("\na bound is broken" if failed else "\nall bounds hold")
    return int(failed)


def parse_arguments() -> argparse.Namespace:
    """The command line, with `--isa` as a list."""
    parser = argparse.ArgumentParser(prog="python -m tests.fidelity", description="fidelity on real models")
    parser.add_argument("--model", action="append", help="smollm2, gemma3 or a path; may be repeated")
    parser.add_argument("--positions", type=int, default=1024)
    parser.add_argument("--isa", default="all", help="all, or names separated by commas")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    available: list[str] = cpu_info()["available_isas"]
    arguments.model = arguments.model or list(MODELS)
    arguments.isa = available if arguments.isa == "all" else arguments.isa.split(",")
    unknown = [isa for isa in arguments.isa if isa not in available]
    if unknown:
        parser.error(f"this machine has no {', '.join(unknown)}; it has {', '.join(available)}")
    return arguments


def measure(exact: Yardstick, isas: list[str]) -> Iterator[Row]:
    """The reference engine's own distance first, then each path of each instruction set."""
    yield Row("", "reference engine", exact.reference, None)
    for isa in isas:
        yield Row(isa, "(a) twin, prefill", exact.measure(isa, "prefill", of="twin"), TWIN_BOUND)
        yield Row(isa, "(a) twin, decode", exact.measure(isa, "decode", of="twin"), TWIN_BOUND)
        yield Row(isa, "(b) file, prefill", exact.measure(isa, "prefill"), PREFILL_BOUND)
        yield Row(isa, "(c) file, decode", exact.measure(isa, "decode"), exact.decode_bound)


def line(row: Row) -> str:
    """One line of the table."""
    found = row.found
    verdict = "; ".join(row.misses) if row.misses else "holds" if row.bound else ""
    return (
        f"{row.isa:12} {row.path:22} {found.mean_kl:9.3g} {found.max_kl:9.3g} {found.top_differs:4} "
        f"{found.worst_margin:7.3g} {found.perplexity_change:+8.3%}  {verdict}"
    )


if __name__ == "__main__":
    start = time.monotonic()
    code = main()
    print(f"{time.monotonic() - start:.0f} s")
    raise SystemExit(code)
