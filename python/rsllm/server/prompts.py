"""Messages as token ids that fit the context.

The model's template makes the prompt; what people wrote is tokenised as text, so that it never becomes control tokens.
A conversation that is too long loses its oldest turns, and a last message that is too long its middle, unless the
request forbids it (`truncate`, `shift`); either is said in the reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rsllm.errors import ContextLengthError, OptionError
from rsllm.runner.pool import Lease
from rsllm.server.errors import ApiError

__all__ = ["Fit", "Prompt", "chat_prompt", "check_ids", "ids_prompt", "parts_prompt", "raw_prompt"]

Message = dict[str, Any]
Part = tuple[str, bool]

# What fits into one frame to a runner, with room for its JSON.
PROMPT_BYTES_LIMIT = 8 << 20


@dataclass(frozen=True)
class Fit:
    """What may be done to a prompt that is too long."""

    truncate: bool = True
    """Drop the oldest messages."""
    shift: bool = True
    """Cut the middle of what is left."""
    num_keep: int = 4
    """Tokens at the beginning that stay."""
    answer: int | None = None
    """Tokens of the answer that there must be room for; `None`: nobody knows."""
    is_free: bool = False
    """It need not fit: nobody is going to answer it."""


@dataclass
class Prompt:
    """Token ids, the text they came from, and what was done to make them fit."""

    ids: list[int]
    text: str
    warnings: list[str] = field(default_factory=list)


async def raw_prompt(lease: Lease, text: str, fit: Fit) -> Prompt:
    """A text as it is: written by the developer, so control tokens in it count."""
    _check_size(text)
    ids = await lease.tokenize([(text, True)], add_special=True)
    bos = lease.special_tokens.get("bos")
    if bos is not None and ids[:2] == [bos, bos]:  # it began with the text of the token
        del ids[0]
    prompt = Prompt(ids, text)
    _cut(prompt, lease, fit)
    return prompt


async def ids_prompt(lease: Lease, ids: Sequence[int], fit: Fit) -> Prompt:
    """Token ids as they are; raises `ApiError` where the model does not have them."""
    check_ids(lease, ids, "prompt")
    prompt = Prompt(list(ids), "")
    _cut(prompt, lease, fit)
    return prompt


def check_ids(lease: Lease, ids: Sequence[int], name: str) -> None:
    """Refuse ids in a field of the request that the model does not have; raises `ApiError`."""
    vocab_size = int(lease.info.get("vocab_size") or 0)
    if any(id >= vocab_size for id in ids):
        raise ApiError(400, f"field {name!r} has a token beyond the vocabulary of {vocab_size}")


async def parts_prompt(lease: Lease, parts: list[Part], fit: Fit) -> Prompt:
    """A text in parts: what is the template's, and what people wrote."""
    prompt = await _tokenized(lease, parts, ())
    _cut(prompt, lease, fit)
    return prompt


async def chat_prompt(
    lease: Lease,
    render_parts: Callable[[Sequence[Message]], list[Part]],
    messages: Sequence[Message],
    *,
    fit: Fit,
    before: Sequence[int] = (),
) -> Prompt:
    """Messages rendered by a template, after the ids `before`; raises what `render_parts` raises."""

    async def render(kept: Sequence[Message]) -> Prompt:
        return await _tokenized(lease, await asyncio.to_thread(render_parts, kept), before)

    prompt = await render(messages)
    limit = _limit(lease)
    if len(prompt.ids) > limit and fit.truncate and not fit.is_free:
        starts = _starts(messages)
        # The least to drop is searched for by halves: trying each message in turn takes very long for a long one.
        low, high = 0, len(starts) - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (
                (low, middle)
                if len((await render(_kept(messages, starts[middle]))).ids) <= limit
                else (middle + 1, high)
            )
        if starts and starts[low] > 0:
            kept = _kept(messages, starts[low])
            dropped = len(messages) - len(kept)
            prompt = await render(kept)
            prompt.warnings.append(
                f"the {dropped} oldest messages were dropped: "
                f"the prompt did not fit into the context of {limit + 1} tokens"
            )
    _cut(prompt, lease, fit)
    return prompt


def _starts(messages: Sequence[Message]) -> list[int]:
    """Where a shortened conversation may begin: at what a user says, since templates insist on that, or at the last
    message; results of tools stay with the calls that they answer."""
    last = len(messages) - 1
    while last > 0 and messages[last]["role"] == "tool":
        last -= 1
    return [0, *(i for i, message in enumerate(messages) if 0 < i and (message["role"] == "user" or i == last))]


def _kept(messages: Sequence[Message], start: int) -> list[Message]:
    return [*(message for message in messages[:start] if message["role"] == "system"), *messages[start:]]


async def _tokenized(lease: Lease, parts: list[Part], before: Sequence[int]) -> Prompt:
    """Exactly one BOS where the model wants one, and never an EOS."""
    text = "".join(part for part, _ in parts)
    _check_size(text)
    ids = await lease.tokenize(parts)
    special = lease.special_tokens
    bos = special.get("bos")
    if bos is not None and ids[:1] == [bos]:
        del ids[0]
        starts_with_bos = True
    else:
        starts_with_bos = bool(special.get("add_bos")) and bos is not None
    if before:
        ids = [*before, *ids]
    elif starts_with_bos:
        ids = [bos, *ids]  # type: ignore[list-item]
    return Prompt(ids, text)


def _limit(lease: Lease) -> int:
    """Most tokens of a prompt: one place is for the answer."""
    return int(lease.info["context"]) - 1


def _cut(prompt: Prompt, lease: Lease, fit: Fit) -> None:
    limit = _limit(lease)
    count = len(prompt.ids)
    if count <= limit or fit.is_free:
        return
    if not (fit.truncate and fit.shift):
        raise ContextLengthError(
            "the prompt is longer than the context length currently available to the model; shorten the prompt, adjust "
            "the context length in settings, or use a model with a longer context length "
            f"({count} tokens, {limit + 1} available)",
            prompt_tokens=count,
            context=limit + 1,
        )
    special = lease.special_tokens
    keep = min(fit.num_keep + bool(special.get("add_bos")), limit // 2)
    # As in Ollama half of what is not kept stays free for the answer, but no more than it may take.
    free = max((limit + 1 - keep) // 2, 1)
    total = limit + 1 - (free if fit.answer is None else min(free, max(fit.answer, 1)))
    tail = max(total - keep, 1)
    prompt.ids = prompt.ids[:keep] + prompt.ids[count - tail :]
    prompt.warnings.append(
        f"the prompt was cut from {count} to {len(prompt.ids)} tokens in its middle: "
        f"it did not fit into the context of {limit + 1}"
    )


def _check_size(text: str) -> None:
    size = len(text) if text.isascii() else len(text.encode(errors="replace"))
    if size > PROMPT_BYTES_LIMIT:
        raise OptionError(f"the prompt has {size:,} bytes, and at most {PROMPT_BYTES_LIMIT:,} are read", name="prompt")
