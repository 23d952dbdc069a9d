"""The upload of one blob: mounted from another repository, or sent in parts.

Two kinds of registries take parts differently. Ollama's answers each `PATCH` with 307 and an address to `PUT` the part
to, at a store that needs and gets no credentials; these run in parallel. A plain registry takes the bytes of the
`PATCH` itself, one after another. Which kind it is shows in the first answer. Each answer names the address of the
next step, which must be on the registry's own host and port, because credentials go there.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit, urlunsplit

import httpx2

from rsllm.errors import RegistryError
from rsllm.registry.client import RegistryClient, check_answer, origin_of, read_body, redirect_target
from rsllm.registry.endpoints import Endpoint
from rsllm.registry.parts import Part, plan
from rsllm.registry.patience import ask, insist
from rsllm.registry.settings import RegistrySettings
from rsllm.store.digest import Digest

__all__ = ["Upload"]

_READ_BYTES = 2**18
_ANSWER_BYTES = 64 * 1024


class Upload:
    """Sends the blob at `path` to `place`; `mount_from` is the repository there that may have it already."""

    def __init__(
        self,
        client: RegistryClient,
        place: Endpoint,
        digest: Digest,
        path: Path,
        settings: RegistrySettings,
        *,
        mount_from: str | None = None,
    ) -> None:
        self.size = path.stat().st_size
        self._client = client
        self._place = place
        self._digest = digest
        self._path = path
        self._settings = settings
        self._mount_from = mount_from
        self._parts = plan(self.size, settings.part_min_bytes, settings.part_max_bytes)
        self._sums: dict[int, bytes] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._redirects = False

    @property
    def completed(self) -> int:
        """Bytes that the registry has, or is being sent."""
        return sum(part.completed for part in self._parts)

    async def run(self) -> None:
        """Raises `DownloadError` and its kinds where the registry does not take the blob."""
        if await ask(self._is_there, self._settings):
            return self._all_done()
        await insist(self._send, self._settings)
        self._all_done()

    async def _send(self) -> None:
        """The whole upload, from its beginning."""
        url = await self._begin()
        if url is None:
            return
        try:
            for part in self._parts:
                patch = partial(self._patch, part, url)
                # A registry that takes the bytes itself may have kept some of a part that failed: it begins anew.
                url = await (insist(patch, self._settings) if self._redirects else patch())
            await asyncio.gather(*self._tasks)
            await insist(partial(self._finish, url), self._settings)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._tasks.clear()

    def _all_done(self) -> None:
        for part in self._parts:
            part.completed = part.size

    async def _is_there(self) -> bool:
        url = self._place.blob(self._digest)
        async with self._client.send("HEAD", url, registry=self._place.site) as response:
            if response.status_code == 404:
                return False
            check_answer(response.status_code, b"", f"blob {self._digest.short}")
            return True

    async def _begin(self) -> str | None:
        """Where to send the parts; `None` if the registry had the blob in the other repository."""
        url = f"{self._place.base}/blobs/uploads/"
        if self._mount_from:
            url += "?" + urlencode({"mount": str(self._digest), "from": self._mount_from})
        async with self._client.send("POST", url, registry=self._place.site, content=b"") as response:
            check_answer(response.status_code, await read_body(response, _ANSWER_BYTES), "begin an upload")
            if response.status_code == 201:
                return None
            return self._next(url, response, "Docker-Upload-Location", "Location")

    async def _patch(self, part: Part, url: str) -> str:
        """Send a part, or have it sent; where the next one goes."""
        headers = {**_part_headers(part), "Content-Range": f"{part.offset}-{part.end - 1}", "X-Redirect-Uploads": "1"}
        site, body = self._place.site, self._body(part)
        async with self._client.send(
            "PATCH", url, registry=site, headers=headers, content=body, follow=False
        ) as response:
            answer = await read_body(response, _ANSWER_BYTES)
            if response.status_code != 307:
                check_answer(response.status_code, answer, f"part {part.number} of {self._digest.short}")
                return self._next(url, response, "Docker-Upload-Location", "Location")
            target = redirect_target(url, response)
            following = self._next(url, response, "Docker-Upload-Location")
        self._redirects = True
        while len([task for task in self._tasks if not task.done()]) >= self._settings.parallel:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        self._tasks.append(asyncio.ensure_future(insist(partial(self._put, part, target), self._settings)))
        return following

    async def _put(self, part: Part, target: str) -> None:
        """Send a part to the address that the registry gave for it, without credentials."""
        headers, body = _part_headers(part), self._body(part)
        async with self._client.send(
            "PUT", target, registry="", headers=headers, content=body, follow=False
        ) as response:
            answer = await read_body(response, _ANSWER_BYTES)
            check_answer(response.status_code, answer, f"part {part.number} of {self._digest.short}")

    async def _finish(self, url: str) -> None:
        sums = b"".join(self._sums[part.number] for part in self._parts)
        etag = f"{hashlib.md5(sums, usedforsecurity=False).hexdigest()}-{len(self._parts)}"
        target = _with_query(url, digest=str(self._digest), etag=etag)
        status, answer = await self._client.read(
            "PUT", target, registry=self._place.site, limit=_ANSWER_BYTES, content=b"", follow=False
        )
        check_answer(status, answer, f"finish the upload of {self._digest.short}")

    def _body(self, part: Part) -> Callable[[], AsyncIterator[bytes]]:
        """A function that reads the part anew each time it is called, and notes its MD5 at the end."""

        async def read() -> AsyncIterator[bytes]:
            part.completed = 0
            checksum = hashlib.md5(usedforsecurity=False)
            with self._path.open("rb") as file:
                file.seek(part.offset)
                left = part.size
                while left:
                    data = await asyncio.to_thread(file.read, min(_READ_BYTES, left))
                    if not data:
                        raise RegistryError(f"the blob {self._digest.short} became shorter while it was sent")
                    checksum.update(data)
                    left -= len(data)
                    yield data
                    part.completed += len(data)
            self._sums[part.number] = checksum.digest()

        return read

    def _next(self, url: str, response: httpx2.Response, *names: str) -> str:
        """The address of the next step; raises `RegistryError` where it is on another host, or not given."""
        location = next((value for name in names if (value := response.headers.get(name))), None)
        if location is None:
            raise RegistryError("the registry does not say where the upload goes on", status=response.status_code)
        target = urljoin(url, location)
        site, found = origin_of(self._place.site), origin_of(target)
        if site[0] == "https" and found[0] == "http" and site[1] == found[1] and found[2] in (80, site[2]):
            # A registry behind a proxy that ends TLS may not know that it is reached by https.
            netloc = urlsplit(self._place.site).netloc
            return urlunsplit(urlsplit(target)._replace(scheme="https", netloc=netloc))
        if site != found:
            raise RegistryError(
                f"{self._place.site} wants the upload to go on at {found[0]}://{found[1]}, which was refused",
                hint="credentials are sent to the registry's own host alone",
            )
        return target


def _part_headers(part: Part) -> dict[str, str]:
    return {"Content-Length": str(part.size), "Content-Type": "application/octet-stream"}


def _with_query(url: str, **added: str) -> str:
    parsed = urlsplit(url)
    query = [*parse_qsl(parsed.query, keep_blank_values=True), *added.items()]
    return urlunsplit(parsed._replace(query=urlencode(query)))
