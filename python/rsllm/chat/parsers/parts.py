"""What a parser makes of a model's text: parts, and the tool calls among them.

Every character that a model puts out ends in the `raw` of exactly one part, in its order. So nothing is lost: what was
no call after all is content, and only what a format itself prescribes (tags, and the blanks beside them) is markup.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Kind", "Part", "ToolCall", "ToolSet", "held_back", "merged", "new_call_id"]

Kind = Literal["thinking", "content", "call", "markup"]
"""What a part is; markup is for nobody to see."""

_ID_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_ID_LENGTH = 8


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a declared tool."""

    name: str
    arguments: dict[str, Any]
    """In the order in which the model wrote them."""
    index: int
    """From 0, within one reply."""
    id: str

    def as_dict(self) -> dict[str, Any]:
        """As a member of `tool_calls` in a native message."""
        return {"id": self.id, "function": {"index": self.index, "name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a model's text."""

    kind: Kind
    raw: str
    """The characters that it was made from."""
    calls: tuple[ToolCall, ...] = ()

    @property
    def text(self) -> str:
        """What a reader sees of it: nothing of calls and markup."""
        return self.raw if self.kind in ("thinking", "content") else ""


class ToolSet:
    """The tools that a request declares: their names, and the types of their parameters."""

    def __init__(self, tools: Iterable[Any] = ()) -> None:
        """`tools` are definitions as in a native request; what has no name is passed over."""
        self._parameters: dict[str, Mapping[str, Any]] = {}
        for tool in tools:
            function = tool.get("function") if isinstance(tool, Mapping) else None
            if isinstance(function, Mapping) and isinstance(function.get("name"), str) and function["name"]:
                parameters = function.get("parameters")
                self._parameters[function["name"]] = parameters if isinstance(parameters, Mapping) else {}

    def __len__(self) -> int:
        return len(self._parameters)

    @property
    def names(self) -> tuple[str, ...]:
        """In the order of their declaration."""
        return tuple(self._parameters)

    def find(self, name: str) -> str | None:
        """The declared name that a model means: itself, or behind the `functions.` that some templates write."""
        for candidate in (name, name.strip(), name.strip().removeprefix("functions.")):
            if candidate in self._parameters:
                return candidate
        return None

    def types(self, tool: str, parameter: str) -> tuple[str, ...]:
        """Types that the schema of a tool allows for a parameter; none where it says nothing."""
        properties = self._parameters.get(tool, {}).get("properties")
        schema = properties.get(parameter) if isinstance(properties, Mapping) else None
        if not isinstance(schema, Mapping):
            return ()
        branches = schema.get("anyOf")
        schemas = [schema, *(branches if isinstance(branches, Sequence) and not isinstance(branches, str) else ())]
        found: list[str] = []
        for one in schemas:
            kind = one.get("type") if isinstance(one, Mapping) else None
            found += [kind] if isinstance(kind, str) else [each for each in kind or () if isinstance(each, str)]
        return tuple(found)


def new_call_id(choose: Callable[[str], str] = random.choice) -> str:
    """An id as Ollama makes them: `call_` and eight of a to z and 0 to 9."""
    return "call_" + "".join(choose(_ID_LETTERS) for _ in range(_ID_LENGTH))


def held_back(text: str, tags: Iterable[str]) -> int:
    """How many characters at the end of `text` can still become one of `tags`.

    >>> held_back("see <tool", ["<tool_call>"])
    5
    """
    longest = 0
    for tag in tags:
        for length in range(min(len(tag) - 1, len(text)), longest, -1):
            if text.endswith(tag[:length]):
                longest = length
                break
    return longest


def merged(parts: Iterable[Part]) -> list[Part]:
    """The same with neighbours of one kind put together, calls excepted; empty ones left out."""
    found: list[Part] = []
    for part in parts:
        if not part.raw and not part.calls:
            continue
        if found and part.kind != "call" and found[-1].kind == part.kind:
            found[-1] = Part(part.kind, found[-1].raw + part.raw)
        else:
            found.append(part)
    return found
