"""JSON in a text that grows: where a value ends, or where it stops being one.

The scanner goes over each character once, however small the pieces are that the text comes in, and it stops at the
first character that cannot be JSON. So prose that begins with a brace is not held back until its brace closes.
"""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["DEPTH_LIMIT", "BrokenJson", "JsonScanner", "load", "without_surrogates"]

DEPTH_LIMIT = 64
"""Deepest nesting that is read: `json` itself recurses."""

# No real number is longer, and a longer one would be scanned over and over while it grows.
_SCALAR_LIMIT = 400
_BLANK = re.compile(r"[ \t\r\n]*")
_IN_STRING = re.compile(r'[^"\\]*')
_SCALAR_RUN = re.compile(r"[-+.\w]*")
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")


class BrokenJson(ValueError):
    """The text is not JSON from `position` on."""

    def __init__(self, position: int, reason: str = "this is not JSON") -> None:
        super().__init__(reason)
        self.position = position


class JsonScanner:
    """Follows one object or list from its opening bracket to its end."""

    def __init__(self, start: int = 0) -> None:
        """`start`: where the value begins."""
        self.start = start
        self._position = start
        self._open: list[str] = []
        # What is expected: "value", "value or end", "key", "key or end", "colon", "comma or end", "string" (inside).
        self._expected = "value"
        self._string_is_key = False

    def scan(self, text: str) -> int | None:
        """Go on to the end of `text`, which begins as it did before. The end of the value once it is there, else
        `None`. Raises `BrokenJson`."""
        while True:
            if self._expected != "string":
                match = _BLANK.match(text, self._position)
                assert match is not None
                self._position = match.end()
            if self._position >= len(text):
                return None
            if self._expected == "string":
                if not self._in_string(text):
                    return None
            elif not self._token(text):
                return None
            if not self._open:
                return self._position

    def _token(self, text: str) -> bool:
        """Take one token; false if it may not be complete yet."""
        character = text[self._position]
        expected = self._expected
        if character in "}]" and expected in ("comma or end", "key or end", "value or end"):
            self._close(character)
        elif expected == "comma or end":
            self._need(character == ",")
            self._expected = "key" if self._open[-1] == "{" else "value"
        elif expected == "colon":
            self._need(character == ":")
            self._expected = "value"
        elif character == '"':
            self._string_is_key = expected.startswith("key")
            self._expected = "string"
        elif expected.startswith("key"):
            self._need(False)
        elif character in "{[":
            self._need(len(self._open) < DEPTH_LIMIT)
            self._open.append(character)
            self._expected = "key or end" if character == "{" else "value or end"
        else:
            return self._scalar(text)
        self._position += 1
        return True

    def _close(self, character: str) -> None:
        self._need(self._open[-1] + character in ("{}", "[]"))
        self._open.pop()
        self._expected = "comma or end"

    def _in_string(self, text: str) -> bool:
        match = _IN_STRING.match(text, self._position)
        assert match is not None
        self._position = match.end()
        rest = text[self._position : self._position + 2]
        if rest.startswith('"'):
            self._position += 1
            self._expected = "colon" if self._string_is_key else "comma or end"
            return True
        if len(rest) < 2:  # the end of what is there, perhaps between a backslash and what it escapes
            return False
        self._position += 2
        return True

    def _scalar(self, text: str) -> bool:
        match = _SCALAR_RUN.match(text, self._position)
        assert match is not None
        self._need(0 < match.end() - self._position <= _SCALAR_LIMIT)
        if match.end() == len(text):
            return False
        self._need(_SCALAR.fullmatch(match[0]) is not None)
        self._position = match.end()
        self._expected = "comma or end"
        return True

    def _need(self, condition: bool) -> None:
        if not condition:
            raise BrokenJson(self._position)


def load(text: str) -> Any:
    """The value of a JSON text; line breaks inside strings are let pass. Raises `ValueError`."""
    try:
        value = json.loads(text, strict=False)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return without_surrogates(value) if "\\u" in text else value


def without_surrogates(value: Any) -> Any:
    r"""Halves of pairs, which JSON can write as `\ud83d` and no encoder takes, become U+FFFD, as in Go."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {without_surrogates(key): without_surrogates(item) for key, item in value.items()}
    return value
