"""Word wrap on a terminal: text that comes piece by piece, broken between words at the edge.

A piece is shown as soon as it comes, so a word that turns out not to fit is taken back and written again on the next
line. Words longer than a line are left to the terminal. Only what a terminal shows is broken, never what is kept or
piped.
"""

from __future__ import annotations

import shutil
import sys
import unicodedata

__all__ = ["Wrap", "for_terminal"]

_MARGIN = 5
_NARROWEST = 20


def for_terminal(wanted: bool) -> Wrap | None:
    """For an answer on standard output; `None` where that is no terminal, or one too narrow, or nobody wants it."""
    if not wanted or sys.stdout is None or sys.stdout.closed or not sys.stdout.isatty():
        return None
    columns = shutil.get_terminal_size().columns
    return Wrap(columns) if columns >= _NARROWEST else None


class Wrap:
    """Breaks the text of one answer for a terminal of so many columns."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._width = columns - _MARGIN
        self._column = 0
        self._word = ""

    def feed(self, text: str) -> str:
        """What to write for the next piece."""
        return "".join(map(self._character, text))

    def _character(self, character: str) -> str:
        if character in "\r\n":
            self._column, self._word = 0, ""
            return character
        cells = _cells(character)
        if self._column + cells > self._width:
            return self._beyond_the_edge(character, cells)
        self._column += cells
        self._word = "" if character.isspace() else self._word + character
        return character

    def _beyond_the_edge(self, character: str, cells: int) -> str:
        if character.isspace():
            self._column, self._word = 0, ""
            return "\n"
        taken = sum(map(_cells, self._word))
        if taken + cells > self._width - _MARGIN:  # a word as long as a line: the terminal breaks it where it must
            self._column = (self._column + cells) % self._columns
            self._word += character
            return character
        written = f"\x1b[{taken}D\x1b[K\n{self._word}{character}" if taken else f"\n{character}"
        self._word += character
        self._column = taken + cells
        return written


def _cells(character: str) -> int:
    """Columns that a character takes."""
    if unicodedata.combining(character) or unicodedata.category(character) in ("Cf", "Mn", "Me", "Cc"):
        return 0 if character != "\t" else 8
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
