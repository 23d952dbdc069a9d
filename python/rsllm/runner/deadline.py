"""When a request must be over: a limit on all that is waited for on its behalf."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from rsllm.errors import RequestTimeoutError

__all__ = ["Deadline"]

T = TypeVar("T")


class Deadline:
    """When a request must be over."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._at = None if seconds is None else asyncio.get_running_loop().time() + seconds

    async def wait(self, thing: Awaitable[T]) -> T:
        """The result of a coroutine or future, or a `RequestTimeoutError`."""
        if self._at is None:  # each token comes by here
            return await thing
        try:
            async with asyncio.timeout_at(self._at) as timeout:
                return await thing
        except TimeoutError:
            if not timeout.expired():
                raise
            raise RequestTimeoutError(
                f"the request took longer than {self._seconds:g} s and was cancelled", seconds=self._seconds
            ) from None
