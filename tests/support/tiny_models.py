"""Tiny random models of every family and weight type, written with the `gguf` package and the same on every machine.

Their text means nothing; their logits are compared with the reference engine's, which catches what a real model of
one family cannot: a wrong rotation style, a missing bias or norm, a window off by one, experts chosen in another order.
Each model is a few hundred kilobytes, up to two megabytes in F32. Weights are scaled so that every part of a layer
moves the logits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Shape:
    """Dimensions and mechanisms of one tiny model."""

    family: str
    n_layers: int = 2
    embed_dim: int = 64
    ffn_dim: int = 96
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 16
    context_len: int = 256
    rope_base: float = 10000.0
    tied: bool = False
    biases: bool = False
    head_norms: bool = False
    post_norms: bool = False
    rope_factors: bool = False
    n_experts: int = 0
    n_experts_used: int = 0
    expert_dim: int = 64
    n_labels: int = 0
    metadata: dict[str, Any] = field(default_factory=dict)  # further keys, without the family's prefix; or general ones


SHAPES: dict[str, Shape] = {
    "llama": Shape("llama"),
    # Llama 3.1 onwards: frequency factors as a tensor; a tied embedding.
    "llama-factors": Shape("llama", rope_factors=True, tied=True, rope_base=500000.0),
    # Positions scaled linearly; no sharing of K and V between heads.
    "llama-linear": Shape("llama", n_kv_heads=4, metadata={"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
    "qwen2": Shape("qwen2", biases=True, tied=True, rope_base=1000000.0),
    # The heads together are wider than the model.
    "qwen3": Shape("qwen3", head_dim=32, head_norms=True, rope_base=1000000.0),
    "qwen3moe": Shape("qwen3moe", head_dim=32, head_norms=True, n_experts=8, n_experts_used=3),
    # Six layers make one global layer; the window is shorter than the test's text.
    "gemma3": Shape(
        "gemma3",
        n_layers=7,
        n_kv_heads=1,
        head_dim=32,
        head_norms=True,
        post_norms=True,
        tied=True,
        rope_base=1000000.0,
        metadata={"attention.sliding_window": 12},
    ),
}

# Scores pairs of texts, by the probability of its first label.
RERANKER = Shape("qwen3", head_dim=32, head_norms=True, n_labels=2, metadata={"pooling_type": 4})
# Rows of whole 256-weight blocks.
QUANTISED = Shape("llama", embed_dim=256, ffn_dim=256, head_dim=64)
QUANTISED_MOE = replace(SHAPES["qwen3moe"], embed_dim=256, head_dim=64, expert_dim=256)
WEIGHT_TYPES: tuple[Type, ...] = (
    Type.F16,
    Type.BF16,
    Type.Q4_0,
    Type.Q4_1,
    Type.Q5_0,
    Type.Q5_1,
    Type.Q8_0,
    Type.Q2_K,
    Type.Q3_K,
    Type.Q4_K,
    Type.Q5_K,
    Type.Q6_K,
)


def write(path: Path, shape: Shape, weight_type: Type = Type.F32, seed: int = 1) -> Path:
    """Writes one model and returns `path`. Matrices take `weight_type`; vectors and the router stay F32."""
    rng = np.random.default_rng(seed)
    writer = GGUFWriter(path, shape.family)
    write_metadata(writer, shape)
    vocab_size = write_spm_vocabulary(writer) if shape.family == "gemma3" else write_bpe_vocabulary(writer)
    for name, dims, gain in tensors(shape, vocab_size):
        if len(dims) == 1:
            writer.add_tensor(name, vector(rng, name, dims[0], gain))
        elif name.endswith("ffn_gate_inp.weight"):
            writer.add_tensor(name, gaussian(rng, dims, gain / np.sqrt(dims[-1])))
        else:
            data = matrix(rng, dims, gain / np.sqrt(dims[-1]), weight_type)
            writer.add_tensor(name, data, raw_dtype=weight_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_metadata(writer: GGUFWriter, shape: Shape) -> None:
    """Every key the families need, then the shape's own."""
    writer.add_name(f"tiny {shape.family}")
    writer.add_block_count(shape.n_layers)
    writer.add_context_length(shape.context_len)
    writer.add_embedding_length(shape.embed_dim)
    writer.add_feed_forward_length(shape.ffn_dim)
    writer.add_head_count(shape.n_heads)
    writer.add_head_count_kv(shape.n_kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(shape.rope_base)
    if shape.n_experts:
        writer.add_expert_count(shape.n_experts)
        writer.add_expert_used_count(shape.n_experts_used)
        writer.add_expert_feed_forward_length(shape.expert_dim)
    if shape.n_labels:
        writer.add_classifier_output_labels([f"label {number}" for number in range(shape.n_labels)])
    metadata = {"rope.dimension_count": shape.head_dim, **shape.metadata}
    if shape.family == "gemma3":
        del metadata["rope.dimension_count"]  # real files of the family have none
    add: dict[type, Callable[[str, Any], None]] = {
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
    }
    for key, value in metadata.items():
        add[type(value)](key if key.startswith("general.") else f"{shape.family}.{key}", value)


def tensors(shape: Shape, vocab_size: int) -> list[tuple[str, tuple[int, ...], float]]:
    """Name, dimensions in numpy order and gain of each tensor. A gain of 1 keeps the variance of what comes in."""
    q_dim, kv_dim = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    embed = shape.embed_dim
    # Gemma multiplies embeddings by the square root of their length; smaller ones leave the layers their say.
    gain = 2.0 if shape.family == "gemma3" else 4.0
    made: list[tuple[str, tuple[int, ...], float]] = [("token_embd.weight", (vocab_size, embed), gain)]
    if shape.rope_factors:
        made.append(("rope_freqs.weight", (shape.head_dim // 2,), 1.0))
    for i in range(shape.n_layers):
        layer = f"blk.{i}."
        made += [
            (layer + "attn_norm.weight", (embed,), 1.0),
            (layer + "attn_q.weight", (q_dim, embed), 2.0),
            (layer + "attn_k.weight", (kv_dim, embed), 2.0),
            (layer + "attn_v.weight", (kv_dim, embed), 1.0),
            (layer + "attn_output.weight", (embed, q_dim), 1.0),
            (layer + "ffn_norm.weight", (embed,), 1.0),
        ]
        if shape.biases:
            made += [(f"{layer}attn_{x}.bias", (n,), 0.0) for x, n in (("q", q_dim), ("k", kv_dim), ("v", kv_dim))]
        if shape.head_norms:
            made += [(f"{layer}attn_{x}_norm.weight", (shape.head_dim,), 1.0) for x in "qk"]
        if shape.post_norms:
            made += [(f"{layer}{x}_norm.weight", (embed,), 1.0) for x in ("post_attention", "post_ffw")]
        made += feed_forward(shape, layer)
    made.append(("output_norm.weight", (embed,), 1.0))
    if not shape.tied:
        made.append(("output.weight", (vocab_size, embed), 3.0))
    if shape.n_labels:
        made.append(("cls.output.weight", (shape.n_labels, embed), 3.0))
    return made


def feed_forward(shape: Shape, layer: str) -> list[tuple[str, tuple[int, ...], float]]:
    """The dense or expert matrices of one layer."""
    embed = shape.embed_dim
    if not shape.n_experts:
        return [
            (layer + "ffn_gate.weight", (shape.ffn_dim, embed), 1.5),
            (layer + "ffn_up.weight", (shape.ffn_dim, embed), 1.5),
            (layer + "ffn_down.weight", (embed, shape.ffn_dim), 1.0),
        ]
    n, wide = shape.n_experts, shape.expert_dim
    return [
        (layer + "ffn_gate_inp.weight", (n, embed), 2.0),
        (layer + "ffn_gate_exps.weight", (n, wide, embed), 1.5),
        (layer + "ffn_up_exps.weight", (n, wide, embed), 1.5),
        (layer + "ffn_down_exps.weight", (n, embed, wide), 1.0),
    ]


def vector(rng: np.random.Generator, name: str, n: int, gain: float) -> Array:
    """Norm weights around 1, biases around 0, and frequency factors that rise."""
    if name == "rope_freqs.weight":
        return np.linspace(1.0, 8.0, n, dtype=np.float32)
    return (gain + rng.uniform(-0.4, 0.4, n)).astype(np.float32)


def gaussian(rng: np.random.Generator, dims: tuple[int, ...], deviation: float) -> Array:
    """Normal values of that standard deviation."""
    return (rng.standard_normal(dims) * deviation).astype(np.float32)


def matrix(rng: np.random.Generator, dims: tuple[int, ...], deviation: float, weight_type: Type) -> Array:
    """A random matrix of the type, dequantising to about that standard deviation."""
    if weight_type not in RANDOM_BLOCKS:
        return gguf.quantize(gaussian(rng, dims, deviation), weight_type)
    return random_blocks(rng, dims, deviation, weight_type)


# `gguf` has no quantiser for these: byte offset of each f16 factor of a block, and its share of the first one, chosen
# so that the mean of the weights is 0.
RANDOM_BLOCKS: dict[Type, tuple[tuple[int, float], ...]] = {
    Type.Q2_K: ((80, 1.0), (82, 1.5)),
    Type.Q3_K: ((108, 1.0),),
    Type.Q4_K: ((0, 1.0), (2, 7.5)),
    Type.Q5_K: ((0, 1.0), (2, 15.5)),
    Type.Q6_K: ((208, 1.0),),
}


def random_blocks(rng: np.random.Generator, dims: tuple[int, ...], deviation: float, weight_type: Type) -> Array:
    """Random payload bits under sane factors: every bit pattern is a valid block of these types."""
    block_len, block_bytes = gguf.GGML_QUANT_SIZES[weight_type]
    n_blocks = int(np.prod(dims)) // block_len
    blocks = rng.integers(0, 256, (n_blocks, block_bytes), dtype=np.uint8)
    spread = rng.uniform(0.7, 1.3, n_blocks)
    unit = 1.0
    for _ in range(2):  # measure with a factor of 1, then scale
        for offset, share in RANDOM_BLOCKS[weight_type]:
            factors = (spread * share * unit).astype(np.float16)
            blocks[:, offset : offset + 2] = factors.view(np.uint8).reshape(-1, 2)
        unit *= deviation / float(gguf.dequantize(blocks, weight_type).std())
    return blocks.reshape(*dims[:-1], dims[-1] // block_len * block_bytes)


def write_bpe_vocabulary(writer: GGUFWriter) -> int:
    """Byte-level BPE as in GPT-2: 256 bytes, a few merges, two special tokens. Returns the number of tokens."""
    letters = byte_letters()
    merges = [
        ("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("a", "n"), ("e", "r"), ("o", "n"), ("r", "e"),
        ("Ġ", "a"), ("Ġ", "s"), ("an", "d"), ("Ġ", "and"), ("in", "g"), ("o", "u"), ("Ġ", "t"), ("Ð", "¾"),
    ]  # fmt: skip
    tokens = [*letters.values(), *(left + right for left, right in merges), "<|endoftext|>", "<|im_end|>"]
    special = len(tokens) - 2
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * special + [gguf.TokenType.CONTROL] * 2)
    writer.add_token_merges([f"{left} {right}" for left, right in merges])
    writer.add_bos_token_id(special)
    writer.add_eos_token_id(special + 1)
    writer.add_add_bos_token(False)
    return len(tokens)


def write_spm_vocabulary(writer: GGUFWriter) -> int:
    """SentencePiece: three special tokens, 256 bytes, a few scored pieces. Returns the number of tokens."""
    pieces = ["\u2581", *"etaoinshrdlu", "th", "the", "\u2581the", "an", "in", "er", "\u2581a", "\u2581an", "on", "re"]
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    kinds = gguf.TokenType
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([kinds.CONTROL] * 3 + [kinds.UNKNOWN] + [kinds.BYTE] * 256 + [kinds.NORMAL] * len(pieces))
    writer.add_token_scores([0.0] * 4 + [-1000.0] * 256 + [float(len(piece)) for piece in pieces])
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(3)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
    return len(tokens)


def byte_letters() -> dict[int, str]:
    """GPT-2's printable letter for each byte: itself where it prints, else the next free letter from U+0100 on."""
    printing = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {byte: chr(byte) for byte in printing}
    free = iter(range(0x100, 0x200))
    return {byte: letters.get(byte) or chr(next(free)) for byte in range(256)}
