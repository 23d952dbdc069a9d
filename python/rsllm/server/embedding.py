"""Texts as vectors: `embed`, for all the routes that make them."""

from __future__ import annotations

import array
import math
from collections.abc import Sequence
from dataclasses import dataclass

from rsllm.errors import ContextLengthError
from rsllm.runner.pool import Lease
from rsllm.server.errors import ApiError
from rsllm.server.schemas import EmbedRequest
from rsllm.server.service import Clock, Services, find, read_options, use

__all__ = ["Embeddings", "embed"]

# Inputs and tokens of one call to a runner.
_INPUTS = 32
_TOKENS = 32_768


@dataclass(frozen=True)
class Embeddings:
    """Vectors, and what they took."""

    vectors: list[list[float]]
    metrics: dict[str, int]
    warnings: list[str]


async def embed(services: Services, request: EmbedRequest) -> Embeddings:
    """Vectors of texts, in their order."""
    clock = Clock()
    served = await find(services, request.model)
    asked = read_options(services, served, request)
    warnings = list(asked.warnings)
    async with use(services, served, asked, request.keep_alive) as lease:
        clock.loaded()
        # A tensor that has no use here may be what the file's vectors are made with at last.
        warnings += map(str, lease.info.get("warnings") or ())
        if not request.inputs:
            return Embeddings([], clock.metrics(), warnings)
        inputs = []
        for index, text in enumerate(request.inputs):
            ids = await lease.tokenize([(text, False)], add_special=True)
            inputs.append(_fitting(ids, lease, request.truncate, index, warnings))
        vectors: list[list[float]] = []
        for group in _groups(inputs):
            pooling = {"pooling": served.facts.pooling, "normalise": request.normalise}
            data = await lease.embed(group, pooling)
            vectors += _vectors(data, len(group), request, len(vectors))
        metrics = {**clock.metrics(), "prompt_eval_count": sum(map(len, inputs))}
        return Embeddings(vectors, metrics, warnings)


def _fitting(ids: list[int], lease: Lease, truncate: bool, index: int, warnings: list[str]) -> list[int]:
    """The tokens of an input, its end cut off where it is longer than the context; its last token may be an EOS."""
    limit = int(lease.info["context"])
    if len(ids) <= limit:
        return ids
    if not truncate:
        raise ContextLengthError(
            f"the input length exceeds the context length: input {index} has {len(ids)} tokens, the context {limit}",
            prompt_tokens=len(ids),
            context=limit,
        )
    warnings.append(f"input {index} was cut from {len(ids)} to {limit} tokens, the length of the context")
    special = lease.special_tokens
    if special.get("add_eos") and ids[-1] == special.get("eos"):
        return [*ids[: limit - 1], ids[-1]]
    return ids[:limit]


def _groups(inputs: Sequence[list[int]]) -> list[list[list[int]]]:
    groups: list[list[list[int]]] = []
    tokens = 0
    for ids in inputs:
        if not groups or len(groups[-1]) == _INPUTS or tokens + len(ids) > _TOKENS:
            groups.append([])
            tokens = 0
        groups[-1].append(ids)
        tokens += len(ids)
    return groups


def _vectors(data: bytearray, count: int, request: EmbedRequest, begin: int) -> list[list[float]]:
    """The vectors of so many inputs, of which the first has the number `begin`."""
    values = array.array("f")
    values.frombytes(data)
    width = len(values) // count
    vectors = [values[row * width : (row + 1) * width].tolist() for row in range(count)]
    if not all(map(math.isfinite, values)):
        wrong = [str(begin + row) for row, vector in enumerate(vectors) if not all(map(math.isfinite, vector))]
        hint = f"of input {', '.join(wrong[:20])} the model makes no vector; the others can be had without it"
        raise ApiError(400, "embedding contains NaN or Inf values", hint=hint)
    if request.dimensions is None or request.dimensions == width:
        return vectors
    if request.dimensions > width:
        raise ApiError(400, f"dimensions is {request.dimensions}, and embeddings of this model have {width}")
    return [_scaled(vector[: request.dimensions]) for vector in vectors]


def _scaled(vector: list[float]) -> list[float]:
    length = math.sqrt(math.fsum(value * value for value in vector))
    return [value / length for value in vector] if length else vector
