"""One download for all who want a blob: pulls of this process that need the same digest join the one that runs.

Each gets its progress and its end. When the last of them has gone the download stops, and its parts stay. Other
processes are kept apart by the lock that a `Transfer` holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rsllm.registry.transfer import Transfer

__all__ = ["Shared", "shared"]


@dataclass
class Shared:
    """A download that somebody takes part in; `task` ends when it does."""

    transfer: Transfer
    task: asyncio.Task[None]
    waiters: int = 0


_running: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Path, Shared]] = weakref.WeakKeyDictionary()
"""By event loop, because a task belongs to one; by path, because the path is the store and the digest."""


@asynccontextmanager
async def shared(path: Path, start: Callable[[], Transfer]) -> AsyncIterator[Shared]:
    """The download of the blob at `path`: the one that runs, or the one that `start` makes."""
    downloads = _running.setdefault(asyncio.get_running_loop(), {})
    found = downloads.get(path)
    if found is None or found.task.done():
        transfer = start()
        found = downloads[path] = Shared(transfer, asyncio.ensure_future(transfer.run()))
    found.waiters += 1
    try:
        yield found
    finally:
        found.waiters -= 1
        if found.waiters == 0:
            if downloads.get(path) is found:
                del downloads[path]
            found.task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await found.task
