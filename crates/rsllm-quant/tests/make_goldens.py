"""Print the tables of `parity.rs`: hashes of what the `gguf` package decodes and ggml encodes.

    python crates/rsllm-quant/tests/make_goldens.py

Needs `gguf` 0.19 and the shared library of `llama-cpp-python`, the reference for encoders that `gguf` has not got. The
inputs are those of `parity.rs`: a linear congruential generator, which both languages run exactly.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

N_BLOCKS = 64
TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]


def random_bytes(seed: int) -> Iterator[int]:
    """The upper bytes of a 32-bit linear congruential generator."""
    state = seed
    while True:
        state = (state * 1664525 + 1013904223) % 2**32
        yield state >> 24


def weights(n: int) -> npt.NDArray[np.float32]:
    """Bell-shaped numbers, exact in f32; each 256 have another power of two, from 1/8 to 16."""
    source = random_bytes(7)
    sums = [sum(next(source) for _ in range(4)) - 510 for _ in range(n)]
    return np.array([total / 1024 * 2.0 ** (i // 256 % 8 - 3) for i, total in enumerate(sums)], np.float32)


def fnv1a(data: bytes) -> int:
    """64-bit FNV-1a."""
    digest = 0xCBF29CE484222325
    for byte in data:
        digest = (digest ^ byte) * 0x100000001B3 % 2**64
    return digest


def decoded_hash(name: str) -> int:
    """Hash of the decoded values of random blocks, every NaN replaced by one pattern."""
    kind = gguf.GGMLQuantizationType[name]
    source = random_bytes(1)
    n_bytes = N_BLOCKS * gguf.GGML_QUANT_SIZES[kind][1]
    data = np.array([next(source) for _ in range(n_bytes)], np.uint8)
    with np.errstate(all="ignore"):
        values = gguf.quants.dequantize(data.reshape(1, -1), kind).ravel()
    bits = np.where(np.isnan(values), np.uint32(0x7FC00000), values.view(np.uint32))
    return fnv1a(bits.astype("<u4").tobytes())


def encoded_hash(name: str) -> int:
    """Hash of the blocks that ggml makes of `weights`; of those that `gguf` makes for types without blocks."""
    kind = gguf.GGMLQuantizationType[name]
    block_len, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    source = weights(N_BLOCKS * block_len)
    if block_len == 1:
        return fnv1a(np.ascontiguousarray(gguf.quants.quantize(source, kind)).tobytes())
    packed = np.zeros(N_BLOCKS * block_bytes, np.uint8)
    pointers = (source.ctypes.data_as(ctypes.c_void_p), packed.ctypes.data_as(ctypes.c_void_p))
    ggml().ggml_quantize_chunk(int(kind), *pointers, *map(ctypes.c_int64, (0, N_BLOCKS, block_len)), None)
    if kind not in (gguf.GGMLQuantizationType[name] for name in TYPES if name.endswith("_K")):
        assert (packed == gguf.quants.quantize(source, kind)).all(), f"{name}: gguf and ggml disagree"
    return fnv1a(packed.tobytes())


def ggml() -> ctypes.CDLL:
    """The library that `llama-cpp-python` ships."""
    package = importlib.util.find_spec("llama_cpp")
    assert package and package.origin, "llama-cpp-python is not installed"
    return ctypes.CDLL(str(Path(package.origin).parent / "lib" / "libggml-base.so"))


if __name__ == "__main__":
    for table, digest in (("DECODED", decoded_hash), ("ENCODED", encoded_hash)):
        print(f"const {table}: [(GgmlType, u64); {len(TYPES)}] = [")
        for name in TYPES:
            print(f"    (GgmlType::{name}, 0x{digest(name):016x}),")
        print("];\n")
