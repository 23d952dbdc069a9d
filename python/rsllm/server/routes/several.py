"""Several streams at once, as one of pairs; with the first failure, or when it is closed, all of them end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

__all__ = ["interleaved"]

# Items of each stream that may wait: one that nobody reads is not to be read on.
_AHEAD = 16


async def interleaved(streams: Sequence[AsyncIterator[Any]]) -> AsyncIterator[tuple[int, Any]]:
    """The items of all streams as they come, each with the number of its stream; raises what one of them raises."""
    items: asyncio.Queue[tuple[int, Any, BaseException | None]] = asyncio.Queue(_AHEAD * len(streams))
    end = object()

    async def follow(number: int, stream: AsyncIterator[Any]) -> None:
        try:
            async for item in stream:
                await items.put((number, item, None))
            await items.put((number, end, None))
        except Exception as error:
            await items.put((number, end, error))
        finally:
            await stream.aclose()  # type: ignore[attr-defined]

    tasks = [asyncio.create_task(follow(number, stream)) for number, stream in enumerate(streams)]
    try:
        left = len(streams)
        while left:
            number, item, error = await items.get()
            if error is not None:
                raise error
            if item is end:
                left -= 1
            else:
                yield number, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
