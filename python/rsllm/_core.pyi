"""The Rust core. Private: use the public names of `rsllm`."""

import sys
from typing import Any, final

__all__ = [
    "Engine",
    "Generation",
    "GgufFile",
    "TensorData",
    "Tokenizer",
    "__version__",
    "cpu_info",
    "dequantize",
    "exit_when_closed",
    "ggml_types",
    "measure_read_bandwidth",
    "quantize",
    "sample",
    "sampler_probabilities",
]

__version__: str

def dequantize(data: bytes | bytearray | memoryview, type_name: str) -> bytearray:
    """Whole blocks of `type_name` as little-endian float32 bytes."""

def quantize(data: bytes | bytearray | memoryview, type_name: str) -> bytearray:
    """Little-endian float32 bytes as whole blocks of `type_name`."""

def ggml_types() -> list[dict[str, Any]]:
    """Every tensor type: name, id, block_len, block_bytes, can_dequantize."""

def cpu_info() -> dict[str, Any]:
    """features (name -> bool), isa (chosen), available_isas, kernels (type -> {decode, prefill}), threads, reason."""

def exit_when_closed(fd: int, *, status: int = 0, grace_ms: int = 500) -> bool:
    """End the process once the other side of the socket `fd` has closed it, and it has not ended by itself `grace_ms`
    later.

    The thread that watches needs no GIL. False where there is no way to watch."""

def measure_read_bandwidth(path: str, threads: int) -> float:
    """Best bytes a second that `threads` threads read from the mapped file."""

def sample(logits: bytes | bytearray | memoryview, options: dict[str, Any], n: int, seed: int) -> list[int]:
    """`n` draws from the same float32 logits; no draw changes the penalties of the next. For tests."""

def sampler_probabilities(
    logits: bytes | bytearray | memoryview, options: dict[str, Any], history: list[int]
) -> bytearray:
    """The distribution, float32, that a draw after `history` has. For tests."""

def plan(
    path: str,
    *,
    threads: int | None = None,
    context: int | None = None,
    kv_type: str = "f16",
    isa: str | None = None,
    mmap: bool = True,
    max_sequences: int = 16,
    draft: str | None = None,
    draft_must_fit: bool = True,
) -> dict[str, Any]:
    """What `Engine(path, …).info()` would say, without allocating what the engine would: the memory plan."""

@final
class GgufFile:
    """A GGUF file, or all shards of one, mapped and validated."""

    def __new__(cls, path: str, *, mmap: bool = True) -> GgufFile: ...
    @property
    def version(self) -> int: ...
    @property
    def alignment(self) -> int: ...
    @property
    def files(self) -> list[str]: ...
    @property
    def file_bytes(self) -> int: ...
    def metadata(self) -> dict[str, Any]:
        """Key to value, in file order. Strings that are not UTF-8 are bytes."""
    def tensors(self) -> list[dict[str, Any]]:
        """One dict a tensor: name, type, shape (numpy order: rows first), n_bytes, n_elements."""
    def tensor_data(self, name: str) -> TensorData:
        """The packed bytes, zero copy: `memoryview(file.tensor_data(name))`."""

@final
class TensorData:
    """Packed bytes of one tensor; supports the buffer protocol, read only."""

    # The slot has been there since 3.11, its name in Python since 3.12.
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ...

@final
class Tokenizer:
    """The tokenizer of a GGUF file, without its model."""

    def __new__(cls, path: str) -> Tokenizer: ...
    @property
    def vocab_size(self) -> int: ...
    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]: ...
    def tokenize_parts(self, parts: list[tuple[str, bool]], *, add_special: bool = False) -> list[int]: ...
    def detokenize(self, ids: list[int], *, render_special: bool = True) -> str: ...
    def token_bytes(self, id: int) -> bytes: ...
    def special_tokens(self) -> dict[str, Any]: ...

@final
class Engine:
    """A loaded model and the thread that runs it."""

    def __new__(
        cls,
        path: str,
        *,
        threads: int | None = None,
        context: int | None = None,
        kv_type: str = "f16",
        isa: str | None = None,
        mmap: bool = True,
        max_sequences: int = 16,
        draft: str | None = None,
        draft_must_fit: bool = True,
    ) -> Engine: ...
    def info(self) -> dict[str, Any]:
        """architecture, name, context, context_reason, training_context, threads, isa, kv_type, max_sequences,
        weight_bytes, kv_bytes, scratch_bytes, load_ns, vocab_size, embed_dim, n_layers, file_bytes,
        decode_bytes_per_token, parameters, warnings, draft (None, or architecture, name, context, parameters)."""
    def metadata(self) -> dict[str, Any]: ...
    def special_tokens(self) -> dict[str, Any]:
        """bos, eos, eot (ids or None), add_bos, add_eos, bos_text, eos_text, end_of_generation (sorted ids)."""
    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]: ...
    def tokenize_parts(self, parts: list[tuple[str, bool]], *, add_special: bool = False) -> list[int]:
        """Text whose parts are marked trusted (special tokens parsed) or not, tokenised as one text."""
    def detokenize(self, ids: list[int], *, render_special: bool = True) -> str: ...
    def token_bytes(self, id: int) -> bytes:
        """What a token adds to a text; the text of a control token."""
    def logits(self, ids: list[int]) -> bytearray:
        """float32 (n, vocab_size), one row a position, prefill numerics."""
    def decode_logits(self, ids: list[int], *, prompt: int = 1) -> bytearray:
        """The same, but positions from `prompt` on go through the decode path."""
    def generate(self, ids: list[int], options: dict[str, Any]) -> Generation:
        """Queue one sequence. Options: max_tokens (None = until the context is full), temperature, top_k, top_p, min_p,
        typical_p, repeat_penalty, repeat_last_n, presence_penalty, frequency_penalty, seed (None = random), stop
        (list of str), logprobs (int or None: how many alternatives), ignore_eos (bool), max_draft (most tokens to guess
        and verify at once), shift (bool: a full context is no end, the older half of it is forgotten), num_keep (tokens
        at the start that a shift keeps), logit_bias (list of pairs of an
        id or a text and a number, or False for a ban), and one of schema (JSON text, or "json" for any object), regex
        and grammar (GBNF or Lark)."""
    def bench(self, *, prompt: int, generate: int, depth: int) -> dict[str, Any]:
        """One repetition: prompt_ns, generate_ns, prompt_tokens, generate_tokens."""
    def embed(self, ids: list[list[int]], *, pooling: str = "last", normalise: bool = True) -> bytearray:
        """float32 rows of embed_dim values, one a text (pooling mean, cls or last) or one a token (none); for rank
        a score a text."""
    def save_prefix(self, ids: list[int]) -> bytes:
        """The KV of the first whole pages (64 tokens) of `ids`, computed where it is not known. Raises `OptionError`
        for less than a page."""
    def restore_prefix(self, data: bytes) -> int:
        """Take what `save_prefix` gave, of the same file and KV type, into the prefix cache; its tokens. Raises
        `OptionError` for damaged or foreign bytes."""
    def persist_prefix(self, ids: list[int], folder: str) -> str:
        """`save_prefix` to a file of `folder`; its path."""
    def restore_prefixes(self, folder: str) -> list[tuple[str, int, str | None]]:
        """Take all prefixes of this model in `folder` into the prefix cache: path, tokens, and an error or None."""
    def metrics(self) -> dict[str, Any]:
        """As of the last step: waiting, running, started, ended, preempted, queue_ns, prefill_tokens, prefill_ns,
        decode_tokens, decode_ns, cached_tokens, drafted_tokens,
        accepted_tokens, steps, batch_sizes (list of pairs: at most so many sequences, or None
        for any, and steps), pages, pages_free, pages_cached, page_len."""
    def close(self) -> None: ...

@final
class Generation:
    """One running sequence. Dropping it cancels."""

    def next(self) -> tuple[str, list[int], list[dict[str, Any]] | None] | None:
        """The next piece: text, the ids since the last piece, their logprobs; None at the end.

        Waits without the GIL; signals are looked at every 50 ms. logprobs entries: {id, text, bytes, logprob,
        top: [{id, text, bytes, logprob}]}.
        """
    def next_timeout(self, milliseconds: int) -> tuple[str, list[int], list[dict[str, Any]] | None] | bool | None:
        """As next, but False when nothing came in time."""
    def cancel(self) -> None: ...
    def stats(self) -> dict[str, Any]:
        """finish_reason (stop|length|cancelled|context|error), stop_text, seed, prompt_tokens, cached_tokens,
        shifts, dropped_tokens (by shifts), warnings (list of str), generated_tokens, drafted_tokens, accepted_tokens,
        queue_ns, prefill_ns, decode_ns, first_token_ns, total_ns."""
