"""New files in steps of large pages, and files that are read anew into such pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsllm.pages import LARGE_PAGE, hold_in_large_pages
from rsllm.store import files
from rsllm.store.files import NewFile

SMALL_PAGE = 32


class Recording:
    """A file that notes the sizes of its writes."""

    def __init__(self, wrapped: Any, written: list[int]) -> None:
        self.wrapped = wrapped
        self.written = written

    def write(self, data: memoryview) -> int:
        self.written.append(len(data))
        return int(self.wrapped.write(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)


@given(pieces=st.lists(st.binary(max_size=70), max_size=12))
def test_what_is_written_in_pieces_is_there_in_order_in_whole_pages(
    pieces: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("new")
    written: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "LARGE_PAGE", SMALL_PAGE)
        with NewFile(folder, prefix="new-") as new:
            patch.setattr(new, "_file", Recording(new._file, written))
            for piece in pieces:
                new.write(piece)
            new.place(folder / "whole")
    assert (folder / "whole").read_bytes() == b"".join(pieces)
    assert all(size % SMALL_PAGE == 0 for size in written[:-1])


@pytest.mark.parametrize("size", [0, 1, LARGE_PAGE, 5 * LARGE_PAGE + 123])
def test_a_file_in_large_pages_is_the_same_file(size: int, tmp_path: Path) -> None:
    path = tmp_path / "weights"
    content = bytes(range(251)) * (size // 251 + 1)
    path.write_bytes(content[:size])
    hold_in_large_pages(path)
    assert path.read_bytes() == content[:size]


def test_a_file_that_is_gone_is_nobodys_error(tmp_path: Path) -> None:
    assert not hold_in_large_pages(tmp_path / "gone")


def test_who_is_stopped_reads_no_further(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(5 * LARGE_PAGE))
    asked: list[bool] = []

    def stopped() -> bool:
        asked.append(True)
        return len(asked) == 2

    assert not hold_in_large_pages(path, stopped)
    assert 1 <= len(asked) <= 2, "a file that cannot have large pages is left after the first"


def test_what_was_written_can_be_read_before_it_has_its_place(tmp_path: Path) -> None:
    with NewFile(tmp_path, prefix="new-") as new:
        new.write(b"abc")
        new.flush()
        assert new.path.read_bytes() == b"abc"
