"""Which characters of a rendered prompt come from the people talking, and which from the template.

Only the template's own text may become control tokens. Searching the prompt for what a user wrote is guesswork: a
template strips it, splits it, escapes it. So the conversation is rendered a second time with each character of each
user's string moved to a private plane of Unicode, one to one. What comes out in that plane is the user's, however the
template cut it, and moved back it must equal the plain rendering; then the marks are exact, to the character.

Blanks, quotes, backslashes and control characters stay, so that stripping, splitting at lines and JSON work as ever;
a control token has none of them only, so nothing is lost. A template that looks into the text (`'</think>' in
content`) may take another branch on moved text; the two renderings differ, and the caller marks less.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from rsllm.errors import TemplateError

__all__ = ["ROLES", "Taint", "map_strings"]

# Words of the protocol and not of the people: templates branch on them, and build control tokens from roles.
ROLES = frozenset({"assistant", "developer", "function", "ipython", "model", "system", "tool", "user"})
_TYPES = frozenset(
    {"array", "boolean", "function", "image", "image_url", "integer", "null", "number", "object", "string", "text"}
)

_PLANES = (0xF0000, 0x100000)  # private use, U+F0000 and U+100000
_PLANE_SIZE = 0x10000


class Taint:
    """A private plane that the texts at hand do not use, and the way there and back."""

    def __init__(self, *texts: str) -> None:
        for plane in _PLANES:
            if not any(plane <= ord(character) < plane + _PLANE_SIZE for text in texts for character in set(text)):
                self._plane = plane
                break
        else:
            raise TemplateError("the messages use both private planes of Unicode, so they cannot be told from control")
        self._there = _table(self._plane)
        marked = f"{chr(self._plane)}-{chr(self._plane + _PLANE_SIZE - 1)}"
        neutral = "".join(map(re.escape, sorted(_NEUTRAL)))
        # Blanks between marked characters belong to them, those at the ends of a run do not.
        self._runs = re.compile(f"[{marked}](?:[{marked}{neutral}]*[{marked}])?")

    def mark(self, text: str) -> str:
        """`text` in the private plane."""
        return text.translate(self._there)

    def parts(self, rendered: str) -> list[tuple[str, bool]]:
        """The rendering moved back and cut into runs: text, and whether it is the template's."""
        parts = []
        end = 0
        for run in self._runs.finditer(rendered):
            parts.append((rendered[end : run.start()], True))
            parts.append((self.unmark(run[0]), False))
            end = run.end()
        parts.append((rendered[end:], True))
        return [part for part in parts if part[0]]

    def unmark(self, text: str) -> str:
        """`text` moved back."""
        return text.translate(_Back(self._plane))


def map_strings(value: Any, change: Callable[[str], str], *, key: str | None = None) -> Any:
    """A copy of nested lists and dictionaries with `change` applied to each string that people may have written."""
    if isinstance(value, str):
        return value if (key == "role" and value in ROLES) or (key == "type" and value in _TYPES) else change(value)
    if isinstance(value, Mapping):
        return {name: map_strings(item, change, key=name) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [map_strings(item, change, key=key) for item in value]
    return value


_NEUTRAL = frozenset(
    character
    for character in map(chr, range(_PLANE_SIZE))
    if character.isspace() or character in '"\\\x7f' or character < " "
)


class _Back:
    """The table of `str.translate` from a private plane."""

    def __init__(self, plane: int) -> None:
        self._plane = plane

    def __getitem__(self, code: int) -> int:
        if self._plane <= code < self._plane + _PLANE_SIZE:
            return code - self._plane
        raise LookupError(code)


def _table(plane: int) -> list[int]:
    if plane not in _TABLES:
        _TABLES[plane] = [
            code if chr(code) in _NEUTRAL or 0xD800 <= code <= 0xDFFF else plane + code for code in range(_PLANE_SIZE)
        ]
    return _TABLES[plane]


_TABLES: dict[int, list[int]] = {}
