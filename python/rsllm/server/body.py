"""The members of a request's body: JSON as clients really send it, taken field by field.

A body is read whatever its Content-Type says. Names of fields match in any case, the exact one first; a field that is
not known is no error, but the reply says so in its `warnings`. A value of the wrong type is a 400 that names the field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from rsllm.chat.parsers.json_text import without_surrogates
from rsllm.options import OLLAMA_NAMES, OPTIONS
from rsllm.server.errors import ApiError

__all__ = ["DEPTH_LIMIT", "Body", "refuse", "refuse_constant"]

DEPTH_LIMIT = 200


class Body:
    """The members of a request, taken one after the other; `unknown` are those that nobody asked for."""

    def __init__(self, members: Mapping[str, Any]) -> None:
        self._members = dict(members)
        self._by_lower = {name.lower(): name for name in reversed(list(members))}
        self._taken: set[str] = set()
        self._known: set[str] = set()

    @classmethod
    def parse(cls, data: bytes) -> Body:
        """Read the first JSON value of a body, which must be an object; 400 where it is none."""
        if not data.strip():
            raise ApiError(400, "missing request body")
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise ApiError(400, f"the body is not UTF-8: byte {error.start} is {data[error.start]:#04x}") from None
        decoder = json.JSONDecoder(parse_constant=refuse_constant)
        try:
            value, _ = decoder.raw_decode(text.lstrip())
        except (ValueError, RecursionError) as error:
            raise ApiError(400, f"the body is not JSON: {str(error) or 'too deep'}"[:300]) from None
        if not isinstance(value, dict):
            raise ApiError(400, f"the body is {_kind(value)}, not an object")
        if "\\u" in text:
            value = without_surrogates(value)
        _check_depth(value)
        return cls(value)

    def take(self, *names: str) -> Any:
        """The value of a field, by the first of its names that is there; `None` where it is absent or null."""
        self._known.update(names)
        for name in names:
            found = name if name in self._members else self._by_lower.get(name.lower())
            if found is not None:
                self._taken.update(other for other in self._members if other.lower() == name.lower())
                if self._members[found] is not None:
                    return self._members[found]
        return None

    def text(self, *names: str, default: str = "") -> str:
        """A text, by the first of its names that says something: Ollama's client sends `name` and an empty `model`."""
        value = None
        for name in names:
            if (found := self.take(name)) is not None:
                value = found if isinstance(found, str) else refuse(name, "a text", found)
            if value:
                break
        return default if value is None else value

    def flag(self, name: str, default: bool) -> bool:
        value = self.take(name)
        if value is None:
            return default
        return value if isinstance(value, bool) else refuse(name, "true or false", value)

    def count(self, name: str) -> int | None:
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        return value if isinstance(value, int) and not isinstance(value, bool) else refuse(name, "a number", value)

    def mapping(self, name: str) -> dict[str, Any]:
        value = self.take(name)
        if value is None:
            return {}
        return value if isinstance(value, dict) else refuse(name, "an object", value)

    def items(self, name: str) -> list[Any]:
        value = self.take(name)
        if value is None:
            return []
        return value if isinstance(value, list) else refuse(name, "a list", value)

    def members(self) -> dict[str, Any]:
        """All of them, names in lower case where they match nothing in their own."""
        self._taken.update(self._members)
        return {name.lower(): value for name, value in self._members.items() if value is not None}

    def unknown(self) -> list[str]:
        """What to say of the fields that were not taken."""
        import difflib

        said = []
        known = sorted(self._known)
        for name in self._members:
            if name in self._taken:
                continue
            shown = name[:60]
            if name in OPTIONS or name in OLLAMA_NAMES or name == "num_ctx":
                said.append(f"{shown!r} has no effect there: it belongs in 'options'")
                continue
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            said.append(f"unknown field {shown!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
        return said[:20]


def refuse(name: str, expected: str, value: Any) -> NoReturn:
    """A field of the wrong type."""
    raise ApiError(400, f"field {name!r} must be {expected}, not {_kind(value)}")


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEPTH_LIMIT):
        level = [
            item
            for holder in level
            if isinstance(holder, (dict, list))
            for item in (holder.values() if isinstance(holder, dict) else holder)
            if isinstance(item, (dict, list))
        ]
        if not level:
            return
    raise ApiError(400, f"the body is nested deeper than {DEPTH_LIMIT} levels")


def refuse_constant(name: str) -> NoReturn:
    """For `json`'s `parse_constant`: what JSON does not know."""
    raise ValueError(f"{name} is not a number")


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, (int, float)):
        return "a number"
    return "a text" if isinstance(value, str) else "a list" if isinstance(value, list) else "an object"
