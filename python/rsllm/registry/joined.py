"""A split GGUF as one file: the header written anew, the tensors' bytes as they are.

Shards arrive as blobs named by their digests, and a split model is found by the names of its files, so they are linked
under those names into a folder of their own, where the core opens and checks them as it does any split model. What is
read here by hand afterwards is the header alone, because the types of its values must be kept to the bit.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from rsllm import gguf
from rsllm.errors import GgufError

__all__ = ["joined_bytes", "open_linked"]

_SPLIT_KEYS = {b"split.no", b"split.count", b"split.tensors.count"}
_STRING, _ARRAY = 8, 9
_FIXED = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of the values whose size their type says, by the type's number in the format."""
_COPY_BYTES = 2**20


def open_linked(folder: Path, files: Mapping[str, Path]) -> gguf.GgufFile:
    """Open the file, or the shards, at these paths under these names; `folder` gets links and must be new.

    Raises `GgufError` where the model is damaged or a shard is missing.
    """
    folder.mkdir(parents=True)
    for name, path in files.items():
        (folder / name).symlink_to(path.resolve())
    return gguf.open(folder / min(files))


def joined_bytes(model: gguf.GgufFile) -> Iterator[bytes]:
    """The pieces of one file with everything that `model` has in its shards; raises `GgufError`."""
    headers = [_Header(Path(path)) for path in model.files]
    first = headers[0]
    values = [raw for key, raw in first.values if key not in _SPLIT_KEYS]
    infos, sizes, offset = [], [], 0
    for header in headers:
        for name, description in header.tensors:
            size = model.tensors[name].n_bytes
            infos.append(description + struct.pack("<Q", offset))
            sizes.append((name, size))
            offset += _padded(size, model.alignment)
    head = b"GGUF" + struct.pack("<IQQ", first.version, len(infos), len(values)) + b"".join(values + infos)
    yield head + bytes(_padded(len(head), model.alignment) - len(head))
    for name, size in sizes:
        data = model.tensors[name].packed.reshape(-1)
        for start in range(0, size, _COPY_BYTES):
            yield data[start : start + _COPY_BYTES].tobytes()
        yield bytes(_padded(size, model.alignment) - size)


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

    def _tensor(self) -> tuple[str, bytes]:
        name, n_dims = self._string(), self._number("<I")
        rest = self._take(8 * n_dims + 4)  # the sizes and the type
        self._take(8)  # where its bytes are in this file
        return name[8:].decode(errors="surrogateescape"), name + struct.pack("<I", n_dims) + rest

    def _damaged(self) -> GgufError:
        return GgufError(f"{self._path.name} changed while it was read", file=str(self._path))
