"""Writes a GGUF of a realistic shape with random weights, for speed tests only.

    python -m benches.make_synthetic_gguf --shape qwen3-0.6b --quant q4_k --tokenizer-from SmolLM2.gguf --out OUT.gguf

Quantised tensors are random valid blocks (random payload bits, sane f16 factors), so no quantiser is needed. Each
block type has one pool of random blocks, scaled so that the dequantised values have the wanted standard deviation; a
tensor is the pool from a random start, tiled. An 8B file takes seconds.

`--quant` names what llama-quantize writes for the same name:
  f16, bf16, q8_0, q6_k   all matrices of that type
  q4_0                    Q4_0; output or the tied embedding Q6_K
  q4_k                    the Q4_K_M mix: Q4_K; output or the tied embedding Q6_K; attn_v and ffn_down Q6_K in the first
                          and last eighth of the layers and in every third layer between

The tokenizer is copied from another GGUF (SmolLM2's byte-level BPE has 49,152 tokens) and padded with "[PADn]" tokens
of the normal type to the shape's vocabulary, which may not be smaller. Needs numpy and the `gguf` package.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader, GGUFWriter

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Shape:
    """Dimensions of one published model."""

    family: str
    n_layers: int
    embed_dim: int
    ffn_dim: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    context_len: int
    rope_base: float
    norm_eps: float
    tied: bool
    rope_factors: bool = False
    n_experts: int = 0
    n_experts_used: int = 0
    expert_dim: int = 0


SHAPES = {
    # Tiny ones try the loader.
    "tiny-qwen3": Shape("qwen3", 2, 256, 512, 4, 2, 64, 49152, 4096, 1e6, 1e-6, tied=True),
    "tiny-llama": Shape("llama", 2, 256, 512, 4, 2, 64, 49152, 4096, 5e5, 1e-5, tied=True, rope_factors=True),
    "tiny-moe": Shape(
        "qwen3moe", 2, 256, 512, 4, 2, 64, 49152, 4096, 1e6, 1e-6, False, n_experts=8, n_experts_used=2, expert_dim=256
    ),
    "qwen3-0.6b": Shape("qwen3", 28, 1024, 3072, 16, 8, 128, 151936, 40960, 1e6, 1e-6, tied=True),
    "llama-3.2-1b": Shape(
        "llama", 16, 2048, 8192, 32, 8, 64, 128256, 131072, 5e5, 1e-5, tied=True, rope_factors=True
    ),
    "qwen3-8b": Shape("qwen3", 36, 4096, 12288, 32, 8, 128, 151936, 40960, 1e6, 1e-6, tied=False),
    # No published model: 16 experts, 4 active, 1.2B parameters in all, 0.4B active per token.
    "moe-1b": Shape(
        "qwen3moe", 24, 1024, 3072, 16, 4, 128, 151936, 40960, 1e6, 1e-6, False, n_experts=16, n_experts_used=4,
        expert_dim=768,
    ),
}  # fmt: skip
QUANTS = {
    "f16": Type.F16,
    "bf16": Type.BF16,
    "q8_0": Type.Q8_0,
    "q6_k": Type.Q6_K,
    "q4_0": Type.Q4_0,
    "q4_k": Type.Q4_K,
}
FILE_TYPES = {"f16": 1, "q4_0": 2, "q8_0": 7, "q4_k": 15, "q6_k": 18, "bf16": 32}
POOL_BYTES = 24 << 20

# Byte offset of each f16 factor of a block, and its share of the first one.
FACTORS = {
    Type.Q4_0: ((0, 1.0),),
    Type.Q8_0: ((0, 1.0),),
    Type.Q4_K: ((0, 1.0), (2, 7.5)),
    Type.Q6_K: ((208, 1.0),),
}


@dataclass(frozen=True)
class Tensor:
    """Name, dimensions in numpy order, type, and how it is filled: a standard deviation, or a word."""

    name: str
    dims: tuple[int, ...]
    type: Type
    fill: float | str

    @property
    def n_elements(self) -> int:
        """How many weights it has."""
        return int(np.prod(self.dims))


def main() -> int:
    """Writes one file and says how large it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", required=True, choices=SHAPES)
    parser.add_argument("--quant", required=True, choices=QUANTS)
    parser.add_argument("--tokenizer-from", required=True, type=Path, help="a GGUF with a byte-level BPE tokenizer")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    start = time.monotonic()
    out = arguments.out or Path(f"{arguments.shape}-{arguments.quant}.gguf")
    n = write(out, arguments.shape, arguments.quant, arguments.tokenizer_from, arguments.seed)
    seconds = time.monotonic() - start
    print(f"{out}: {n / 1e6:.0f}M parameters, {out.stat().st_size / 1e6:.0f} MB, {seconds:.1f} s")
    return 0


def write(out: Path, shape_name: str, quant: str, tokenizer_from: Path, seed: int = 1) -> int:
    """Writes the file and returns the number of parameters."""
    shape = SHAPES[shape_name]
    rng = np.random.default_rng(seed)
    writer = GGUFWriter(out, shape.family)
    writer.add_type("model")
    writer.add_name(f"synthetic {shape_name} {quant} (random weights)")
    writer.add_file_type(FILE_TYPES[quant])
    writer.add_quantization_version(2)
    write_dimensions(writer, shape)
    copy_tokenizer(writer, tokenizer_from, shape.vocab_size)
    tensors = list_tensors(shape, quant)
    for tensor in tensors:
        describe(writer, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    pool = Pool(rng)
    for tensor in tensors:
        writer.write_tensor_data(values(rng, pool, shape, tensor))
    writer.close()
    return sum(tensor.n_elements for tensor in tensors)


def write_dimensions(writer: GGUFWriter, shape: Shape) -> None:
    """The keys of the family."""
    writer.add_block_count(shape.n_layers)
    writer.add_context_length(shape.context_len)
    writer.add_embedding_length(shape.embed_dim)
    writer.add_feed_forward_length(shape.ffn_dim)
    writer.add_head_count(shape.n_heads)
    writer.add_head_count_kv(shape.n_kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.norm_eps)
    writer.add_vocab_size(shape.vocab_size)
    if shape.n_experts:
        writer.add_expert_count(shape.n_experts)
        writer.add_expert_used_count(shape.n_experts_used)
        writer.add_expert_feed_forward_length(shape.expert_dim)


def copy_tokenizer(writer: GGUFWriter, source: Path, vocab_size: int) -> None:
    """The tokenizer of `source`, padded to `vocab_size`."""
    fields = GGUFReader(source).fields

    def value(key: str) -> Any:
        return fields[key].contents() if key in fields else None

    tokens, kinds = value("tokenizer.ggml.tokens"), value("tokenizer.ggml.token_type")
    pad = vocab_size - len(tokens)
    if pad < 0:
        raise SystemExit(f"vocabulary {vocab_size} is smaller than the tokenizer's {len(tokens)}")
    writer.add_tokenizer_model(value("tokenizer.ggml.model"))
    writer.add_tokenizer_pre(value("tokenizer.ggml.pre"))
    writer.add_token_list([*tokens, *(f"[PAD{len(tokens) + i}]" for i in range(pad))])
    writer.add_token_types([*kinds, *[1] * pad])  # normal, as most of a real vocabulary is
    if (scores := value("tokenizer.ggml.scores")) is not None:
        writer.add_token_scores([*scores, *[-1000.0] * pad])
    if (merges := value("tokenizer.ggml.merges")) is not None:
        writer.add_token_merges(merges)
    for key, add in (
        ("bos", writer.add_bos_token_id),
        ("eos", writer.add_eos_token_id),
        ("unknown", writer.add_unk_token_id),
        ("padding", writer.add_pad_token_id),
    ):
        if (token := value(f"tokenizer.ggml.{key}_token_id")) is not None:
            add(int(token))
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    if (template := value("tokenizer.chat_template")) is not None:
        writer.add_chat_template(template)


def list_tensors(shape: Shape, quant: str) -> list[Tensor]:
    """Every tensor of the model, in file order."""
    embed = shape.embed_dim
    made: list[Tensor] = []

    def matrix(name: str, *dims: int, layer: int = 0) -> None:
        part = name.split(".")[-2]
        deviation = 0.03 if part == "token_embd" else 0.7 / np.sqrt(dims[-1])
        if part in ("attn_output", "ffn_down", "ffn_down_exps"):
            deviation /= np.sqrt(2 * shape.n_layers)
        made.append(Tensor(name, dims, matrix_type(part, layer, shape, quant), float(deviation)))

    def norm(name: str, n: int) -> None:
        made.append(Tensor(name, (n,), Type.F32, "norm"))

    matrix("token_embd.weight", shape.vocab_size, embed)
    if shape.rope_factors:
        made.append(Tensor("rope_freqs.weight", (shape.head_dim // 2,), Type.F32, "rope_freqs"))
    for i in range(shape.n_layers):
        p = f"blk.{i}."
        norm(p + "attn_norm.weight", embed)
        matrix(p + "attn_q.weight", shape.n_heads * shape.head_dim, embed, layer=i)
        matrix(p + "attn_k.weight", shape.n_kv_heads * shape.head_dim, embed, layer=i)
        matrix(p + "attn_v.weight", shape.n_kv_heads * shape.head_dim, embed, layer=i)
        matrix(p + "attn_output.weight", embed, shape.n_heads * shape.head_dim, layer=i)
        if shape.family.startswith("qwen3"):
            norm(p + "attn_q_norm.weight", shape.head_dim)
            norm(p + "attn_k_norm.weight", shape.head_dim)
        norm(p + "ffn_norm.weight", embed)
        if shape.n_experts:
            made.append(
                Tensor(p + "ffn_gate_inp.weight", (shape.n_experts, embed), Type.F32, float(1 / np.sqrt(embed)))
            )
            matrix(p + "ffn_gate_exps.weight", shape.n_experts, shape.expert_dim, embed, layer=i)
            matrix(p + "ffn_up_exps.weight", shape.n_experts, shape.expert_dim, embed, layer=i)
            matrix(p + "ffn_down_exps.weight", shape.n_experts, embed, shape.expert_dim, layer=i)
        else:
            matrix(p + "ffn_gate.weight", shape.ffn_dim, embed, layer=i)
            matrix(p + "ffn_up.weight", shape.ffn_dim, embed, layer=i)
            matrix(p + "ffn_down.weight", embed, shape.ffn_dim, layer=i)
    norm("output_norm.weight", embed)
    if not shape.tied:
        matrix("output.weight", shape.vocab_size, embed)
    return made


def matrix_type(part: str, layer: int, shape: Shape, quant: str) -> Type:
    """The type llama-quantize gives this matrix."""
    if quant in ("q4_0", "q4_k") and (part == "output" or (part == "token_embd" and shape.tied)):
        return Type.Q6_K
    n = shape.n_layers
    more_bits = layer < n // 8 or layer >= 7 * n // 8 or (layer - n // 8) % 3 == 2
    if quant == "q4_k" and part in ("attn_v", "ffn_down", "ffn_down_exps") and more_bits:
        return Type.Q6_K
    return QUANTS[quant]


def describe(writer: GGUFWriter, tensor: Tensor) -> None:
    """Writes the tensor's entry of the header."""
    block_len, block_bytes = gguf.GGML_QUANT_SIZES[tensor.type]
    if tensor.dims[-1] % block_len:
        raise SystemExit(f"{tensor.name}: rows of {tensor.dims[-1]} are no whole {tensor.type.name} blocks")
    n_bytes = tensor.n_elements // block_len * block_bytes
    if tensor.type in (Type.F32, Type.F16):
        dtype = np.dtype(np.float32 if tensor.type == Type.F32 else np.float16)
        writer.add_tensor_info(tensor.name, tensor.dims, dtype, n_bytes)
    else:
        dims = (*tensor.dims[:-1], tensor.dims[-1] // block_len * block_bytes)
        writer.add_tensor_info(tensor.name, dims, np.dtype(np.uint8), n_bytes, raw_dtype=tensor.type)


def values(rng: np.random.Generator, pool: Pool, shape: Shape, tensor: Tensor) -> Array:
    """The tensor's data."""
    if tensor.fill == "rope_freqs":
        return llama3_rope_factors(shape)
    if tensor.fill == "norm":
        return rng.uniform(0.8, 1.2, tensor.dims).astype(np.float32)
    deviation = float(tensor.fill)
    if tensor.type == Type.F32:
        return (rng.standard_normal(tensor.dims) * deviation).astype(np.float32)
    return pool.tensor(tensor.type, tensor.n_elements, deviation)


def llama3_rope_factors(shape: Shape) -> Array:
    """Llama 3.1's frequency factors: 1 below the old context's wavelengths, 32 above, smooth between."""
    factor, low, high, old_context = 32.0, 1.0, 4.0, 8192
    frequencies = 1.0 / shape.rope_base ** (np.arange(0, shape.head_dim, 2, dtype=np.float64) / shape.head_dim)
    wavelengths = 2 * np.pi / frequencies
    smooth = np.clip((old_context / wavelengths - low) / (high - low), 0.0, 1.0)
    factors: Array = (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)
    return factors


class Pool:
    """Random blocks of each type, of which tensors are cut."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.raw: dict[Type, tuple[Bytes, Array]] = {}
        self.scaled: dict[tuple[Type, float], Bytes] = {}

    def tensor(self, weight_type: Type, n_elements: int, deviation: float) -> Bytes:
        """`n_elements` weights as packed bytes."""
        blocks = self.blocks(weight_type, deviation)
        need = n_elements // gguf.GGML_QUANT_SIZES[weight_type][0]
        start = int(self.rng.integers(0, len(blocks)))
        return np.take(blocks, np.arange(start, start + need), axis=0, mode="wrap").reshape(-1)

    def blocks(self, weight_type: Type, deviation: float) -> Bytes:
        """The pool, scaled to the standard deviation."""
        key = (weight_type, round(deviation, 8))
        if key not in self.scaled:
            make = self._floats if weight_type in (Type.F16, Type.BF16) else self._quantised
            self.scaled[key] = make(weight_type, deviation)
        return self.scaled[key]

    def _floats(self, weight_type: Type, deviation: float) -> Bytes:
        numbers = self.rng.standard_normal(POOL_BYTES // 2, dtype=np.float32) * np.float32(deviation)
        packed = (
            numbers.astype(np.float16) if weight_type == Type.F16 else (numbers.view(np.uint32) >> 16).astype("<u2")
        )
        return packed.view(np.uint8).reshape(-1, 2)

    def _quantised(self, weight_type: Type, deviation: float) -> Bytes:
        raw, factors = self._unit(weight_type)
        blocks = raw.copy()
        fill_factors(blocks, weight_type, factors * deviation)
        return blocks

    def _unit(self, weight_type: Type) -> tuple[Bytes, Array]:
        """Random blocks, and the factors under which they dequantise to a standard deviation of 1."""
        if weight_type not in self.raw:
            block_bytes = gguf.GGML_QUANT_SIZES[weight_type][1]
            n = POOL_BYTES // block_bytes
            raw = self.rng.integers(0, 256, (n, block_bytes), dtype=np.uint8)
            if weight_type == Type.Q8_0:
                payload = raw[:, 2:]
                payload[payload == 128] = 129  # a quantiser never writes -128
            factors = self.rng.uniform(0.7, 1.3, n).astype(np.float32)
            probe = raw[:4096].copy()
            fill_factors(probe, weight_type, factors[:4096] * 0.01)
            factors /= gguf.dequantize(probe, weight_type).std() / 0.01
            self.raw[weight_type] = (raw, factors)
        return self.raw[weight_type]


def fill_factors(blocks: Bytes, weight_type: Type, factors: Array) -> None:
    """Writes the f16 factors of each block."""
    for offset, share in FACTORS[weight_type]:
        blocks[:, offset : offset + 2] = (factors * share).astype(np.float16).view(np.uint8).reshape(-1, 2)


if __name__ == "__main__":
    raise SystemExit(main())
