"""Split GGUF files: one file as numbered parts, and the parts as one file.

Only the header is written anew. Values keep their bytes and tensors theirs, so what is split and merged again has the
tensors it had, byte for byte, and a file written by llama.cpp's splitter becomes the file it came from. The core opens
and checks every file first; what is read here by hand afterwards is the header, whose values must be kept to the bit.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rsllm.errors import GgufError, OptionError

if TYPE_CHECKING:
    from rsllm.gguf import GgufFile

__all__ = ["SHARD_NAME", "joined", "open_linked", "plan", "shard", "shard_name"]

SHARD_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
"""The name of a part: `name-00001-of-00003.gguf`."""

_SPLIT_KEYS = {b"split.no", b"split.count", b"split.tensors.count"}
_MOST_SHARDS = 65_535
_STRING, _ARRAY = 8, 9
_U16, _I32 = 2, 5
_FIXED = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of the values whose size their type says, by the type's number in the format."""
_COPY_BYTES = 2**20


def shard_name(stem: str, number: int, count: int) -> str:
    """The name of part `number`, counted from 1."""
    return f"{stem}-{number:05}-of-{count:05}.gguf"


def open_linked(folder: Path, files: Mapping[str, Path]) -> GgufFile:
    """Open the parts at these paths under these names; `folder` gets links and must be new.

    Raises `GgufError` where the model is damaged or a part is missing.
    """
    from rsllm import gguf

    folder.mkdir(parents=True)
    for name, path in files.items():
        (folder / name).symlink_to(path.resolve())
    return gguf.open(folder / min(files))


def joined(model: GgufFile) -> Iterator[bytes]:
    """The pieces of one file with everything that `model` has in its parts; raises `GgufError`."""
    headers = [_Header(Path(path)) for path in model.files]
    values = [raw for key, raw in headers[0].values if key not in _SPLIT_KEYS]
    yield from _file(model, headers[0].version, values, [one for header in headers for one in header.tensors])


def plan(model: GgufFile, *, max_bytes: int | None = None, max_tensors: int | None = None) -> list[list[str]]:
    """The names of the tensors of each part, filled in the order of the file up to a size or a number of tensors.

    A tensor larger than `max_bytes` gets a part of its own. Raises `OptionError` where there would be too many parts.
    """
    parts: list[list[str]] = [[]]
    used = 0
    for tensor in model.tensors.values():
        size = _padded(tensor.n_bytes, model.alignment)
        too_large = max_bytes is not None and used + size > max_bytes
        too_many = max_tensors is not None and len(parts[-1]) >= max_tensors
        if parts[-1] and (too_large or too_many):
            parts.append([])
            used = 0
        parts[-1].append(tensor.name)
        used += size
    if len(parts) > _MOST_SHARDS:
        raise OptionError(f"that would be {len(parts):,} parts, and at most {_MOST_SHARDS:,} can be numbered")
    return parts


def shard(model: GgufFile, parts: Sequence[Iterable[str]], number: int) -> Iterator[bytes]:
    """The pieces of part `number`, counted from 0; the first one has the metadata. Raises `GgufError`."""
    headers = [_Header(Path(path)) for path in model.files]
    described = {one.name: one for header in headers for one in header.tensors}
    split = [
        _scalar("split.no", _U16, struct.pack("<H", number)),
        _scalar("split.count", _U16, struct.pack("<H", len(parts))),
        _scalar("split.tensors.count", _I32, struct.pack("<i", len(described))),
    ]
    # Every part is read with its own alignment.
    kept = {b"general.alignment"} if number else {key for key, _ in headers[0].values}
    values = [raw for key, raw in headers[0].values if key in kept and key not in _SPLIT_KEYS]
    yield from _file(model, headers[0].version, [*values, *split], [described[name] for name in parts[number]])


@dataclass(frozen=True)
class _Described:
    """A tensor in a header: its entry up to, and without, the offset of its bytes."""

    name: str
    entry: bytes


def _file(model: GgufFile, version: int, values: list[bytes], tensors: list[_Described]) -> Iterator[bytes]:
    entries, offset = [], 0
    for one in tensors:
        entries.append(one.entry + struct.pack("<Q", offset))
        offset += _padded(model.tensors[one.name].n_bytes, model.alignment)
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(values)) + b"".join(values + entries)
    yield head + bytes(_padded(len(head), model.alignment) - len(head))
    for one in tensors:
        data = model.tensors[one.name].packed.reshape(-1)
        for start in range(0, data.size, _COPY_BYTES):
            yield data[start : start + _COPY_BYTES].tobytes()
        yield bytes(_padded(data.size, model.alignment) - data.size)


def _scalar(key: str, kind: int, packed: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + packed


def _padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


class _Header:
    """The head of a file that the core has checked: `values` with their keys, `tensors` without their offsets."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as self._file:
            if self._take(4) != b"GGUF":
                raise self._damaged()
            self.version = self._number("<I")
            n_tensors, n_values = self._number("<Q"), self._number("<Q")
            self.values = [self._value() for _ in range(n_values)]
            self.tensors = [self._tensor() for _ in range(n_tensors)]

    def _take(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) != count:
            raise self._damaged()
        return data

    def _number(self, form: str) -> int:
        number: int = struct.unpack(form, self._take(struct.calcsize(form)))[0]
        return number

    def _string(self) -> bytes:
        """A string with the length before it."""
        length = self._take(8)
        return length + self._take(struct.unpack("<Q", length)[0])

    def _value(self) -> tuple[bytes, bytes]:
        key, kind = self._string(), self._number("<I")
        return key[8:], key + struct.pack("<I", kind) + self._content(kind)

    def _content(self, kind: int) -> bytes:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            item, count = self._number("<I"), self._number("<Q")
            head = struct.pack("<IQ", item, count)
            if item in _FIXED:
                return head + self._take(_FIXED[item] * count)
            return head + b"".join(self._content(item) for _ in range(count))
        if kind not in _FIXED:
            raise self._damaged()
        return self._take(_FIXED[kind])

    def _tensor(self) -> _Described:
        name, n_dims = self._string(), self._number("<I")
        rest = self._take(8 * n_dims + 4)  # the sizes and the type
        self._take(8)  # where its bytes are in this file
        return _Described(name[8:].decode(errors="surrogateescape"), name + struct.pack("<I", n_dims) + rest)

    def _damaged(self) -> GgufError:
        return GgufError(f"{self._path.name} changed while it was read", file=str(self._path))
