"""Log probabilities and options in JSON: bytes become lists of numbers; minus infinity, which JSON cannot say, null."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from rsllm.errors import ProtocolError

__all__ = ["pack_logprobs", "pack_options", "unpack_logprobs", "unpack_options"]


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


def pack_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Checked options as JSON can say them: a token that is banned has the bias null."""
    biases = [[token, bias if math.isfinite(bias) else None] for token, bias in options.get("logit_bias", ())]
    return {**options, "logit_bias": biases} if biases else dict(options)


def unpack_options(options: Mapping[str, Any], tokens_of: Callable[[str], list[int]]) -> dict[str, Any]:
    """The options as the core takes them: biases by token id, where a text stands for all its tokens."""
    biases = options.get("logit_bias")
    if not biases:
        return dict(options)
    try:
        pairs = [
            (id, -math.inf if bias is None else float(bias))
            for token, bias in biases
            for id in (tokens_of(token) if isinstance(token, str) else [int(token)])
        ]
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"options have a logit_bias that is none: {error!r}"[:500]) from None
    return {**options, "logit_bias": pairs}
