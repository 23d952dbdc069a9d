"""rsllm against its peers, side by side on one GGUF: interleaved runs, medians, spread and ratios.

    python -m benches.compare MODEL.gguf                           every engine that is installed
    python -m benches.compare MODEL.gguf --engines rsllm,llama-avx2 --threads 2 --repetitions 5
    python -m benches.compare MODEL.gguf --no-limited              without rsllm limited to lesser instruction sets
    python -m benches.compare MODEL.gguf --resume                  only what the newest record does not have yet
    python -m benches.compare MODEL.gguf --show                    the tables of the newest record, nothing run

Run it with an interpreter that has rsllm installed as users get it (release profile). Engines take turns within each
repetition, and all others are stopped meanwhile; a run during which other processes used more than a fifth of a core is
repeated, twice at most, and marked when it stays so. There are seven repetitions where one takes an engine under five
seconds, else three. The record is one JSON file a model and day under `benches/record/<machine>/`; it is written after
every repetition, so an interrupted comparison goes on with `--resume`, as does one whose engines were not all built.
Sessions differ more than repetitions do: compare figures of one record only. The rows of rsllm limited to an
instruction set are worth their time on one file of each weight type.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benches.engines import ENGINES, EngineError, Worker
from benches.record import Record, machine, newest_record_path, record_path
from benches.tables import print_tables
from rsllm.pages import hold_in_large_pages

FOREIGN_CORES = 0.2
REPEATS = 2
TIMEOUT_SECONDS = 900
SHORT_SECONDS = 5.0
REPETITIONS_IF_SHORT, REPETITIONS = 7, 3


@dataclass(frozen=True)
class Cell:
    """One test: a prompt of `tokens`, or `tokens` generated after `depth` others."""

    kind: str
    tokens: int
    depth: int = 0

    @property
    def name(self) -> str:
        """As the tables print it."""
        return f"{self.kind} {self.tokens}" + (f" at {self.depth}" if self.depth else "")


CELLS = (
    Cell("prefill", 128),
    Cell("prefill", 512),
    Cell("prefill", 2048),
    Cell("decode", 64),
    Cell("decode", 64, 2048),
)


def main() -> int:
    """Runs the comparison and prints the tables."""
    arguments = parse_arguments()
    record = open_record(arguments)
    if not arguments.show:
        for threads in arguments.threads:
            compare(record, arguments, threads)
    print_tables(record)
    print(f"\n{record.path}")
    return 0


def open_record(arguments: argparse.Namespace) -> Record:
    """The one to go on with, or a new one."""
    if arguments.show or arguments.resume:
        path = arguments.record or newest_record_path(arguments.model)
        if path is not None and path.exists():
            record = Record.read(path)
            if arguments.resume and (first := record.resume()):
                say(f"{path} began with commit {first}: figures of different builds stand beside each other in it")
            return record
        say(f"there is no record of {arguments.model.name}" + (f" at {path}" if path else ""))
        if arguments.show:
            raise SystemExit(1)
    return Record.new(arguments.record or record_path(arguments.model, datetime.now(UTC).date()), arguments.model)


def parse_arguments() -> argparse.Namespace:
    """The command line, with lists as lists."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--engines", help=f"of {', '.join(ENGINES)}; separated by commas")
    parser.add_argument("--threads", default="1,2", help="thread counts, separated by commas")
    parser.add_argument("--cells", default=",".join(cell.name for cell in CELLS), help="tests, separated by commas")
    parser.add_argument("--repetitions", type=int, help="of every test (default: 7 of those under 5 s, else 3)")
    parser.add_argument("--no-limited", action="store_true", help="no rows of rsllm without AMX, or with AVX2 at most")
    parser.add_argument("--resume", action="store_true", help="add to the record what it does not have yet")
    parser.add_argument("--show", action="store_true", help="only print the record")
    parser.add_argument("--record", type=Path, help="the record's file, when not the usual one")
    arguments = parser.parse_args()
    arguments.model = arguments.model.resolve()
    arguments.threads = [int(n) for n in arguments.threads.split(",")]
    cells = {cell.name: cell for cell in CELLS}
    wanted = [name.strip() for name in arguments.cells.split(",")]
    if unknown := [name for name in wanted if name not in cells]:
        parser.error(f"no such test: {', '.join(unknown)}; there are {', '.join(cells)}")
    arguments.cells = [cells[name] for name in wanted]
    names = arguments.engines.split(",") if arguments.engines else list(ENGINES)
    if arguments.no_limited:
        names = [name for name in names if name not in ENGINES or not ENGINES[name].isa]
    if unknown := [name for name in names if name not in ENGINES]:
        parser.error(f"no such engine: {', '.join(unknown)}; there are {', '.join(ENGINES)}")
    arguments.engines = [ENGINES[name] for name in names if ENGINES[name].python.exists()]
    for name in names:
        if not ENGINES[name].python.exists():
            say(f"{name} is left out: no environment at {ENGINES[name].python.parents[1]}")
    return arguments


def compare(record: Record, arguments: argparse.Namespace, threads: int) -> None:
    """All tests with one thread count, each engine loaded once."""
    context = max(cell.tokens + cell.depth for cell in arguments.cells) + 64
    workers = dict(load(record, arguments, threads, context))
    try:
        for cell in arguments.cells:
            while repeat(record, cell, threads, workers, arguments.repetitions):
                record.write()
    finally:
        record.write()
        for worker in workers.values():
            worker.close()


def repeat(record: Record, cell: Cell, threads: int, workers: dict[str, Worker], repetitions: int | None) -> bool:
    """One repetition of a cell by every engine that has some left to do; whether there was one.

    An engine that fails is noted and leaves `workers`.
    """
    asked = [name for name in workers if missing(record, cell, threads, name, repetitions)]
    for name in asked:
        try:
            measure(record, cell, threads, workers[name])
        except EngineError as error:
            say(str(error))
            record.note(name, f"{cell.name}, {threads} threads: {last_line(error)}")
            workers.pop(name).close()
    return bool(asked)


def missing(record: Record, cell: Cell, threads: int, engine: str, repetitions: int | None) -> bool:
    """Whether the record has too few repetitions of a cell."""
    runs = record.runs(cell.name, threads, engine)
    if repetitions is None:
        longest = max((run.get("wall_seconds", run["seconds"]) for run in runs), default=0.0)
        repetitions = REPETITIONS_IF_SHORT if longest < SHORT_SECONDS else REPETITIONS
    return len(runs) < repetitions


def load(record: Record, arguments: argparse.Namespace, threads: int, context: int) -> Iterator[tuple[str, Worker]]:
    """Starts a worker for each engine that has something left to do. The file is in the page cache by then."""
    # As a store leaves it; both sides map the same file.
    hold_in_large_pages(arguments.model)
    with arguments.model.open("rb") as file:
        while file.read(1 << 24):
            pass
    for spec in arguments.engines:
        if not any(missing(record, cell, threads, spec.name, arguments.repetitions) for cell in arguments.cells):
            continue
        try:
            worker = Worker(spec, arguments.model, threads, context, TIMEOUT_SECONDS)
        except EngineError as error:
            say(str(error))
            record.note(spec.name, last_line(error))
            continue
        say(f"{spec.name}, {threads} threads: loaded in {worker.loaded['seconds']:.2f} s")
        record.add_load(spec.name, threads, worker.loaded)
        yield spec.name, worker


def measure(record: Record, cell: Cell, threads: int, worker: Worker) -> None:
    """One repetition of one cell, again when other processes got in the way."""
    arguments = {"tokens": cell.tokens} | ({"depth": cell.depth} if cell.kind == "decode" else {})
    for _ in range(REPEATS + 1):
        found = worker.call(cell.kind, **arguments)
        if found.foreign_cores <= FOREIGN_CORES:
            break
    record.add(cell.name, threads, worker.spec.name, found)
    rate = found.answer["tokens"] / found.answer["seconds"]
    disturbed = f"  (others used {found.foreign_cores:.1f} cores)" if found.foreign_cores > FOREIGN_CORES else ""
    say(f"{cell.name:16} {threads} threads  {worker.spec.name:14} {rate:9.1f} tokens/s{disturbed}")


def last_line(error: EngineError) -> str:
    """What went wrong, without the traceback that leads there."""
    return str(error).strip().splitlines()[-1]


def say(text: str) -> None:
    """Progress goes to standard error, tables to standard output."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    print(f"machine: {machine()['name']}", file=sys.stderr)
    raise SystemExit(main())
