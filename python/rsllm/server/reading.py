"""What an answer is made of behind the engine: pieces of thoughts and text, calls, an end; and how it is read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rsllm.chat.parsers import OutputParser, ParserChoice, Part, ToolCall
from rsllm.streams import Token

__all__ = ["Final", "Piece", "Reading", "logprobs_of", "pieces_of"]


@dataclass(frozen=True)
class Piece:
    """A piece of an answer; the one or the other kind of text, or a call."""

    text: str = ""
    thinking: str = ""
    calls: tuple[ToolCall, ...] = ()
    logprobs: list[dict[str, Any]] | None = None


@dataclass(frozen=True)
class Final:
    """The end of an answer."""

    reason: str
    metrics: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    context: list[int] | None = None
    rendered: str | None = None
    """The prompt, where only that was asked for."""


@dataclass(frozen=True)
class Reading:
    """How the replies to a request are read."""

    choice: ParserChoice
    think: bool | str | None = None
    """As it applies to this model."""
    control: Mapping[int, str] = field(default_factory=dict)
    """Control tokens that must be seen, since the notation is made of them."""
    one_call: bool = False
    """The answer ends with its first call."""

    @property
    def hides_thoughts(self) -> bool:
        """Thoughts were not wanted."""
        return self.think is False

    def parser(self, prompt: str) -> OutputParser:
        """For a reply to `prompt`."""
        return self.choice.start(think=None if self.choice.thinks else False, prompt=prompt)

    def answer_parser(self) -> OutputParser:
        """For what comes behind thoughts."""
        return self.choice.start(think=False)

    def may_think(self, prompt: str) -> bool:
        """Whether thoughts may come before an answer to `prompt`."""
        return self.choice.thinks and (not self.hides_thoughts or self._is_opened(prompt))

    def _is_opened(self, prompt: str) -> bool:
        tags = self.choice.thinking
        return self.choice.format.is_harmony or (tags is not None and prompt.rstrip().endswith(tags.open))


def pieces_of(part: Part) -> Iterable[Piece]:
    """What somebody sees of a part; nothing of markup."""
    if part.kind == "thinking":
        yield Piece(thinking=part.text)
    elif part.calls:
        yield from (Piece(calls=(call,)) for call in part.calls)
    elif part.text:
        yield Piece(part.text)


def logprobs_of(token: Token) -> list[dict[str, Any]] | None:
    """The log probabilities of a piece as replies have them."""
    if token.logprobs is None:
        return None
    return [
        {
            **_entry(entry),
            **({"top_logprobs": [_entry(other) for other in entry.top]} if entry.top else {}),
        }
        for entry in token.logprobs
    ]


def _entry(entry: Any) -> dict[str, Any]:
    # JSON has no infinity: a token that cannot come has the smallest logarithm that a float32 can say.
    logprob = entry.logprob if math.isfinite(entry.logprob) else -3.4028235e38
    return {"token": entry.text, "logprob": logprob, "bytes": list(entry.bytes)}
