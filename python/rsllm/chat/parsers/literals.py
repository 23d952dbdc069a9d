"""Values in the notations of Python calls and of Gemma's objects, which are not quite JSON.

`f(city='Paris', days=3)` and `call:f{city:<|"|>Paris<|"|>,days:3}`. Read by hand: the text is a stranger's, and
Python's own parser warns, recurses and uses memory without bound.
"""

from __future__ import annotations

import re
from typing import Any

from rsllm.chat.parsers.json_text import DEPTH_LIMIT, load

__all__ = ["LiteralReader"]

_BLANK = re.compile(r"\s*")
_WORD = re.compile(r"[\w.$-]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_QUOTED = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_WORDS = {"true": True, "false": False, "null": None, "none": None}
_DIGITS_LIMIT = 400


class LiteralReader:
    """Reads values one after the other. All methods raise `ValueError` where the text is something else."""

    def __init__(self, text: str, *, quote: str | None = None) -> None:
        """`quote`: a mark that strings stand between, without escapes, beside the usual quotes."""
        self.text = text
        self.position = 0
        self._quote = quote
        self._depth = 0

    def at(self, mark: str) -> bool:
        """Step over `mark`, and blanks before it, if it is next."""
        match = _BLANK.match(self.text, self.position)
        assert match is not None
        if self.text.startswith(mark, match.end()):
            self.position = match.end() + len(mark)
            return True
        return False

    def need(self, mark: str) -> None:
        """Step over `mark`, which must be next."""
        if not self.at(mark):
            raise ValueError(f"{mark!r} expected")

    def word(self) -> str:
        """A name, or a key without quotes."""
        self.at("")
        match = _WORD.match(self.text, self.position)
        if match is None:
            raise ValueError("a name expected")
        self.position = match.end()
        return match[0]

    @property
    def at_end(self) -> bool:
        """Only blanks follow."""
        return not self.text[self.position :].strip()

    def arguments(self, close: str, separator: str) -> dict[str, Any]:
        """Pairs of key and value up to `close`; the opening bracket is behind."""
        found: dict[str, Any] = {}
        while not self.at(close):
            key = self.string() if self._at_string() else self.word()
            self.need(separator)
            found[key] = self.value()
            if not self.at(","):
                self.need(close)
                break
        return found

    def value(self) -> Any:
        """Any value."""
        self._depth += 1
        if self._depth > DEPTH_LIMIT:
            raise ValueError("nested too deeply")
        try:
            if self._at_string():
                return self.string()
            if self.at("{"):
                return self.arguments("}", ":")
            if self.at("["):
                return self._items("]")
            if self.at("("):
                return self._items(")")
            return self._scalar()
        finally:
            self._depth -= 1

    def string(self) -> str:
        """A text between quotes."""
        if self._quote is not None and self.at(self._quote):
            end = self.text.find(self._quote, self.position)
            if end < 0:
                raise ValueError("a text without an end")
            start, self.position = self.position, end + len(self._quote)
            return self.text[start:end]
        self.at("")
        match = _QUOTED.match(self.text, self.position)
        if match is None:
            raise ValueError("a text without an end")
        self.position = match.end()
        return _unescaped(match[0])

    def _at_string(self) -> bool:
        self.at("")
        marks = ('"', "'") if self._quote is None else (self._quote, '"', "'")
        return self.text.startswith(marks, self.position)

    def _items(self, close: str) -> list[Any]:
        found = []
        while not self.at(close):
            found.append(self.value())
            if not self.at(","):
                self.need(close)
                break
        return found

    def _scalar(self) -> Any:
        match = _NUMBER.match(self.text, self.position)
        if match is not None and match.end() - self.position <= _DIGITS_LIMIT:
            self.position = match.end()
            return load(match[0])
        word = self.word()
        if word.lower() not in _WORDS:
            raise ValueError(f"{word[:40]!r} is no value")
        return _WORDS[word.lower()]


def _unescaped(quoted: str) -> str:
    if quoted.startswith('"'):
        try:
            value = load(quoted)
            assert isinstance(value, str)
            return value
        except ValueError:  # Python's escapes are not all JSON's
            pass
    return _ESCAPE.sub(lambda match: _ESCAPES.get(match[1], match[1]), quoted[1:-1])
