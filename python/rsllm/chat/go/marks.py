"""Which characters of a value people wrote: kept through everything that a template does with text.

What people wrote lies in a private plane of Unicode (`taint`). Whatever looks *into* a text (comparisons, lengths,
indexes) looks at it moved back, and what rewrites characters (JSON, HTML…) rewrites those of the plane likewise and
leaves the result there. So one rendering gives both the text and its marks, and no branch depends on the marks.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping

from rsllm.chat.taint import Taint

__all__ = ["Marks"]

_PRIVATE = re.compile("[\U000f0000-\U0010ffff]")


class Marks:
    """The marks of one rendering; without `taint` there are none."""

    def __init__(self, taint: Taint | None = None) -> None:
        self._taint = taint
        self._back = _way_back(ord(taint.mark("a")) - ord("a")) if taint is not None else {}

    def plain(self, text: str) -> str:
        """`text` as people see it."""
        if self._taint is None or not self._is_marked(text):
            return text
        return text.translate(self._back)

    def mark(self, text: str) -> str:
        """`text` as something that people wrote."""
        return text if self._taint is None else self._taint.mark(text)

    def rewritten(self, text: str, change: Callable[[str], str]) -> str:
        """`change` of the plain text, marked as a whole if any of `text` was."""
        if self._taint is None or not self._is_marked(text):
            return change(text)
        return self._taint.mark(change(self.plain(text)))

    def table(self, escapes: Mapping[str, str]) -> dict[int, str]:
        """For `str.translate`: `escapes` of single characters, also where people wrote them."""
        table = {ord(character): escaped for character, escaped in escapes.items()}
        if self._taint is not None:
            for character, escaped in escapes.items():
                marked = self._taint.mark(character)
                if marked != character:
                    table[ord(marked)] = self._taint.mark(escaped)
        return table

    @staticmethod
    def _is_marked(text: str) -> bool:
        return not text.isascii() and _PRIVATE.search(text) is not None


@functools.lru_cache
def _way_back(plane: int) -> dict[int, int]:
    # A template may look into a long text again and again: a dictionary is some times as fast as a class.
    return {plane + code: code for code in range(0x10000)}
