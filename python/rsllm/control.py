"""Control tokens that are tags of a notation, put back into the text that a model generates.

Control tokens add nothing to generated text, so that none of them reaches a reader. But some notations are made of them
(`[TOOL_CALLS]`, `<|channel|>`), and their parsers must see them. Ids say where they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

__all__ = ["Revealing", "control_ids", "reveal"]

# llama.cpp's types of tokens that are not shown: unknown, control.
_HIDDEN_TYPES = frozenset({2, 3})


def control_ids(texts: Iterable[str], tokens: Sequence[object], types: Sequence[int]) -> dict[int, str]:
    """The ids of those `texts` that are control tokens of a vocabulary (`tokenizer.ggml.tokens` and `.token_type`).

    >>> control_ids(["<think>", "[TOOL_CALLS]"], ["a", "[TOOL_CALLS]", "<think>"], [1, 3, 4])
    {1: '[TOOL_CALLS]'}
    """
    wanted = set(texts)
    return {
        id: token
        for id, (token, kind) in enumerate(zip(tokens, types, strict=False))
        if kind in _HIDDEN_TYPES and isinstance(token, str) and token in wanted
    }


def reveal(text: str, ids: Sequence[int], control: Mapping[int, str]) -> str:
    """A piece of generated text with the control tokens among its ids; `control` is of `control_ids`.

    A piece holds the text of its last token, rarely of more; tokens before that are control tokens, or parts of one
    character. So what is hidden goes before the text, and only behind it where it ends the piece.

    >>> reveal("get", [5, 7], {5: "[TOOL_CALLS]"})
    '[TOOL_CALLS]get'
    """
    if not control or control.keys().isdisjoint(ids):
        return text
    last_shown = max((index for index, id in enumerate(ids) if id not in control), default=-1)
    before = "".join(control[id] for id in ids[: last_shown + 1] if id in control)
    behind = "".join(control[id] for id in ids[last_shown + 1 :])
    return before + text + behind


class _Sequence(Protocol):
    def next_timeout(self, milliseconds: int) -> Any: ...
    def cancel(self) -> None: ...
    def stats(self) -> dict[str, Any]: ...


class Revealing:
    """A running sequence whose pieces show some control tokens.

    They are put in piece by piece: where several were joined before, nobody could tell any more where they stood.
    """

    def __init__(self, generation: _Sequence, control: Mapping[int, str]) -> None:
        self._generation = generation
        self._control = control

    def next_timeout(self, milliseconds: int) -> Any:
        """As the sequence's own."""
        piece = self._generation.next_timeout(milliseconds)
        if not isinstance(piece, tuple):
            return piece
        text, ids, logprobs = piece
        return reveal(text, ids, self._control), ids, logprobs

    def cancel(self) -> None:
        """As the sequence's own."""
        self._generation.cancel()

    def stats(self) -> dict[str, Any]:
        """As the sequence's own."""
        return self._generation.stats()
