"""`benches.compare`: who is asked how often, what a record keeps, and what its tables say."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
from benches import compare
from benches.compare import Cell
from benches.engines import ENGINES, EngineError, Measurement
from benches.record import Record
from benches.tables import print_tables

CELL = Cell("decode", 64)


class FakeWorker:
    """An engine whose calls take `wall` seconds, of which `seconds` count."""

    def __init__(self, name: str, seconds: float, wall: float = 1.0, fails: bool = False) -> None:
        self.spec = ENGINES[name]
        self.seconds, self.wall, self.fails = seconds, wall, fails
        self.is_closed = False

    def call(self, call: str, **arguments: Any) -> Measurement:
        if self.fails:
            raise EngineError("it died:\nof nothing")
        answer = {"seconds": self.seconds, "tokens": 64, "memory": {"anonymous": 1 << 20, "mapped": 0}}
        return Measurement(answer, 0.0, self.wall)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def record(tmp_path: Path) -> Record:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    return Record.new(tmp_path / "record.json", model)


def run(record: Record, *workers: FakeWorker, repetitions: int | None = None) -> None:
    """One cell, to its end."""
    named: dict[str, Any] = {worker.spec.name: worker for worker in workers}
    while compare.repeat(record, CELL, 2, named, repetitions):
        pass


def test_short_tests_are_repeated_seven_times_and_long_ones_three(record: Record) -> None:
    run(record, FakeWorker("rsllm", 0.5), FakeWorker("mistralrs", 0.5, wall=6.0))
    assert len(record.runs(CELL.name, 2, "rsllm")) == 7
    assert len(record.runs(CELL.name, 2, "mistralrs")) == 3


def test_engines_take_turns_and_one_that_fails_leaves(record: Record) -> None:
    dying = FakeWorker("mistralrs", 1.0, fails=True)
    run(record, FakeWorker("rsllm", 0.5), dying, repetitions=2)
    assert dying.is_closed
    assert record.data["engines"]["mistralrs"]["failures"] == ["decode 64, 2 threads: of nothing"]
    assert len(record.runs(CELL.name, 2, "rsllm")) == 2


def test_a_record_is_gone_on_with(record: Record, capsys: pytest.CaptureFixture[str]) -> None:
    run(record, FakeWorker("rsllm", 0.5), repetitions=2)
    record.data["commit"] = "another"
    record.write()
    arguments = argparse.Namespace(record=record.path, model=Path("m.gguf"), resume=True, show=False)
    again = compare.open_record(arguments)
    assert "began with commit another" in capsys.readouterr().err
    run(again, FakeWorker("rsllm", 0.5), FakeWorker("llama-native", 1.0), repetitions=3)
    assert [len(again.runs(CELL.name, 2, name)) for name in ("rsllm", "llama-native")] == [3, 3]
    print_tables(again)
    assert "Of several builds: another, " in capsys.readouterr().out


def test_tables_have_ratios_with_their_spread(record: Record, capsys: pytest.CaptureFixture[str]) -> None:
    for ours, llama, mistral in ((0.5, 1.0, 4.0), (0.25, 1.0, 4.0), (0.5, 2.0, 4.0)):
        for name, seconds in (("rsllm", ours), ("llama-native", llama), ("mistralrs", mistral)):
            record.add(CELL.name, 2, name, FakeWorker(name, seconds).call("decode"))
    loaded = {"version": "1", "system": ""}
    record.add_load("rsllm", 2, {"seconds": 0.1, "first_token_seconds": 0.5, **loaded})
    record.add_load("llama-native", 2, {"seconds": 1.0, "first_token_seconds": 2.0, **loaded})
    print_tables(record)
    lines = capsys.readouterr().out.splitlines()
    assert "| rsllm / llama-native | 2.00 (2.00-4.00) |" in lines
    assert "| rsllm / mistralrs | 8.00 (8.00-16.00) |" in lines
    assert "| rsllm / best peer | 2.00 (2.00-4.00) llama-native |" in lines
    assert "| llama-native | 1 | 1.00 | 2.00 | 0.25 | 1 | 1.00 | 0 |" in lines
