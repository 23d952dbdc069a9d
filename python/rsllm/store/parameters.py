"""PARAMETERs of a Modelfile: which there are, and the types of their values.

The types are Ollama's, and so are the texts about values that do not fit, which its users look for.
"""

from __future__ import annotations

import math
import re
import struct
from typing import Any

__all__ = ["DEPRECATED", "TYPES", "typed"]

TYPES: dict[str, type] = {
    "num_keep": int, "seed": int, "num_predict": int, "top_k": int, "top_p": float, "min_p": float, "typical_p": float,
    "repeat_last_n": int, "temperature": float, "repeat_penalty": float, "presence_penalty": float,
    "frequency_penalty": float, "stop": str, "num_ctx": int, "num_batch": int, "num_gpu": int, "main_gpu": int,
    "use_mmap": bool, "num_thread": int, "draft_num_predict": int,
}  # fmt: skip
"""Every parameter that means something; `stop` may be repeated."""

DEPRECATED = frozenset(
    ("penalize_newline", "low_vram", "f16_kv", "logits_all", "vocab_only", "use_mlock", "mirostat", "mirostat_tau",
     "mirostat_eta")
)  # fmt: skip
"""Those that are read and not used."""

_INT = re.compile(r"[+-]?\d+", re.ASCII)
_FLOAT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_TRUE = ("1", "t", "T", "TRUE", "true", "True")
_FALSE = ("0", "f", "F", "FALSE", "false", "False")
_INT_DIGITS = 19
_FLOAT32_DIGITS = 9


def typed(name: str, text: str) -> Any:
    """The value of a parameter; raises `ValueError` with the text that Ollama has for it."""
    kind = TYPES.get(name)
    if kind is None:
        raise ValueError(f"unknown parameter '{name}'")
    if kind is str:
        return text
    value = _READERS[kind](text)
    if value is None:
        raise ValueError(f"invalid {kind.__name__} value [{text}]")
    return value


def _int(text: str) -> int | None:
    if not _INT.fullmatch(text) or len(text.lstrip("+-").lstrip("0")) > _INT_DIGITS:
        return None
    value = int(text)
    return value if -(2**63) <= value < 2**63 else None


def _float(text: str) -> float | None:
    """In the precision of 32 bits, with the fewest digits that tell it from its neighbours."""
    if not _FLOAT.fullmatch(text):
        return None
    try:
        packed = struct.pack("<f", float(text))
    except OverflowError:
        return None
    if not math.isfinite(struct.unpack("<f", packed)[0]):
        return None
    exact: float = struct.unpack("<f", packed)[0]
    shorter = (float(f"{exact:.{digits}g}") for digits in range(1, _FLOAT32_DIGITS + 1))
    return next((value for value in shorter if _packs_to(value, packed)), exact)


def _packs_to(value: float, packed: bytes) -> bool:
    try:
        return struct.pack("<f", value) == packed
    except OverflowError:  # the largest number, rounded up
        return False


def _bool(text: str) -> bool | None:
    return True if text in _TRUE else False if text in _FALSE else None


_READERS: dict[type, Any] = {int: _int, float: _float, bool: _bool}
