"""The download of one blob: parts in parallel, verified before it gets its name.

When an endpoint is exhausted the next one is asked for what is missing. What failure, cancellation or a kill leave
behind is the parts, to go on from. Bytes that have the wrong digest are removed; if some of them were from an earlier
run, the download begins anew once before it gives up.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path

from rsllm.errors import DigestMismatchError, DownloadError
from rsllm.pages import hold_in_large_pages
from rsllm.registry.client import RegistryClient
from rsllm.registry.disk import Disk
from rsllm.registry.endpoints import Endpoint
from rsllm.registry.fetch import Fetcher
from rsllm.registry.parts import Part, PartFiles
from rsllm.registry.settings import RegistrySettings
from rsllm.registry.together import together
from rsllm.store.digest import Digest
from rsllm.store.files import explained, require_space
from rsllm.system import FileLock, sync_folder

__all__ = ["Transfer"]

_LOCK_SECONDS = 0.2


class Transfer:
    """Fetches the blob `digest` of `size` bytes to `path`, from the first of `places` that gives it.

    The `lock` is held meanwhile, so that one process downloads a blob; others wait, and find it there.
    """

    def __init__(
        self,
        digest: Digest,
        size: int,
        path: Path,
        *,
        lock: FileLock,
        client: RegistryClient,
        places: Sequence[Endpoint],
        settings: RegistrySettings,
    ) -> None:
        self.size = size
        self.notes: list[str] = []
        """What went wrong on the way without being the end of it, in order."""
        self._digest = digest
        self._path = path
        self._lock = lock
        self._client = client
        self._places = places
        self._settings = settings
        self._files = PartFiles(path)
        self._parts: list[Part] = []
        self._moved = asyncio.Event()

    @property
    def completed(self) -> int:
        """Bytes that are there."""
        return sum(part.completed for part in self._parts)

    async def run(self) -> None:
        """Raises `DownloadError`, `DigestMismatchError`, `StoreError`; what came stays for the next time."""
        async with self._client:
            await self._acquire()
            try:
                if self._is_there():  # another process has done it meanwhile
                    self._parts = [Part(0, 0, self.size, self.size)]
                else:
                    await self._fetch()
            finally:
                self._lock.release(remove=True)

    async def _acquire(self) -> None:
        with explained(self._lock.path, "lock a download"):
            while not self._lock.acquire(wait=False):
                self._parts = self._files.peek()
                await self._settings.sleep(_LOCK_SECONDS)

    def _is_there(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return self._path.stat().st_size == self.size
        return False

    async def _fetch(self) -> None:
        for number, endpoint in enumerate(self._places, start=1):
            try:
                await self._fetch_from(endpoint)
                return
            except (DownloadError, DigestMismatchError) as error:
                if number == len(self._places):
                    raise
                self.notes.append(f"{endpoint.site}: {error}")

    async def _fetch_from(self, endpoint: Endpoint) -> None:
        """All that is missing, from one place."""
        while True:
            with explained(self._files.data, "prepare a download"):
                self._parts = self._files.load(self.size, self._settings.part_min_bytes, self._settings.part_max_bytes)
            resumed = self.completed
            require_space(self._path.parent, self.size - resumed, f"download {self._digest.short}")
            found = await self._fetch_and_hash(endpoint)
            if found == self._digest.hex:
                await self._hold_in_large_pages()
                return self._place()
            self._files.remove()
            if not resumed:
                raise DigestMismatchError(
                    f"digest mismatch, file must be downloaded again: want {self._digest}, got sha256:{found}",
                    path=str(self._path),
                    expected=str(self._digest),
                    found=f"sha256:{found}",
                )
            self.notes.append(f"what was left of an earlier download of {self._digest.short} was damaged: began anew")

    async def _fetch_and_hash(self, endpoint: Endpoint) -> str:
        with explained(self._files.data, "open a download"):
            disk = Disk(self._files)
        try:
            fetcher = Fetcher(self._client, endpoint, self._digest, self.size, disk, self._settings, self._moved.set)
            await together([fetcher.fetch(self._parts), self._hash_along(disk)])
            await disk.sync()
            return disk.digest()
        finally:
            await disk.close()

    async def _hold_in_large_pages(self) -> None:
        """In a thread that ends with its next page when this is cancelled."""
        cancelled = threading.Event()
        try:
            await asyncio.to_thread(hold_in_large_pages, self._files.data, cancelled.is_set)
        finally:
            cancelled.set()

    async def _hash_along(self, disk: Disk) -> None:
        """Follow the bytes that are there without a gap."""
        hashed = 0
        while hashed < self.size:
            self._moved.clear()
            reached = next((part.position for part in self._parts if not part.done), self.size)
            if reached > hashed:
                await disk.hash_to(reached)
                hashed = reached
            else:
                await self._moved.wait()

    def _place(self) -> None:
        with explained(self._path, "finish a download"):
            self._files.data.replace(self._path)
            self._files.remove_records()
            sync_folder(self._path.parent)
