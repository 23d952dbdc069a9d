"""The parts of a download, in Ollama's own files, so that either program resumes what the other began::

    blobs/sha256-<hex>-partial        the blob's bytes, sparse: each part is written where it belongs
    blobs/sha256-<hex>-partial-<N>    {"N":0,"Offset":0,"Size":100000000,"Completed":12345}

A part file is written after the bytes it speaks of, by a single write of constant length, so a process that is killed
at any moment leaves one that is whole and never promises too much. What another program or a power cut left is taken
with care: a file that cannot be read is replaced by what the plan says, and one that contradicts the others or the
size in the manifest makes the download start anew. The digest decides in the end, whatever the parts say.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Part", "PartFiles", "plan"]

_PARTS = 16  # a blob is cut in that many, as far as the bounds on their size allow
_RECORD_BYTES = 128  # more than the longest record, which is padded with blanks
_MAX_PARTS = 100_000


@dataclass
class Part:
    """A range of a blob, in bytes; the first `completed` of them are written."""

    number: int
    offset: int
    size: int
    completed: int = 0

    @property
    def position(self) -> int:
        """Where the next byte goes."""
        return self.offset + self.completed

    @property
    def end(self) -> int:
        """The first byte that is not this part's."""
        return self.offset + self.size

    @property
    def done(self) -> bool:
        """Whether all of it is written."""
        return self.completed == self.size


def plan(total: int, part_min: int, part_max: int) -> list[Part]:
    """Cut `total` bytes into parts of a sixteenth each, within bounds; the last one is the rest."""
    size = max(min(total // _PARTS, part_max), part_min)
    starts = range(0, total, size)
    return [Part(number, offset, min(size, total - offset)) for number, offset in enumerate(starts)]


class PartFiles:
    """The files of one unfinished blob."""

    def __init__(self, blob: Path) -> None:
        self.data = blob.with_name(blob.name + "-partial")
        self._record = re.compile(re.escape(self.data.name) + r"-(\d{1,6})")

    def load(self, total: int, part_min: int, part_max: int) -> list[Part]:
        """What is there of a blob of `total` bytes, or a new plan where there is nothing that fits.

        New records are written before this returns, as is the data file at its full length.
        """
        planned = plan(total, part_min, part_max)
        found = self._read()
        parts = self._fitting(found, planned, total) if found else None
        if parts is None:
            self.remove()
            parts = planned
        length = self._make_data(total)
        for part in parts:
            part.completed = max(0, min(part.completed, length - part.offset))
            self.save(part)
        return parts

    def peek(self) -> list[Part]:
        """What the records say, whoever writes them; nothing is changed."""
        return [part for part in self._read().values() if part is not None]

    def save(self, part: Part) -> None:
        """Write down how far a part is; its bytes must be in the file already."""
        record = {"N": part.number, "Offset": part.offset, "Size": part.size, "Completed": part.completed}
        text = json.dumps(record, separators=(",", ":")).encode().ljust(_RECORD_BYTES)
        descriptor = os.open(self._path(part.number), os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, text)
        finally:
            os.close(descriptor)

    def remove(self) -> None:
        """Remove the records and the data."""
        self.remove_records()
        self.data.unlink(missing_ok=True)

    def remove_records(self) -> None:
        """Remove the records, leaving the data."""
        for number in self._numbers():
            self._path(number).unlink(missing_ok=True)

    def _make_data(self, total: int) -> int:
        """Give the data file its full length, without taking room; how long it was before."""
        descriptor = os.open(self.data, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            before = os.fstat(descriptor).st_size
            if before != total:
                os.ftruncate(descriptor, total)
            return before
        finally:
            os.close(descriptor)

    def _path(self, number: int) -> Path:
        return self.data.with_name(f"{self.data.name}-{number}")

    def _numbers(self) -> list[int]:
        try:
            names = os.listdir(self.data.parent)
        except FileNotFoundError:
            return []
        return sorted(int(match[1]) for name in names if (match := self._record.fullmatch(name)))

    def _read(self) -> dict[int, Part | None]:
        """Each record by its number; `None` where it cannot be read."""
        return {number: _parsed(number, self._path(number)) for number in self._numbers()[:_MAX_PARTS]}

    @staticmethod
    def _fitting(found: dict[int, Part | None], planned: Sequence[Part], total: int) -> list[Part] | None:
        """The parts that were found, gaps filled from the plan, if together they cover the blob exactly."""
        parts: list[Part] = []
        offset = 0
        while offset < total:
            number = len(parts)
            part = found.get(number) or (planned[number] if number < len(planned) else None)
            if part is None or part.offset != offset:
                return None
            parts.append(part)
            offset = part.end
        return parts if offset == total and max(found) < len(parts) else None


def _parsed(number: int, path: Path) -> Part | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        with path.open("rb") as file:
            record = json.loads(file.read(4096))
        values = [record[name] for name in ("N", "Offset", "Size", "Completed")]
        if all(type(value) is int and value >= 0 for value in values):
            part = Part(*values)
            if part.number == number and part.size > 0 and part.completed <= part.size:
                return part
    return None
