"""A `rsllm._core` without a model: an engine in memory that speaks the contract of `_core.pyi`.

Tokens are UTF-8 bytes (ids 0 to 255); 256 is BOS `<s>`, 257 the end token `</s>`, 258 `<|im_start|>`, 259 `<|im_end|>`.
An engine answers with its `script` (pieces of text), one piece every `delay` seconds. Switches make it slow, fail or
run on for ever; whether it was cancelled can be seen.
"""

from __future__ import annotations

import os
import re
import struct
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from rsllm.errors import ContextLengthError, EngineClosedError

__version__ = "0.0.fake"

BOS, EOS, IM_START, IM_END = 256, 257, 258, 259
SPECIAL = {"<s>": BOS, "</s>": EOS, "<|im_start|>": IM_START, "<|im_end|>": IM_END}
TEXTS = {id: text for text, id in SPECIAL.items()}
VOCAB_SIZE = 260
SCRIPT = ("Hello", ", ", "wörld", " 😀")
WHOLE = "".join(SCRIPT)

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass
class Behaviour:
    """How the next engines behave. One global, reset by the fixture."""

    script: list[str] = field(default_factory=lambda: list(SCRIPT))
    delay: float = 0.0
    endless: bool = False
    fail_after: int | None = None
    finish_reason: str = "stop"
    context: int = 256
    add_bos: bool = False
    template: str | None = CHATML
    warnings: list[str] = field(default_factory=list)
    engines: list[Engine] = field(default_factory=list)


behaviour = Behaviour()


def bytes_of(id: int) -> bytes:
    return TEXTS[id].encode() if id > 255 else bytes([id])


def text_of(ids: list[int]) -> str:
    return b"".join(map(bytes_of, ids)).decode(errors="replace")


class Engine:
    def __init__(
        self,
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
    ) -> None:
        with open(path, "rb"):
            pass
        self.path = path
        self.arguments = {"threads": threads, "context": context, "kv_type": kv_type, "isa": isa, "mmap": mmap}
        self.draft = (draft, draft_must_fit)
        self.closed = False
        self.prompts: list[list[int]] = []
        self.options: list[dict[str, Any]] = []
        self.generations: list[Generation] = []
        behaviour.engines.append(self)

    def info(self) -> dict[str, Any]:
        return {
            "architecture": "fake",
            "name": "Fake 1B",
            "context": self.arguments["context"] or behaviour.context,
            "context_reason": "as asked" if self.arguments["context"] else "the model's limit",
            "training_context": 4096,
            "threads": self.arguments["threads"] or 2,
            "isa": self.arguments["isa"] or "scalar",
            "kv_type": self.arguments["kv_type"],
            "max_sequences": 16,
            "weight_bytes": 1000,
            "kv_bytes": 2000,
            "scratch_bytes": 3000,
            "load_ns": 45_600_000,
            "vocab_size": VOCAB_SIZE,
            "embed_dim": 8,
            "n_layers": 2,
            "file_bytes": 4000,
            "decode_bytes_per_token": 1000,
            "parameters": 1_000_000_000,
            "warnings": behaviour.warnings,
        }

    def metadata(self) -> dict[str, Any]:
        self._check()
        tokens = [f"<0x{byte:02X}>" for byte in range(256)] + list(SPECIAL)
        metadata: dict[str, Any] = {
            "general.architecture": "fake",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [6] * 256 + [3] * 4,
            "tokenizer.ggml.bos_token_id": BOS,
            "tokenizer.ggml.eos_token_id": EOS,
        }
        if behaviour.template is not None:
            metadata["tokenizer.chat_template"] = behaviour.template
        return metadata

    def special_tokens(self) -> dict[str, Any]:
        self._check()
        return {
            "bos": BOS,
            "eos": EOS,
            "eot": IM_END,
            "add_bos": behaviour.add_bos,
            "add_eos": False,
            "bos_text": "<s>",
            "eos_text": "</s>",
            "end_of_generation": [EOS, IM_END],
        }

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        return self.tokenize_parts([(text, parse_special)], add_special=add_special)

    def tokenize_parts(self, parts: list[tuple[str, bool]], *, add_special: bool = False) -> list[int]:
        self._check()
        ids = [BOS] if add_special and behaviour.add_bos else []
        for text, trusted in parts:
            for piece in re.split("(" + "|".join(map(re.escape, SPECIAL)) + ")", text) if trusted else [text]:
                ids += [SPECIAL[piece]] if trusted and piece in SPECIAL else piece.encode()
        return ids

    def detokenize(self, ids: list[int], *, render_special: bool = True) -> str:
        self._check()
        return text_of(ids if render_special else [id for id in ids if id < 256])

    def token_bytes(self, id: int) -> bytes:
        return bytes_of(id)

    def logits(self, ids: list[int]) -> bytearray:
        self._check()
        return bytearray(4 * len(ids) * VOCAB_SIZE)

    decode_logits = logits

    def generate(self, ids: list[int], options: dict[str, Any]) -> Generation:
        self._check()
        if len(ids) >= self.info()["context"]:
            raise ContextLengthError("the prompt is too long", prompt_tokens=len(ids), context=self.info()["context"])
        self.prompts.append(ids)
        self.options.append(options)
        generation = Generation(len(ids), options)
        self.generations.append(generation)
        return generation

    def embed(self, ids: list[list[int]], *, pooling: str = "last", normalise: bool = True) -> bytearray:
        self._check()
        if pooling == "rank":
            return bytearray(struct.pack(f"<{len(ids)}f", *[float(len(text)) for text in ids]))
        kinds = {"mean": 1.0, "cls": 2.0, "last": 3.0}
        rows = [[float(len(text)), kinds[pooling], float(normalise)] + [0.0] * 5 for text in ids]
        return bytearray(struct.pack(f"<{8 * len(ids)}f", *[value for row in rows for value in row]))

    def save_prefix(self, ids: list[int]) -> bytes:
        self._check()
        return struct.pack(f"<{len(ids)}I", *ids)

    def restore_prefix(self, data: bytes) -> int:
        self._check()
        return len(data) // 4

    def persist_prefix(self, ids: list[int], folder: str) -> str:
        path = os.path.join(folder, "prefix")
        with open(path, "wb") as file:
            file.write(self.save_prefix(ids))
        return path

    def restore_prefixes(self, folder: str) -> list[tuple[str, int, str | None]]:
        paths = [os.path.join(folder, name) for name in os.listdir(folder)]
        return [(path, os.path.getsize(path) // 4, None) for path in paths]

    def metrics(self) -> dict[str, Any]:
        self._check()
        return {"started": len(self.generations)}

    def bench(self, *, prompt: int, generate: int, depth: int) -> dict[str, Any]:
        self._check()
        return {
            "prompt_ns": prompt * 1_000_000,
            "generate_ns": generate * 10_000_000,
            "prompt_tokens": prompt,
            "generate_tokens": generate,
        }

    def close(self) -> None:
        self.closed = True

    def _check(self) -> None:
        if self.closed:
            raise EngineClosedError("closed")


class Generation:
    def __init__(self, prompt_tokens: int, options: dict[str, Any]) -> None:
        self.cancelled = threading.Event()
        self._prompt_tokens = prompt_tokens
        self._options = options
        self._sent: list[str] = []
        self._finish_reason: str | None = None
        self._due = time.monotonic() + behaviour.delay
        self._lock = threading.Lock()

    def next(self) -> tuple[str, list[int], list[dict[str, Any]] | None] | None:
        while (piece := self.next_timeout(50)) is False:
            pass
        assert piece is not True
        return piece

    def next_timeout(self, milliseconds: int) -> tuple[str, list[int], list[dict[str, Any]] | None] | bool | None:
        with self._lock:
            wait = self._due - time.monotonic()
            if self.cancelled.wait(max(0.0, min(wait, milliseconds / 1000))):
                self._finish_reason = self._finish_reason or "cancelled"
                return None
            if wait > milliseconds / 1000:
                return False
            return self._piece()

    def cancel(self) -> None:
        self.cancelled.set()

    def stats(self) -> dict[str, Any]:
        return {
            "finish_reason": self._finish_reason or "cancelled",
            "stop_text": None,
            "seed": self._options["seed"] or 7,
            "prompt_tokens": self._prompt_tokens,
            "cached_tokens": 2,
            "generated_tokens": len(self._sent),
            "queue_ns": 1_000,
            "prefill_ns": 130_000_000,
            "decode_ns": 4_700_000_000,
            "first_token_ns": 131_000_000,
            "total_ns": 4_830_001_000,
        }

    def _piece(self) -> tuple[str, list[int], list[dict[str, Any]] | None] | None:
        count = len(self._sent)
        if behaviour.fail_after is not None and count >= behaviour.fail_after:
            self._finish_reason = "error"
            raise RuntimeError("the fake engine failed as asked")
        limit = self._options["max_tokens"]
        if limit is not None and count >= limit:
            self._finish_reason = "length"
            return None
        if count >= len(behaviour.script) and not behaviour.endless:
            self._finish_reason = behaviour.finish_reason
            return None
        text = behaviour.script[count % len(behaviour.script)]
        self._sent.append(text)
        self._due = time.monotonic() + behaviour.delay
        ids = [SPECIAL[text]] if text in SPECIAL else list(text.encode())
        logprobs = None
        if self._options["logprobs"] is not None:
            entry = {"id": ids[-1], "text": text, "bytes": text.encode(), "logprob": -0.5}
            logprobs = [{**entry, "top": [entry] * self._options["logprobs"]} for _ in ids]
        # A control token is no text.
        return "" if text in SPECIAL else text, ids, logprobs


class TensorData:
    def __init__(self, data: bytes) -> None:
        self.data = data


_VERSIONS = {version.to_bytes(4, "little") for version in (1, 2, 3)}


class GgufFile:
    """Only what `show` and the import of a model look at: the file begins with the magic number.

    A file that also has a version is read in earnest.
    """

    def __new__(cls, path: str, *, mmap: bool = True) -> Any:
        from rsllm import _core
        from rsllm.errors import GgufError

        with open(path, "rb") as file:
            begin = file.read(8)
        if not begin.startswith(b"GGUF"):
            raise GgufError(f"{path} is not a GGUF file", file=path, field="magic", expected="GGUF")
        return _core.GgufFile(path, mmap=mmap) if begin[4:] in _VERSIONS else super().__new__(cls)

    def __init__(self, path: str, *, mmap: bool = True) -> None:
        self.version, self.alignment, self.files, self.file_bytes = 3, 32, [path], 4000

    def metadata(self) -> dict[str, Any]:
        return {
            "general.architecture": "fake",
            "general.name": "Fake 1B",
            "fake.context_length": 4096,
            "fake.embedding_length": 8,
            "general.license": "mit",
            "tokenizer.ggml.tokens": ["a", "b", "c"] * 20,
            "tokenizer.chat_template": CHATML,
        }

    def tensors(self) -> list[dict[str, Any]]:
        return [
            {"name": "token_embd.weight", "type": "Q4_0", "shape": (4, 32), "n_bytes": 72, "n_elements": 128},
            {"name": "output_norm.weight", "type": "F32", "shape": (32,), "n_bytes": 128, "n_elements": 32},
        ]

    def tensor_data(self, name: str) -> TensorData:
        return TensorData(b"")


def cpu_info() -> dict[str, Any]:
    return {
        "features": {"avx2": True, "avx512f": False},
        "isa": "avx2",
        "available_isas": ["scalar", "avx2"],
        "kernels": {"Q4_K": {"decode": "avx2", "prefill": "avx2"}, "F32": {"decode": "avx2", "prefill": "scalar"}},
        "threads": 2,
        "reason": "the best of what the CPU offers",
    }


def measure_read_bandwidth(path: str, threads: int) -> float:
    return 1e10 * threads


def ggml_types() -> list[dict[str, Any]]:
    return [{"name": "Q4_0", "id": 2, "block_len": 32, "block_bytes": 18, "can_dequantize": True}]
