"""gpt-oss's replies: messages on channels, each with a header, split while they come.

`<|channel|>analysis<|message|>` thinks, `final` answers, and any channel with a recipient (`to=functions.NAME`) calls a
tool. The prompt ends with `<|start|>assistant`, so a reply begins within a header.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from rsllm.chat.parsers.calls import NotACall, arguments_of
from rsllm.chat.parsers.parts import Kind, Part, ToolCall, ToolSet, held_back, merged, new_call_id
from rsllm.chat.parsers.splitter import Tags, ToolSplitter

__all__ = ["END_OF_THOUGHTS", "FINAL_HEAD", "NEXT_MESSAGE", "SPECIAL_TEXTS", "HarmonySplitter", "harmony_names"]

_START, _MESSAGE, _CHANNEL = "<|start|>", "<|message|>", "<|channel|>"
_ENDS = ("<|end|>", "<|return|>", "<|call|>", _START)
SPECIAL_TEXTS = (_MESSAGE, _CHANNEL, "<|constrain|>", *_ENDS)
"""Control tokens that the parser needs to see in the text."""
END_OF_THOUGHTS = "<|end|>"
NEXT_MESSAGE = _START + "assistant"
FINAL_HEAD = _CHANNEL + "final" + _MESSAGE
"""What makes the next message the answer, behind `NEXT_MESSAGE` or a prompt."""

_HEADER_LIMIT = 512
_END = re.compile("|".join(map(re.escape, _ENDS)))
_LONGEST_END = max(map(len, _ENDS))
_ROLE = "assistant"
_FIRST = (_CHANNEL, "<|constrain|>", _MESSAGE, "to=", _ROLE + _CHANNEL, _ROLE + " to=")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL_NAME = re.compile(re.escape(_CHANNEL) + r"\s*(\w+)")
_BLANK = re.compile(r"\s*")


class HarmonySplitter:
    """Splits one reply. Feed it pieces, then finish."""

    def __init__(self, tools: ToolSet, *, new_id: Callable[[], str] = new_call_id) -> None:
        self._tools = tools
        self._new_id = new_id
        self._names = harmony_names(tools)
        self._buffer = ""
        self._searched = 0
        # "begin", "header", "thinking", "content", "call", "between" (behind an end).
        self._state = "begin"
        self._header = ""
        self._answer: ToolSplitter | None = None
        self._calls = 0
        self.warnings: list[str] = []
        """Why something that looked like a call is content."""

    @property
    def is_thinking(self) -> bool:
        """The answer has not begun yet."""
        return self._state in ("begin", "header", "thinking")

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
            before = (self._state, len(self._buffer))
            parts += self._step(final)
            if before == (self._state, len(self._buffer)):
                break
        if final:
            parts += self._answered()
        return merged(parts)

    def _step(self, final: bool) -> list[Part]:
        if self._state in ("begin", "between"):
            return self._before_header(final)
        if self._state == "header":
            return self._in_header(final)
        return self._in_message(final)

    def _before_header(self, final: bool) -> list[Part]:
        match = _BLANK.match(self._buffer)
        assert match is not None
        rest = self._buffer[match.end() :]
        begun = next((end for end in _ENDS if rest.startswith(end)), None)
        if begun is not None:
            self._state = "header" if begun == _START else "between"
            return [self._take("markup", match.end() + len(begun))]
        # A reply begins within a header; behind an end there must be a start.
        heads = _FIRST if self._state == "begin" else ()
        if rest.startswith(heads):
            self._state = "header"
        elif final or not any(head.startswith(rest) for head in (*_ENDS, *heads)):
            self._state = "content"
        return []

    def _in_header(self, final: bool) -> list[Part]:
        position = self._buffer.find(_MESSAGE)
        if 0 <= position <= _HEADER_LIMIT:
            self._header = self._buffer[:position]
            self._state = self._kind()
            return [self._take("markup", position + len(_MESSAGE))]
        if final or len(self._buffer) > _HEADER_LIMIT + len(_MESSAGE):
            self._state = "content"
        return []

    def _kind(self) -> str:
        if _RECIPIENT.search(self._header):
            return "call"
        channel = _CHANNEL_NAME.search(self._header)
        return "thinking" if channel and channel[1] == "analysis" else "content"

    def _in_message(self, final: bool) -> list[Part]:
        match = _END.search(self._buffer, max(0, self._searched - _LONGEST_END))
        if match is None:
            self._searched = len(self._buffer)
            if self._state == "call":
                return self._call(len(self._buffer), "") if final else []
            length = len(self._buffer) - (0 if final else held_back(self._buffer, _ENDS))
            return self._text(length)
        position, end = match.start(), match[0]
        parts = self._call(position, end) if self._state == "call" else self._text(position)
        if self._state != "call":
            parts += [*self._answered(), self._take("markup", len(end))]
        self._state = "header" if end == _START else "between"
        return parts

    def _text(self, length: int) -> list[Part]:
        part = self._take("thinking", length)
        if self._state == "thinking":
            return [part]
        if self._answer is None:
            # Made to answer with a constrained text, the model calls a tool by bare JSON in its final message.
            tags = Tags(bare=bool(self._tools))
            self._answer = ToolSplitter(tags, self._tools, new_id=self._new_id, first_index=self._calls)
        return self._answer.feed(part.raw)

    def _answered(self) -> list[Part]:
        """The end of a message that was content."""
        if self._answer is None:
            return []
        parts = self._answer.finish()
        self.warnings += self._answer.warnings
        self._calls += self._answer.calls
        self._answer = None
        return parts

    def _call(self, length: int, end: str) -> list[Part]:
        body = self._take("content", length)
        tag = self._take("markup", len(end))
        match = _RECIPIENT.search(self._header)
        recipient = match[1].removeprefix("functions.") if match else ""
        try:
            name = self._tools.find(recipient) or self._names.get(recipient)
            if name is None:
                raise NotACall(f"there is no tool {recipient[:60]!r}")
            arguments = arguments_of(body.raw)
        except NotACall as error:
            self.warnings.append(f"what looked like a tool call was left in the content: {error}")
            return [body, tag]
        call = ToolCall(name, arguments, self._calls, self._new_id())
        self._calls += 1
        return [Part("call", body.raw + tag.raw, (call,))]

    def _take(self, kind: Kind, length: int) -> Part:
        raw, self._buffer = self._buffer[:length], self._buffer[length:]
        self._searched = 0
        return Part(kind, raw)


def harmony_names(tools: ToolSet) -> dict[str, str]:
    """Names as they are rewritten for gpt-oss, and the declared ones that they stand for.

    >>> harmony_names(ToolSet([{"function": {"name": "get-weather"}}]))
    {'get_weather': 'get-weather'}
    """
    found: dict[str, str] = {}
    for name in tools.names:
        plain = re.sub(r"[^\w$]", "", re.sub(r"[ .-]", "_", name), flags=re.ASCII) or "_"
        plain = f"_{plain}" if plain[0].isdigit() else plain
        unique, number = plain, 1
        while unique in found:
            number += 1
            unique = f"{plain}_{number}"
        found[unique] = name
    return found
