"""Getting the bytes of one blob from one endpoint into its parts.

A server may lie about anything: which range it sends, how long it is, how long the blob is. Each answer is checked
against what was asked for and against the size in the manifest before a byte of it is written, and cut off where it
goes on for longer than it said. Which bytes they are, the digest tells in the end.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence

import httpx2

from rsllm.errors import DownloadError, RegistryError
from rsllm.registry.client import RegistryClient, check_answer, read_body
from rsllm.registry.disk import Disk
from rsllm.registry.endpoints import Endpoint
from rsllm.registry.parts import Part
from rsllm.registry.patience import NoRangesError, worth_retrying
from rsllm.registry.settings import RegistrySettings
from rsllm.registry.together import together
from rsllm.store.digest import Digest

__all__ = ["Fetcher"]

_PROGRESS_BYTES = 2**20
"""An attempt that brought as much counts as the first failure again, not as one more."""
_ERROR_BYTES = 64 * 1024
_WRITE_BYTES = 2**20
_WRITE_SECONDS = 0.1
_CONTENT_RANGE = re.compile(r"bytes\s+(\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")


class Fetcher:
    """Fetches missing bytes of a blob of `size` bytes; `moved` is called when some have been written."""

    def __init__(
        self,
        client: RegistryClient,
        endpoint: Endpoint,
        digest: Digest,
        size: int,
        disk: Disk,
        settings: RegistrySettings,
        moved: Callable[[], None],
    ) -> None:
        self._client = client
        self._endpoint = endpoint
        self._digest = digest
        self._size = size
        self._disk = disk
        self._settings = settings
        self._moved = moved

    async def fetch(self, parts: Sequence[Part]) -> None:
        """Complete all parts; raises `DownloadError` where that cannot be had, and leaves them resumable."""
        lanes = asyncio.Semaphore(self._settings.parallel)

        async def one(part: Part) -> None:
            async with lanes:
                await self._patiently([part], lambda: self._request_part(part))

        try:
            await together(one(part) for part in parts if not part.done)
        except NoRangesError:
            await self._patiently(parts, lambda: self._request_whole(parts))

    async def _patiently(self, parts: Sequence[Part], request: Callable[[], Awaitable[None]]) -> None:
        """Repeat a request until the parts are complete, or until it has failed too often."""
        failures = 0
        while not all(part.done for part in parts):
            before = sum(part.completed for part in parts)
            try:
                await request()
            except DownloadError as error:
                gained = sum(part.completed for part in parts) - before
                if not worth_retrying(error):
                    raise
                if gained and isinstance(error.__cause__, httpx2.ReadTimeout):
                    continue  # it stalled; it need not wait to go on
                failures = 1 if gained >= _PROGRESS_BYTES else failures + 1
                if failures >= self._settings.attempts:
                    raise DownloadError(f"max retries exceeded: {error}", hint=error.hint) from error
                await self._settings.sleep(2.0 ** (failures - 1))

    async def _request_part(self, part: Part) -> None:
        """One request for what is missing of a part; a server may send less of it than was asked for."""
        url, headers = self._endpoint.blob(self._digest), {"Range": f"bytes={part.position}-{part.end - 1}"}
        site = self._endpoint.site
        async with self._client.send("GET", url, registry=site, headers=headers) as response:
            elsewhere = self._elsewhere(response)
            if elsewhere is None:
                await self._take(part, response)
        if elsewhere is not None:
            async with self._client.send("GET", elsewhere, registry=site, headers=headers) as response:
                await self._take(part, response)

    async def _request_whole(self, parts: Sequence[Part]) -> None:
        """One answer for all parts; the bytes that are there already are passed over."""
        url = self._endpoint.blob(self._digest)
        async with self._client.send("GET", url, registry=self._endpoint.site) as response:
            await self._check(response)
            await self._write([part for part in parts if not part.done], 0, self._size, response)

    def _elsewhere(self, response: httpx2.Response) -> str | None:
        """Where an answer of 200 says that the blob is, if it is not in the answer itself."""
        location = response.headers.get("Location")
        if response.status_code != 200 or not location or _length(response) == self._size:
            return None
        target = response.request.url.join(location)
        return str(target) if target != response.request.url else None

    async def _take(self, part: Part, response: httpx2.Response) -> None:
        await self._check(response)
        if response.status_code == 206:
            await self._write([part], part.position, self._range_length(part, response), response)
        elif part.position == 0 and part.size == self._size:
            await self._write([part], 0, self._size, response)
        else:
            raise NoRangesError("the registry does not send ranges")

    async def _check(self, response: httpx2.Response) -> None:
        status, short = response.status_code, self._digest.short
        if status not in (200, 206):
            check_answer(status, await read_body(response, _ERROR_BYTES), f"blob {short}")
            raise RegistryError(f"blob {short}: the registry answers with status {status}", status=status)
        announced = _length(response)
        if status == 200 and announced is not None and announced != self._size:
            raise DownloadError(
                f"the registry sends {announced:,} bytes for {short}, but the manifest says {self._size:,}"
            )

    def _range_length(self, part: Part, response: httpx2.Response) -> int:
        """How many bytes an answer of 206 brings; it must begin where it was asked to, and end no later."""
        value = response.headers.get("Content-Range", "")
        match = _CONTENT_RANGE.fullmatch(value.strip())
        if match is None:
            raise DownloadError(f"the registry sends a range and does not say which: {value[:80]!r}")
        start, end = int(match[1]), int(match[2]) + 1
        if match[3] != "*" and int(match[3]) != self._size:
            raise DownloadError(
                f"{self._digest.short} has {int(match[3]):,} bytes at the registry, "
                f"but the manifest says {self._size:,}"
            )
        announced = _length(response)
        honest = start == part.position and start < end <= part.end
        if not honest or (announced is not None and announced != end - start):
            length = "" if announced is None else f" in {announced:,} bytes"
            raise DownloadError(
                f"bytes {part.position}-{part.end - 1} were asked for, and the registry sends {value[:80]!r}{length}"
            )
        return end - start

    async def _write(self, parts: Sequence[Part], start: int, expected: int, response: httpx2.Response) -> None:
        """Write a body of `expected` bytes, which begins at `start` in the blob."""
        writer = _Writer(parts, start, self._disk, self._settings.clock, self._moved)
        received = 0
        try:
            async for chunk in response.aiter_raw():
                received += len(chunk)
                if received > expected:
                    raise DownloadError(f"the registry sends more than the {expected:,} bytes that were asked for")
                await writer.take(chunk)
        finally:
            await writer.flush()
        if received < expected:
            raise DownloadError(f"the answer ended after {received:,} of {expected:,} bytes")


class _Writer:
    """Cuts a stream of bytes into parts: what belongs to none of them, or is there already, is dropped."""

    def __init__(
        self, parts: Sequence[Part], start: int, disk: Disk, clock: Callable[[], float], moved: Callable[[], None]
    ) -> None:
        self._parts = list(parts)
        self._at = start
        self._disk = disk
        self._clock = clock
        self._moved = moved
        self._buffer = bytearray()
        self._flushed = clock()

    async def take(self, chunk: bytes) -> None:
        rest = memoryview(chunk)
        while len(rest) and self._parts:
            part = self._parts[0]
            wanted = part.position + len(self._buffer)
            if self._at < wanted:
                dropped = min(len(rest), wanted - self._at)
                rest, self._at = rest[dropped:], self._at + dropped
                continue
            taken = min(len(rest), part.end - self._at)
            self._buffer += rest[:taken]
            rest, self._at = rest[taken:], self._at + taken
            if self._at == part.end:
                await self.flush()
                self._parts.pop(0)
        if len(self._buffer) >= _WRITE_BYTES or self._clock() - self._flushed >= _WRITE_SECONDS:
            await self.flush()

    async def flush(self) -> None:
        self._flushed = self._clock()
        if self._buffer:
            # Taken before the wait, so that a cancelled one is not followed by the same bytes again.
            data, self._buffer = self._buffer, bytearray()
            await self._disk.write(self._parts[0], data)
            self._moved()


def _length(response: httpx2.Response) -> int | None:
    value = response.headers.get("Content-Length", "")
    return int(value) if value.isascii() and value.isdigit() else None
