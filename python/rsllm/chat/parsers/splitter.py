"""The answer of a model, split into content and tool calls while it comes.

A text is content until an opening tag stands in it. What follows the tag is a body's to read (`bodies`), and becomes
calls, or content again with a warning. Blanks are kept back at the beginning and behind a call, where they belong to
the notation if a call follows; there a call may also stand without any tag.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rsllm.chat.parsers.bodies import BareBody, Body, BodyMaker, End, FencedBody
from rsllm.chat.parsers.parts import Kind, Part, ToolCall, ToolSet, held_back, merged, new_call_id

__all__ = ["Tags", "ToolSplitter"]

_FENCE = "```"
_BLANK = re.compile(r"\s*")
_BETWEEN = re.compile(r"[\s,;]*")


@dataclass(frozen=True)
class Tags:
    """Where bodies begin."""

    opening: Mapping[str, BodyMaker] = field(default_factory=dict)
    """Anywhere in the answer."""
    ignored: tuple[str, ...] = ()
    """Tags that only frame content or calls."""
    first: Mapping[str, BodyMaker | None] = field(default_factory=dict)
    """At the very beginning alone; `None`: ignored."""
    bare: bool = True
    """Calls without any tag count, at the beginning and behind other calls."""


class ToolSplitter:
    """Splits one answer. Feed it pieces, then finish."""

    def __init__(
        self, tags: Tags, tools: ToolSet, *, new_id: Callable[[], str] = new_call_id, first_index: int = 0
    ) -> None:
        """`first_index`: of the first call."""
        self._tags = tags
        self._tools = tools
        self._new_id = new_id
        self._makers: dict[str, BodyMaker | None] = {**dict.fromkeys(tags.ignored), **tags.opening}
        self._pattern = _pattern(self._makers)
        self._buffer = ""
        self._body: Body | None = None
        self._opening = ""
        self._blank = True
        # How many blanks at the beginning of the buffer have been seen: floods of them must not be scanned anew.
        self._blanks = 0
        self._begun = False
        # Something that is no tag, no blank and no call.
        self._said = False
        self._first_index = first_index
        self.calls = 0
        """How many there were."""
        self._parts: list[Part] = []
        self.warnings: list[str] = []
        """Why something that looked like a call is content."""

    def feed(self, text: str) -> list[Part]:
        """What the text so far makes certain, and was not returned before."""
        return self._run(text, final=False)

    def finish(self) -> list[Part]:
        """The rest."""
        return self._run("", final=True)

    def _run(self, text: str, *, final: bool) -> list[Part]:
        self._buffer += text
        self._parts = []
        going = True
        while going:
            if self._body is not None:
                going = self._in_body(self._body, final)
            elif self._blank:
                going = self._in_blank(final)
            else:
                going = self._in_content(final)
        return merged(self._parts)

    # One step in each state; false: nothing more can be done now.

    def _in_blank(self, final: bool) -> bool:
        match = (_BETWEEN if self.calls else _BLANK).match(self._buffer, self._blanks)
        assert match is not None
        self._blanks = match.end()
        rest = self._buffer[match.end() :]
        if not rest:
            if final and self._buffer:
                self._put("markup" if self.calls else "content", len(self._buffer))
            return False
        makers = self._makers if self._begun else {**self._makers, **self._tags.first}
        tag = _longest(rest, makers)
        fence = (_FENCE,) if self._tags.bare else ()
        if not final and held_back(rest, (*makers, *fence)) == len(rest):
            return False
        self._begun = True
        if tag is not None:
            self._open(match.end(), tag, makers[tag])
        elif self._tags.bare and rest.startswith(("{", "[", _FENCE)):
            body: Body = FencedBody(self._tools) if rest.startswith(_FENCE) else BareBody(self._tools)
            self._begin(match.end(), body)
        else:
            self._blank, self._said = False, True
        return True

    def _in_content(self, final: bool) -> bool:
        match = self._pattern.search(self._buffer) if self._pattern is not None else None
        certain = len(self._buffer) - (0 if final else held_back(self._buffer, self._makers))
        if match is None or certain <= match.start():
            self._put("content", certain)
            return False
        self._put("content", match.start())
        self._open(0, match[0], self._makers[match[0]])
        return True

    def _in_body(self, body: Body, final: bool) -> bool:
        end = body.read(self._buffer, final)
        if end is None:
            return False
        raw = self._opening + self._buffer[: end.position]
        self._buffer = self._buffer[end.position :]
        self._body = None
        self._blank = bool(end.calls)
        if end.calls:
            self._parts.append(Part("call", raw, self._called(end)))
        else:
            self._parts.append(Part("content", raw))
            self._said = True
            if end.problem:
                self.warnings.append(f"what looked like a tool call was left in the content: {end.problem}")
        return True

    def _called(self, end: End) -> tuple[ToolCall, ...]:
        first = self._first_index + self.calls
        self.calls += len(end.calls)
        return tuple(
            ToolCall(name, arguments, first + offset, self._new_id())
            for offset, (name, arguments) in enumerate(end.calls)
        )

    def _open(self, blanks: int, tag: str, maker: BodyMaker | None) -> None:
        """Step over a tag that stands behind so many blanks."""
        if maker is None:
            self._put("markup", blanks + len(tag))
            self._blank = self._blank or not self._said
        else:
            self._begin(blanks + len(tag), maker(self._tools))

    def _begin(self, length: int, body: Body) -> None:
        self._opening, self._buffer = self._buffer[:length], self._buffer[length:]
        self._blanks = 0
        self._body = body

    def _put(self, kind: Kind, length: int) -> None:
        if length:
            raw, self._buffer = self._buffer[:length], self._buffer[length:]
            self._blanks = 0
            self._parts.append(Part(kind, raw))


def _pattern(tags: Mapping[str, BodyMaker | None]) -> re.Pattern[str] | None:
    ordered = sorted(tags, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None


def _longest(text: str, tags: Mapping[str, BodyMaker | None]) -> str | None:
    return max((tag for tag in tags if text.startswith(tag)), key=len, default=None)
