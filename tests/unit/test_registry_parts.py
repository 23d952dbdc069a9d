"""The parts of a download on disk: Ollama's format, and whatever is found there."""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsllm.registry.parts import Part, PartFiles, plan

HEX = "a" * 64
MB = 10**6


def files_in(folder: Path) -> PartFiles:
    return PartFiles(folder / f"sha256-{HEX}")


def record(folder: Path, number: int, text: str | dict[str, object]) -> None:
    path = folder / f"sha256-{HEX}-partial-{number}"
    path.write_text(text if isinstance(text, str) else json.dumps(text))


@pytest.mark.parametrize(
    ("total", "sizes"),
    [
        (1, [1]),
        (100 * MB, [100 * MB]),
        (250 * MB, [100 * MB, 100 * MB, 50 * MB]),
        (3200 * MB, [200 * MB] * 16),
        (20_000 * MB, [1000 * MB] * 20),
    ],
)
def test_the_plan_is_ollamas(total: int, sizes: list[int]) -> None:
    assert [part.size for part in plan(total, 100 * MB, 1000 * MB)] == sizes


@given(st.integers(1, 10**12), st.integers(1, 10**9), st.integers(1, 10**9))
def test_a_plan_covers_the_blob_exactly(total: int, low: int, high: int) -> None:
    low, high = max(low, total // 5000 + 1), max(low, high, total // 5000 + 1)
    parts = plan(total, low, high)
    assert [part.number for part in parts] == list(range(len(parts)))
    assert [part.offset for part in parts] == [0, *(part.end for part in parts[:-1])]
    assert parts[-1].end == total


def test_a_new_download_is_written_as_ollama_reads_it(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    parts = files.load(250, 100, 1000)
    assert files.data.stat().st_size == 250
    parts[1].completed = 42
    files.save(parts[1])
    text = (tmp_path / f"sha256-{HEX}-partial-1").read_text()
    assert text.rstrip() == '{"N":1,"Offset":100,"Size":100,"Completed":42}'
    assert sorted(path.name.partition("-partial")[2] for path in tmp_path.iterdir()) == ["", "-0", "-1", "-2"]


def test_what_ollama_left_is_taken_up(tmp_path: Path) -> None:
    (tmp_path / f"sha256-{HEX}-partial").write_bytes(bytes(300))
    for number in range(3):
        record(tmp_path, number, {"N": number, "Offset": 100 * number, "Size": 100, "Completed": 10 * number})
    assert [part.completed for part in files_in(tmp_path).load(300, 77, 1000)] == [0, 10, 20]


@pytest.mark.parametrize("text", ["", "{", "null", "[]", '{"N":1}', '{"N":1,"Offset":100,"Size":"x","Completed":0}'])
def test_a_record_that_cannot_be_read_is_replaced_by_the_plan(text: str, tmp_path: Path) -> None:
    files_in(tmp_path).load(250, 100, 1000)
    record(tmp_path, 0, {"N": 0, "Offset": 0, "Size": 100, "Completed": 100})
    record(tmp_path, 1, text)
    assert [part.completed for part in files_in(tmp_path).load(250, 100, 1000)] == [100, 0, 0]


def test_records_that_are_not_there_are_made(tmp_path: Path) -> None:
    files_in(tmp_path).load(250, 100, 1000)
    record(tmp_path, 0, {"N": 0, "Offset": 0, "Size": 100, "Completed": 7})
    (tmp_path / f"sha256-{HEX}-partial-2").unlink()
    assert [part.completed for part in files_in(tmp_path).load(250, 100, 1000)] == [7, 0, 0]


@pytest.mark.parametrize("total", [200, 249, 251, 1000])
def test_parts_of_a_blob_of_another_size_are_dropped(total: int, tmp_path: Path) -> None:
    files = files_in(tmp_path)
    for part in files.load(250, 100, 1000):
        part.completed = part.size
        files.save(part)
    parts = files_in(tmp_path).load(total, 100, 1000)
    assert sum(part.completed for part in parts) <= 200
    assert parts[-1].end == total


def test_bytes_that_the_data_does_not_have_are_not_believed(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    for part in files.load(250, 100, 1000):
        part.completed = part.size
        files.save(part)
    with files.data.open("r+b") as file:
        file.truncate(130)
    assert [part.completed for part in files_in(tmp_path).load(250, 100, 1000)] == [100, 30, 0]
    files.data.unlink()
    assert [part.completed for part in files_in(tmp_path).load(250, 100, 1000)] == [0, 0, 0]


RECORDS = st.dictionaries(
    st.integers(0, 5),
    st.one_of(
        st.text(max_size=20),
        st.fixed_dictionaries(
            {
                "N": st.integers(-1, 5),
                "Offset": st.integers(-1, 300),
                "Size": st.integers(-1, 300),
                "Completed": st.integers(-1, 300),
            }
        ),
    ),
)


@given(RECORDS, st.integers(1, 400), st.integers(0, 400))
def test_whatever_is_found_the_parts_cover_the_blob(
    records: dict[int, str | dict[str, object]], total: int, length: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, content in records.items():
            record(folder, number, content)
        (folder / f"sha256-{HEX}-partial").write_bytes(bytes(length))
        parts = files_in(folder).load(total, 50, 100)
        assert parts[0].offset == 0
        assert all(before.end == after.offset for before, after in itertools.pairwise(parts))
        assert parts[-1].end == total
        assert all(0 <= part.completed <= part.size for part in parts)
        assert [vars(part) for part in files_in(folder).load(total, 50, 100)] == [vars(part) for part in parts]


def test_everything_can_be_removed(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    files.load(250, 100, 1000)
    other = tmp_path / f"sha256-{'b' * 64}-partial-0"
    other.touch()
    files.remove()
    assert list(tmp_path.iterdir()) == [other]


def test_a_part_knows_where_it_is() -> None:
    part = Part(1, 100, 50, 20)
    assert (part.position, part.end, part.done) == (120, 150, False)
