"""What a model thinks, told from what it answers, while it comes.

The rules are Ollama's: blanks, perhaps the opening tag, blanks, thoughts up to the closing tag, blanks, the answer. A
text that begins with anything else is an answer and nothing but an answer. Where the prompt ends with the opening tag
the model is thinking from its first character on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rsllm.chat.parsers.parts import Kind, Part, held_back, merged

__all__ = ["ThinkingSplitter", "ThinkingTags"]

_BLANK = re.compile(r"\s*")


@dataclass(frozen=True)
class ThinkingTags:
    """The tags around thoughts."""

    open: str
    close: str


class ThinkingSplitter:
    """Splits one reply into thinking and content. Feed it pieces, then finish."""

    def __init__(self, tags: ThinkingTags, *, inside: bool = False) -> None:
        """`inside`: the prompt ended with the opening tag."""
        self._tags = tags
        self._buffer = ""
        # How many blanks at its beginning have been seen: floods of them must not be scanned anew.
        self._seen = 0
        # "start", "opened" (blanks are markup), "thinking", "closed" (blanks are markup), "content".
        self._state = "opened" if inside else "start"
        # Some models repeat the tag that the prompt has given them.
        self._may_repeat = inside

    @property
    def is_thinking(self) -> bool:
        """The answer has not begun yet."""
        return self._state in ("start", "opened", "thinking")

    def feed(self, text: str) -> list[Part]:
        """What the text so far makes certain, and was not returned before."""
        return self._run(text, final=False)

    def finish(self) -> list[Part]:
        """The rest."""
        return self._run("", final=True)

    def _run(self, text: str, *, final: bool) -> list[Part]:
        self._buffer += text
        parts: list[Part] = []
        while self._buffer:
            state = self._state
            if state == "content":
                parts.append(self._take("content", len(self._buffer)))
            elif state == "thinking":
                parts += self._thoughts(final)
            else:
                parts += self._blanks(final)
            if self._state == state:
                break
        return merged(parts)

    def _blanks(self, final: bool) -> list[Part]:
        match = _BLANK.match(self._buffer, self._seen)
        assert match is not None
        self._seen = match.end()
        rest = self._buffer[match.end() :]
        if self._state == "closed" or (self._state == "opened" and not self._may_repeat):
            if rest:
                self._state = "content" if self._state == "closed" else "thinking"
            return [self._take("markup", match.end())]
        if rest.startswith(self._tags.open):
            self._state, self._may_repeat = "opened", False
            return [self._take("markup", match.end() + len(self._tags.open)), *self._blanks(final)]
        if self._tags.open.startswith(rest) and not final:
            return []
        if self._state == "opened":
            self._may_repeat = False
            return self._blanks(final)
        self._state = "content"
        return []

    def _thoughts(self, final: bool) -> list[Part]:
        close = self._tags.close
        position = self._buffer.find(close)
        if position < 0:
            return [self._take("thinking", len(self._buffer) - (0 if final else held_back(self._buffer, [close])))]
        self._state = "closed"
        return [self._take("thinking", position), self._take("markup", len(close))]

    def _take(self, kind: Kind, length: int) -> Part:
        raw, self._buffer = self._buffer[:length], self._buffer[length:]
        self._seen = 0
        return Part(kind, raw)
