"""Completion in bash, which takes the colon in the name of a model for the end of a word.

So a name comes in pieces, which are put together here, and only what stands behind its last colon is given back.
"""

from __future__ import annotations

from click.shell_completion import BashComplete, CompletionItem, add_completion_class

__all__ = ["register"]


class _Bash(BashComplete):
    """click's, for words with colons."""

    _given = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        """The whole words before the one that is to be completed, and that one."""
        arguments, incomplete = super().get_completion_args()
        words = _whole([*arguments, incomplete])
        before, colon, _ = words[-1].rpartition(":")
        self._given = before + colon
        return words[:-1], words[-1]

    def format_completion(self, item: CompletionItem) -> str:
        """A completion as bash wants it: without what is there before the last colon."""
        return f"{item.type},{str(item.value).removeprefix(self._given)}"


def _whole(words: list[str]) -> list[str]:
    """Words, with those that bash has cut at a colon in one piece."""
    whole: list[str] = []
    goes_on = False
    for word in words:
        if word == ":" and whole:
            whole[-1] += word
            goes_on = True
        elif goes_on:
            whole[-1] += word
            goes_on = False
        else:
            whole.append(word)
    return whole


def register() -> None:
    """Use it."""
    add_completion_class(_Bash)
