"""One conversation with a registry: tokens, redirects followed by hand, bodies of bounded size.

Every request goes through `RegistryClient.send`. What it guarantees, whatever a server answers:

- the `Authorization` header goes to the registry's own origin (scheme, host and port) and nowhere else;
- redirects lead to http and https only, never from https down to http, and never to an address that the rules refuse;
- a 401 is answered with a token once; the next one is an error;
- bodies are taken as they are: a compressed answer was not asked for, and is refused.
"""

from __future__ import annotations

import asyncio
import json
import logging
import platform
import re
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self
from urllib.parse import urljoin, urlsplit

import httpx2

from rsllm.errors import RegistryAuthError, RegistryError
from rsllm.registry.addresses import AddressRules
from rsllm.registry.auth import Challenge, default_port, token_request
from rsllm.registry.keys import load_or_create
from rsllm.registry.settings import RegistrySettings
from rsllm.registry.transport import PinnedTransport, network_errors

__all__ = ["RegistryClient", "check_answer", "origin_of", "read_body", "redirect_target"]

OLLAMA_VERSION = "0.33.0"
_log = logging.getLogger(__name__)
MAX_REDIRECTS = 10
_REDIRECTS = {301, 302, 303, 307, 308}
_ERROR_BYTES = 4096
_TOKEN_BYTES = 2**20
_TOKEN = re.compile(r"[\x21-\x7e]+")

Origin = tuple[str, str, int | None]
Content = bytes | Callable[[], AsyncIterable[bytes]] | None


class RegistryClient:
    """A client for registries; the user named the `trusted` addresses. Use as a context manager.

    `tokens`, by origin, may be shared with other clients, and so may `certificates`, which take a while to read.
    """

    def __init__(
        self,
        settings: RegistrySettings,
        trusted: tuple[str, ...] = (),
        tokens: dict[Origin, str] | None = None,
        certificates: list[ssl.SSLContext] | None = None,
    ) -> None:
        origins = [origin_of(url) for url in trusted]
        rules = AddressRules(settings.private_allowed, [(host, port) for _, host, port in origins if port])
        self._settings = settings
        self._http = httpx2.AsyncClient(
            transport=PinnedTransport(rules, resolver=settings.resolver, certificates=certificates),
            timeout=httpx2.Timeout(settings.stall_seconds, connect=settings.connect_seconds),
            headers={"User-Agent": user_agent(), "Accept-Encoding": "identity"},
            follow_redirects=False,
            trust_env=False,  # neither .netrc nor cookies; proxies and certificates are the transport's
        )
        self._tokens: dict[Origin, str] = {} if tokens is None else tokens
        self._token_lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._http.aclose()

    @asynccontextmanager
    async def send(
        self,
        method: str,
        url: str,
        *,
        registry: str,
        headers: Mapping[str, str] | None = None,
        content: Content = None,
        follow: bool = True,
    ) -> AsyncIterator[httpx2.Response]:
        """The answer, its body not read yet; statuses are the caller's to judge, but for redirects and 401.

        `registry` is the address whose origin gets the credentials. `content` is called for the body each time that it
        has to be sent. Raises `RegistryError`, `DownloadError`.
        """
        challenged = False
        for _ in range(MAX_REDIRECTS + 1):
            _check_scheme(url)
            async with self._once(method, url, registry, headers or {}, content) as response:
                if response.status_code == 401 and origin_of(url) == origin_of(registry):
                    used = response.request.headers.get("Authorization")
                    if challenged:
                        raise RegistryAuthError("unauthorized: access denied", status=401)
                    challenged = True
                    await self._fetch_token(response.headers.get("WWW-Authenticate", ""), registry, used)
                    continue
                if not follow or response.status_code not in _REDIRECTS:
                    yield response
                    return
                url = redirect_target(url, response)
                if response.status_code == 303 and method != "HEAD":
                    method, content = "GET", None
        raise RegistryError(f"the registry redirects more than {MAX_REDIRECTS} times", hint="it may be misconfigured")

    async def read(self, method: str, url: str, *, registry: str, limit: int, **keywords: Any) -> tuple[int, bytes]:
        """Status and whole body of an answer of at most `limit` bytes; raises `RegistryError` where it is longer."""
        async with self.send(method, url, registry=registry, **keywords) as response:
            return response.status_code, await read_body(response, limit)

    @asynccontextmanager
    async def _once(
        self, method: str, url: str, registry: str, headers: Mapping[str, str], content: Content
    ) -> AsyncIterator[httpx2.Response]:
        own = dict(headers)
        token = self._tokens.get(origin_of(url))
        if token is not None and origin_of(url) == origin_of(registry):
            own["Authorization"] = f"Bearer {token}"
        with network_errors(url):
            body = content() if callable(content) else content
            request = self._http.build_request(method, url, headers=own, content=body)
            response = await self._http.send(request, stream=True)
        _log.debug("%s %s: %d", method, url.partition("?")[0], response.status_code)  # queries may hold secrets
        try:
            encoding = response.headers.get("Content-Encoding", "identity").lower()
            if encoding not in ("", "identity"):
                raise RegistryError(f"the registry answers compressed ({encoding[:20]}), which was not asked for")
            with network_errors(url):
                yield response
        finally:
            await response.aclose()

    async def _fetch_token(self, header: str, registry: str, used: str | None) -> None:
        origin = origin_of(registry)
        async with self._token_lock:
            token = self._tokens.get(origin)
            if token is not None and f"Bearer {token}" != used:
                return  # another request has fetched one meanwhile
            challenge = Challenge.parse(header)
            url, authorization = token_request(challenge, registry, lambda: load_or_create(self._settings.key_path))
            with network_errors(url):
                request = self._http.build_request("GET", url, headers={"Authorization": authorization})
                response = await self._http.send(request, stream=True)
                try:
                    body = await read_body(response, _TOKEN_BYTES)
                finally:
                    await response.aclose()
            if response.status_code in (401, 403):
                raise RegistryAuthError("unauthorized: access denied", status=response.status_code)
            check_answer(response.status_code, body, "the registry gives no token")
            self._tokens[origin] = _token(body)


def user_agent() -> str:
    """Who asks: this program, and the one whose protocol it speaks, for registries that look for that."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        own = version("rsllm")
    except PackageNotFoundError:  # run from a source tree that was never installed
        own = "0"
    return f"rsllm/{own} ({platform.machine()} {platform.system().lower()}) ollama/{OLLAMA_VERSION}"


def _token(body: bytes) -> str:
    try:
        answer = json.loads(body)
        token = answer.get("token") or answer.get("access_token")
    except (ValueError, AttributeError, RecursionError):
        token = None
    # It becomes a header, so it must not have a line break in it.
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise RegistryAuthError("unauthorized: access denied", hint="the registry's token is missing or malformed")
    return token


def check_answer(status: int, body: bytes, what: str) -> None:
    """Raise `RegistryError` unless `status` is one of success; the text is Ollama's `<status>: <body>`."""
    if 200 <= status < 300:
        return
    text = body[:_ERROR_BYTES].decode(errors="replace").strip()
    printable = "".join(character if character.isprintable() else " " for character in text)
    raise RegistryError(f"{what}: {status}: {printable}", status=status)


async def read_body(response: httpx2.Response, limit: int) -> bytes:
    """The body, if it is no longer than `limit` bytes; refused by its length before it is read where that is told."""
    announced = response.headers.get("Content-Length", "")
    if announced.isascii() and announced.isdigit() and int(announced) > limit:
        raise RegistryError(f"the registry answers with {int(announced):,} bytes, and at most {limit:,} are allowed")
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > limit:
            raise RegistryError(f"the registry answers with more than the {limit:,} bytes that are allowed")
    return bytes(body)


def redirect_target(url: str, response: httpx2.Response) -> str:
    """Where a redirect leads; raises `RegistryError` for a target that must not be followed."""
    location = response.headers.get("Location", "")
    if not location:
        raise RegistryError(f"the registry redirects without saying where ({response.status_code})")
    try:
        target = urljoin(url, location)
    except ValueError:
        raise RegistryError(f"the registry redirects to {location[:200]!r}, which is not an address") from None
    _check_scheme(target, before=url)
    return target


def _check_scheme(url: str, *, before: str | None = None) -> None:
    try:
        parsed = urlsplit(url)
        host = parsed.hostname
    except ValueError:
        raise RegistryError(f"{url[:200]!r} is not an address") from None
    if parsed.scheme not in ("http", "https") or not host:
        raise RegistryError(
            f"a redirect to {url[:200]!r} was refused", hint="only http and https addresses are followed"
        )
    if parsed.username or parsed.password:
        raise RegistryError(f"an address with a user name in it was refused: {host}")
    if before is not None and before.startswith("https:") and parsed.scheme != "https":
        raise RegistryError(
            f"a redirect from https to {parsed.scheme}://{host} was refused", hint="it would leave the encryption"
        )


def origin_of(url: str) -> Origin:
    """Scheme, host in lower case, port with the scheme's default."""
    parsed = urlsplit(url)
    return parsed.scheme, (parsed.hostname or "").lower(), default_port(parsed)
