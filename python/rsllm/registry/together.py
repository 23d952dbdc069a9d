"""Several coroutines at once, as one: the first failure ends all of them and is what is raised."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

__all__ = ["together"]


async def together(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all to their end; on a failure, or when this is cancelled, none of them is left running."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    if not tasks:
        return
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
