"""What follows an opening tag, as it comes: how far it goes and which calls it holds.

A body is asked again and again with a text that has grown, until it knows. What it answers depends on the text alone
and not on the pieces that it came in: it answers when nothing that follows could change the answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rsllm.chat.parsers.calls import CALL_KEYS, Call, NotACall, arguments_of, calls_in, declared
from rsllm.chat.parsers.json_text import BrokenJson, JsonScanner, load
from rsllm.chat.parsers.parts import ToolSet
from rsllm.chat.parsers.readers import Reader, markup

__all__ = ["BareBody", "Body", "End", "FencedBody", "JsonBody", "NamedBody", "RecipientBody", "TagBody", "UntilBody"]

_BLANK = re.compile(r"\s*")
_BETWEEN = re.compile(r"[\s,;]*")
_FENCE = "```"
_FENCE_LANGUAGES = ("json", "tool_call", "tool_code", "")
_NAME_HEAD = re.compile(r"\s*[\w.\-]*\s*(?:\[[\w\-\]\[]*)?\s*")
_NAMED = re.compile(r"\s*([\w.\-]+)\s*(?:\[CALL_ID\][\w\-]*)?\s*(?:\[ARGS\])?\s*")
_NAME_HEAD_LIMIT = 256
_RECIPIENT = re.compile(r"[\w.\-]{1,64}")


@dataclass(frozen=True)
class End:
    """A body's end: the calls in it, or `problem`, for which it is content."""

    position: int
    calls: tuple[Call, ...] = ()
    problem: str | None = None
    """Why it is content; empty where nothing is wrong with that."""


class Body(Protocol):
    """Reads what follows one opening tag."""

    def read(self, text: str, final: bool) -> End | None:
        """`text`: all since the tag. `None`: more is needed, which can only be where `final` is false."""


BodyMaker = Callable[[ToolSet], Body]


class JsonBody:
    """One JSON value or several, up to a closing tag if there is one; a missing tag is let pass."""

    def __init__(
        self, tools: ToolSet, close: tuple[str, ...] = (), *, tool: str | None = None, bare: bool = False
    ) -> None:
        """`tool`: the tool that is called, where the value is its arguments. `bare`: there was no tag, so that a value
        which is no call is an answer and no mistake."""
        self._tools = tools
        self._close = close
        self._tool = tool
        self._bare = bare
        self._scanner: JsonScanner | None = None
        self._values: list[str] = []
        self._end = 0

    def read(self, text: str, final: bool) -> End | None:
        while True:
            if self._scanner is None:
                end = self._between(text, final)
                if end is not None or self._scanner is None:
                    return end
            try:
                position = self._scanner.scan(text)
            except BrokenJson as error:
                return End(error.position, problem="its JSON is broken")
            if position is None:
                return End(len(text), problem="its JSON has no end") if final else None
            self._values.append(text[self._scanner.start : position])
            self._scanner = None
            self._end = position
            if not self._close:
                return self._finished(position)

    def _between(self, text: str, final: bool) -> End | None:
        """Before a value: begins it, or finds that there are no more."""
        match = (_BETWEEN if self._values else _BLANK).match(text, self._end)
        assert match is not None
        rest = text[match.end() : match.end() + max(map(len, self._close), default=1)]
        if rest[:1] in ("{", "[") and rest:
            self._scanner = JsonScanner(match.end())
            return None
        closing = next((close for close in self._close if rest.startswith(close)), None)
        if closing is not None:
            return self._finished(match.end() + len(closing))
        if not final and any(close.startswith(rest) for close in self._close or ("{",)):
            return None
        return self._finished(self._end)

    def _finished(self, position: int) -> End:
        if not self._values:
            return End(position, problem="it holds no JSON")
        try:
            if self._tool is not None:
                calls = [(self._tool, arguments_of(load(text))) for text in self._values]
            else:
                calls = [call for text in self._values for call in calls_in(load(text), self._tools)]
        except NotACall as error:
            return End(position, problem="" if self._bare and not error.meant else str(error))
        except ValueError:
            return End(position, problem="its JSON is broken")
        return End(position, tuple(calls))


class UntilBody:
    """Anything up to a closing tag, for a reader that needs all of it."""

    def __init__(self, tools: ToolSet, close: tuple[str, ...], reader: Reader, *, before: str = "") -> None:
        """`before` belongs to the body though it is part of the opening tag."""
        self._tools = tools
        self._close = close
        self._reader = reader
        self._before = before
        self._searched = 0

    def read(self, text: str, final: bool) -> End | None:
        found = [
            (position, close)
            for close in self._close
            if (position := text.find(close, max(0, self._searched - len(close)))) >= 0
        ]
        self._searched = len(text)
        if not found and not final:
            return None
        position, close = min(found, default=(len(text), ""))
        # A tag that closes what the opening one began is the reader's to see.
        inside = self._before + text[:position] + (close if self._before else "")
        try:
            calls = self._reader(inside, self._tools)
        except NotACall as error:
            return End(position + len(close), problem=str(error))
        except ValueError as error:
            return End(position + len(close), problem=f"it cannot be read: {error}")
        return End(position + len(close), tuple(calls))


class TagBody:
    """JSON if it begins like that, else tags or names for a reader."""

    def __init__(self, tools: ToolSet, close: tuple[str, ...], reader: Reader = markup) -> None:
        self._json: Body = JsonBody(tools, close)
        self._other: Body = UntilBody(tools, close, reader)

    def read(self, text: str, final: bool) -> End | None:
        first = text.lstrip()[:1]
        if not first and not final:
            return None
        return (self._json if first in ("{", "[", "") else self._other).read(text, final)


class NamedBody:
    """A name, then its arguments: `N[ARGS]{…}`, `N{…}`; or a list of calls in JSON. As Mistral's models write."""

    def __init__(self, tools: ToolSet) -> None:
        self._tools = tools
        self._list = JsonBody(tools)
        self._arguments: JsonBody | None = None
        self._head = 0

    def read(self, text: str, final: bool) -> End | None:
        first = text.lstrip()[:1]
        if first in ("{", "["):
            return self._list.read(text, final)
        if self._arguments is None:
            end = self._name(text, final)
            if end is not None or self._arguments is None:
                return end
        end = self._arguments.read(text[self._head :], final)
        return end and End(end.position + self._head, end.calls, end.problem)

    def _name(self, text: str, final: bool) -> End | None:
        brace = text.find("{", 0, _NAME_HEAD_LIMIT + 1)
        head = text[: brace if brace >= 0 else _NAME_HEAD_LIMIT + 1]
        possible = _NAME_HEAD.match(head)
        assert possible is not None
        if possible.end() < len(head) or len(head) > _NAME_HEAD_LIMIT:
            return End(possible.end(), problem="a name and arguments should follow")
        if brace < 0:
            return End(len(text), problem="the arguments are missing") if final else None
        match = _NAMED.fullmatch(head)
        try:
            if match is None:
                raise NotACall("a name and arguments should follow")
            self._arguments = JsonBody(self._tools, tool=declared(match[1], self._tools))
        except NotACall as error:
            return End(brace, problem=str(error))
        self._head = brace
        return None


class RecipientBody:
    """A name, a line break and arguments in JSON, as functionary writes. What begins otherwise is an answer; at the
    beginning of a reply, where there is no tag (`first`), also one that may be a call without any."""

    def __init__(self, tools: ToolSet, *, first: bool = False) -> None:
        self._tools = tools
        self._first = first
        self._arguments: Body | None = None
        self._problem: str | None = None
        self._head = 0

    def read(self, text: str, final: bool) -> End | None:
        if self._arguments is None:
            end = self._begun(text, final)
            if end is not None or self._arguments is None:
                return end
        end = self._arguments.read(text[self._head :], final)
        if end is None:
            return None
        return End(end.position + self._head, () if self._problem else end.calls, self._problem or end.problem)

    def _begun(self, text: str, final: bool) -> End | None:
        """Before the arguments: begins them, or finds that there are none."""
        if self._first and text.startswith(("{", "[", _FENCE)):
            self._arguments = FencedBody(self._tools) if text.startswith(_FENCE) else BareBody(self._tools)
            return None
        name, newline, rest = text.partition("\n")
        if not newline and not final and (not name or _RECIPIENT.fullmatch(name)):
            return None
        if not newline or not _RECIPIENT.fullmatch(name):
            return End(0, problem="")
        tool = self._tools.find(name)
        if tool is None:
            if not rest.strip() and not final:
                return None
            if not rest.lstrip().startswith("{"):
                return End(0, problem="")  # a word on a line of its own
            self._problem = f"there is no tool {name!r}"
        self._arguments = JsonBody(self._tools, tool=tool or name)
        self._head = len(name) + 1
        return None


class FencedBody:
    """JSON in a fence of three backticks. The fence is part of the body; so is what begins like one and is none."""

    def __init__(self, tools: ToolSet) -> None:
        self._tools = tools
        self._inside: BareBody | None = None
        self._start = 0
        self._end: End | None = None

    def read(self, text: str, final: bool) -> End | None:
        if self._inside is None:
            opened = self._open(text, final)
            if opened is not None or self._inside is None:
                return opened
        if self._end is None:
            end = self._inside.read(text[self._start :], final)
            if end is None:
                return None
            self._end = End(end.position + self._start, end.calls, end.problem)
        if not self._end.calls:
            return self._end
        return self._closed(text, final, self._end)

    def _open(self, text: str, final: bool) -> End | None:
        match = _BLANK.match(text)
        assert match is not None
        rest = text[match.end() :]
        line, newline, _ = rest.partition("\n")
        heads = [_FENCE + language for language in _FENCE_LANGUAGES]
        short = len(line) < _NAME_HEAD_LIMIT
        if newline and short and line.rstrip() in heads:
            self._inside = BareBody(self._tools)
            self._start = match.end() + len(line) + 1
            return None
        possible = line.rstrip() in heads or any(head.startswith(line) for head in heads)
        if not newline and possible and not final and short:
            return None
        return End(match.end() + (len(_FENCE) if rest.startswith(_FENCE) else 0), problem="")

    def _closed(self, text: str, final: bool, end: End) -> End | None:
        """The closing fence, if it is there."""
        match = _BLANK.match(text, end.position)
        assert match is not None
        rest = text[match.end() : match.end() + len(_FENCE)]
        if rest == _FENCE:
            return End(match.end() + len(_FENCE), end.calls)
        return None if _FENCE.startswith(rest) and not final else end


class BareBody:
    """JSON without any tag. It is let go as content as soon as it cannot be a call: at the first key of its object."""

    def __init__(self, tools: ToolSet) -> None:
        self._json = JsonBody(tools, bare=True)
        self._keys = CALL_KEYS | set(tools.names)
        self._sure = False

    def read(self, text: str, final: bool) -> End | None:
        if not self._sure:
            verdict = self._looks_like_a_call(text)
            if verdict is None:
                return End(len(text), problem="") if final else None
            if not verdict:
                return End(_first(text), problem="")
            self._sure = True
        return self._json.read(text, final)

    def _looks_like_a_call(self, text: str) -> bool | None:
        match = re.match(r"\s*(?:\[\s*)?(\{\s*)?", text)
        assert match is not None
        rest = text[match.end() :]
        if match[1] is None:
            return False if rest else None
        if not rest:
            return None
        key, quote, _ = rest[1:].partition('"')
        if rest[0] != '"' or (quote and key not in self._keys):
            return False
        if quote:
            return True
        return None if any(known.startswith(key) for known in self._keys) else False


def _first(text: str) -> int:
    """The position behind the first character that is not blank, which is let go."""
    return len(text) - len(text.lstrip()) + 1
