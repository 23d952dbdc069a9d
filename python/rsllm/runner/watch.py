"""Who is told what becomes of requests, so that others can count and measure.

The pool calls an observer in the task of the request itself, so context variables are the caller's; a watch of one
sequence is called by the task that reads the runner's frames, as they come, whoever reads the pieces and how slowly.
"""

from __future__ import annotations

from typing import Protocol

from rsllm.streams import Stats

__all__ = ["Observer", "Watch"]


class Watch(Protocol):
    """One sequence."""

    def piece(self, tokens: int) -> None:
        """A piece has come, of so many tokens."""
        ...

    def ended(self, stats: Stats) -> None:
        """It has come to its end, not cancelled; the engine's figures."""
        ...


class Observer(Protocol):
    """What happens to requests. Names are those that callers gave to models."""

    def asked(self, name: str) -> None:
        """Somebody wants a model."""
        ...

    def granted(self, name: str, seconds: float) -> None:
        """It is there, after so long."""
        ...

    def placed(self, name: str, seconds: float) -> None:
        """The request may compute, after waiting for so long."""
        ...

    def computed(self, name: str, tokens: int) -> None:
        """Tokens have been read, and none generated."""
        ...

    def begun(self, name: str, prompt_tokens: int) -> Watch:
        """A sequence begins."""
        ...
