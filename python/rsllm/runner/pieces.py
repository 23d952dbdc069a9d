"""Log probabilities in JSON: bytes as lists of numbers, and minus infinity, which JSON cannot say, as null."""

from __future__ import annotations

import math
from typing import Any

from rsllm.errors import ProtocolError

__all__ = ["pack_logprobs", "unpack_logprobs"]


def pack_logprobs(entries: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """The core's entries as JSON can say them."""
    if entries is None:
        return None
    return [
        {
            "id": entry["id"],
            "text": entry["text"],
            "bytes": list(entry["bytes"]),
            "logprob": entry["logprob"] if math.isfinite(entry["logprob"]) else None,
            "top": pack_logprobs(list(entry.get("top", ()))),
        }
        for entry in entries
    ]


def unpack_logprobs(entries: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """The entries as the core gives them. Raises `ProtocolError` where they are none."""
    if entries is None:
        return None
    try:
        return [
            {
                "id": int(entry["id"]),
                "text": str(entry["text"]),
                "bytes": bytes(entry["bytes"]),
                "logprob": -math.inf if entry["logprob"] is None else float(entry["logprob"]),
                "top": unpack_logprobs(entry["top"]) or [],
            }
            for entry in entries
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"a piece has logprobs that are none: {error!r}"[:500]) from None
