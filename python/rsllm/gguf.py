"""Model files as Python sees them: metadata, and tensors as numpy arrays.

>>> file = rsllm.gguf.open("model.gguf")
>>> file.metadata["general.architecture"]
'llama'
>>> weight = file.tensors["blk.0.attn_q.weight"]
>>> weight.shape, weight.type, weight.numpy().dtype
((576, 576), 'Q4_1', dtype('float32'))

Tensors are mapped, not read: `packed` shows a tensor's bytes where they lie in the file, and `numpy()` unpacks them
when it is called. Shapes are in numpy's order, rows first; a GGUF file stores them the other way round. numpy is
imported with the first array: a server that reads metadata alone need not wait for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rsllm import _core

if TYPE_CHECKING:
    import numpy
    from numpy.typing import ArrayLike, NDArray

__all__ = ["GgufFile", "TensorView", "dequantize", "open", "quantize"]


def open(path: str | os.PathLike[str], *, mmap: bool = True) -> GgufFile:
    """Open a GGUF file, or a split one by any of its shards; raises `GgufError` where it is damaged."""
    return GgufFile(_core.GgufFile(os.fspath(path), mmap=mmap))


def dequantize(data: bytes | bytearray | memoryview | NDArray[numpy.uint8], type_name: str) -> NDArray[numpy.float32]:
    """Whole blocks of `type_name`, such as "Q4_K", as float32.

    A flat array for flat bytes; for an array of packed rows, an array of rows. Raises `GgufError` for a type that is
    unknown or cannot be unpacked, or for a length that is not a whole number of blocks.

    >>> dequantize(bytes(18), "Q4_0").shape
    (32,)
    """
    import numpy

    shape: tuple[int, ...] = ()
    if isinstance(data, numpy.ndarray):
        shape = data.shape[:-1]
        data = numpy.ascontiguousarray(data).view(numpy.uint8).reshape(-1).data
    values = numpy.frombuffer(_core.dequantize(data, type_name), dtype="<f4")
    return values.reshape(*shape, -1) if shape and values.size else values


def quantize(array: ArrayLike, type_name: str) -> NDArray[numpy.uint8]:
    """Numbers as packed blocks of `type_name`; the last axis must be a whole number of blocks.

    >>> import numpy
    >>> quantize(numpy.zeros((2, 64)), "Q8_0").shape
    (2, 68)
    """
    import numpy

    values = numpy.ascontiguousarray(array, dtype="<f4")
    packed = numpy.frombuffer(_core.quantize(values.view(numpy.uint8).reshape(-1).data, type_name), dtype=numpy.uint8)
    return packed.reshape(*values.shape[:-1], -1) if values.ndim > 1 and packed.size else packed


class GgufFile:
    """An open model file. Made by `open`; it stays mapped while it, or a tensor of it, is referenced."""

    def __init__(self, core: _core.GgufFile) -> None:
        self._core = core
        self._metadata: dict[str, Any] | None = None
        self._tensors: _Tensors | None = None

    @property
    def version(self) -> int:
        """The version of the format."""
        return self._core.version

    @property
    def alignment(self) -> int:
        """Tensors start at multiples of this many bytes."""
        return self._core.alignment

    @property
    def files(self) -> list[str]:
        """The paths: one, or one a shard."""
        return self._core.files

    @property
    def file_bytes(self) -> int:
        """The size of all files together."""
        return self._core.file_bytes

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Key to value, in file order."""
        if self._metadata is None:
            self._metadata = self._core.metadata()
        return self._metadata

    @property
    def tensors(self) -> Mapping[str, TensorView]:
        """Name to tensor, in file order."""
        if self._tensors is None:
            self._tensors = _Tensors(self._core)
        return self._tensors

    def __repr__(self) -> str:
        return f"<rsllm.gguf.GgufFile {self.files[0]!r} ({len(self.tensors)} tensors)>"


class TensorView:
    """One tensor of a file."""

    def __init__(self, core: _core.GgufFile, info: Mapping[str, Any]) -> None:
        self._core = core
        self.name: str = info["name"]
        self.type: str = info["type"]
        self.shape: tuple[int, ...] = tuple(info["shape"])
        self.n_bytes: int = info["n_bytes"]
        self.n_elements: int = info["n_elements"]

    @property
    def packed(self) -> NDArray[numpy.uint8]:
        """The bytes as they lie in the file, one packed row a row: read-only, and not copied."""
        data: Any = self._core.tensor_data(self.name)  # a buffer, which Python 3.11's types cannot say
        import numpy

        flat = numpy.frombuffer(data, dtype=numpy.uint8)
        return flat.reshape(*self.shape[:-1], -1) if flat.size else flat

    def numpy(self) -> NDArray[numpy.float32]:
        """The values as float32 in `shape`. F32 tensors are not copied and read-only; others are unpacked anew."""
        packed = self.packed.reshape(-1)
        if self.type == "F32":
            return packed.view("<f4").reshape(self.shape)
        return dequantize(packed, self.type).reshape(self.shape)

    def __repr__(self) -> str:
        return f"<TensorView {self.name!r} {self.type} {'x'.join(map(str, self.shape))}>"


class _Tensors(Mapping[str, TensorView]):
    def __init__(self, core: _core.GgufFile) -> None:
        self._views = {info["name"]: TensorView(core, info) for info in core.tensors()}

    def __getitem__(self, name: str) -> TensorView:
        return self._views[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)

    def __repr__(self) -> str:
        return f"<{len(self)} tensors>"
