"""Who may ask, and the log of who did.

A server that listens on this machine only is still within reach of every web page that its user opens. So the `Host`
must be a name of this machine (a foreign name that resolves to it is how pages get around the rules of browsers), and
an `Origin` must be one of this machine or of OLLAMA_ORIGINS. With RSLLM_API_KEY set, every request but those that
ask for a sign of life must carry the key.

The log has one line a request: method, path, status, what it took (`Trace.fields`), and the id that the reply carries
too. Bodies are never logged.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import re
import secrets
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rsllm.server import trace as tracing
from rsllm.server.errors import ApiError, answer
from rsllm.server.metrics import Figures
from rsllm.server.routes.paths import PROBES
from rsllm.server.service import Services
from rsllm.server.spans import Spans
from rsllm.server.streaming import JsonResponse
from rsllm.server.trace import Trace

__all__ = ["Access", "Rules"]

log = logging.getLogger("rsllm.server")

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "0.0.0.0")
_APPS = ("app://*", "file://*", "tauri://*", "vscode-webview://*", "vscode-file://*")
_LOCAL_ENDINGS = (".localhost", ".local", ".internal")
_METHODS = "GET, POST, PUT, PATCH, DELETE, HEAD, OPTIONS"
_MAX_AGE_SECONDS = 43_200
# What says nothing but that somebody is there.
_SIGNS_OF_LIFE = ("/", "/healthz", "/readyz")
_STAINLESS = (
    "arch", "async", "custom-poll-interval", "helper-method", "lang", "os", "package-version", "poll-helper",
    "retry-count", "runtime", "runtime-version", "timeout",
)  # fmt: skip
_HEADERS = ", ".join(
    [
        *("Authorization", "Content-Type", "User-Agent", "Accept", "X-Requested-With", "OpenAI-Beta", "X-Api-Key"),
        *(f"x-stainless-{name}" for name in _STAINLESS),
    ]
)


@dataclass(frozen=True)
class Rules:
    """What is asked of a request."""

    check_host: bool
    """The server listens on this machine only."""
    origins: tuple[str, ...] = ()
    api_key: str | None = None

    def allows_host(self, host: str) -> bool:
        """Whether a `Host` header, with its port or without, names this machine."""
        name = _without_port(host).lower().rstrip(".")
        if not self.check_host or name in ("", "localhost", socket.gethostname().lower()):
            return True
        if name.endswith(_LOCAL_ENDINGS):
            return True
        try:
            address = ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return address.is_loopback or address.is_private or address.is_unspecified

    def allows_origin(self, origin: str) -> bool:
        """Whether a page of this origin may ask."""
        return any(_matches(pattern, origin) for pattern in self._patterns())

    def _patterns(self) -> Iterable[str]:
        yield from self.origins
        for host in _LOCAL_HOSTS:
            for scheme in ("http", "https"):
                yield f"{scheme}://{host}"
                yield f"{scheme}://{host}:*"
        yield from _APPS

    def allows_key(self, headers: Headers) -> bool:
        """Whether a request carries the key, if one is asked for."""
        if self.api_key is None:
            return True
        given = headers.get("authorization", "")
        scheme, _, token = given.partition(" ")
        key = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        # Headers are bytes, which arrive as the letters that have the same numbers.
        return hmac.compare_digest(key.encode("latin-1", "replace"), self.api_key.encode())


class Access:
    """The outermost layer of the application."""

    def __init__(
        self, app: ASGIApp, rules: Rules, services: Services, figures: Figures, spans: Spans | None = None
    ) -> None:
        self._app = app
        self._rules = rules
        self._services = services
        self._figures = figures
        self._spans = spans

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        id = given if _ID.fullmatch(given) else secrets.token_hex(6)
        path = scope["path"].encode("ascii", "backslashreplace").decode()[:200]
        trace = Trace(id, scope["method"], path)
        origin = headers.get("origin", "")

        async def answered(message: Message) -> None:
            if message["type"] == "http.response.start":
                trace.status = message["status"]
                sent = MutableHeaders(scope=message)
                sent["x-request-id"] = id
                self._add_cors(sent, headers, origin)
            elif not message.get("more_body"):
                trace.complete = True
            await send(message)

        token = tracing.follow(trace)
        self._services.active += 1
        try:
            app = self._refusal(scope, headers, origin) or self._app
            await app(scope, receive, answered)
        except Exception as error:
            if trace.status:
                raise
            await JsonResponse.of_error(error, hidden=self._services.hidden)(scope, receive, answered)
        finally:
            self._services.active -= 1
            self._over(trace, headers)
            tracing.leave(token)

    def _over(self, trace: Trace, headers: Headers) -> None:
        trace.ended = time.perf_counter()
        self._figures.request(trace)
        is_probe = trace.path in PROBES
        if not is_probe:
            self._services.last_request = time.monotonic()
            if self._spans is not None:
                self._spans.record(trace, headers)
        level = logging.DEBUG if is_probe else logging.INFO
        fields = {"fields": trace.fields()}
        log.log(level, "%s %s %s", trace.method, trace.path, trace.status or "-", extra=fields)

    def _refusal(self, scope: Scope, headers: Headers, origin: str) -> ASGIApp | None:
        """The answer to a request that may not ask, and to one that asks whether it may."""
        host = headers.get("host", "")
        if not self._rules.allows_host(host):
            return _refuse(
                scope,
                403,
                f"host {host[:100]!r} is not a name of this machine",
                "the server listens on this machine only",
            )
        if origin and not _is_own(origin, host) and not self._rules.allows_origin(origin):
            hint = "OLLAMA_ORIGINS lists the origins that are"
            return _refuse(scope, 403, f"origin {origin[:100]!r} is not allowed", hint)
        if scope["method"] == "OPTIONS":
            return Response(status_code=204)
        if scope["path"] not in _SIGNS_OF_LIFE and not self._rules.allows_key(headers):
            return _refuse(
                scope,
                401,
                "the API key is missing or wrong",
                "send it as `Authorization: Bearer …`; clients of ours read RSLLM_API_KEY",
                {"www-authenticate": "Bearer"},
            )
        return None

    def _add_cors(self, sent: MutableHeaders, headers: Headers, origin: str) -> None:
        if not origin or _is_own(origin, headers.get("host", "")) or not self._rules.allows_origin(origin):
            return
        sent["access-control-allow-origin"] = "*" if "*" in self._rules.origins else origin
        sent.add_vary_header("Origin")
        if "access-control-request-method" in headers:
            sent["access-control-allow-methods"] = _METHODS
            sent["access-control-allow-headers"] = _HEADERS
            sent["access-control-max-age"] = str(_MAX_AGE_SECONDS)


def _refuse(
    scope: Scope, status: int, reason: str, hint: str, headers: Mapping[str, str] | None = None
) -> JsonResponse:
    """A refusal in the shape of the protocol that was spoken."""
    told = answer(ApiError(status, reason, hint=hint))
    path = scope["path"]
    if not path.startswith("/v1/"):
        return JsonResponse(told.body, told.status, headers)
    from rsllm.server.dialects import anthropic, openai

    shape = anthropic.error_reply if path.startswith("/v1/messages") else openai.error_reply
    return JsonResponse(shape(told.status, told.body), told.status, headers)


def _is_own(origin: str, host: str) -> bool:
    """A page that this server gave out itself."""
    return origin.partition("://")[2].lower() == host.lower()


def _matches(pattern: str, origin: str) -> bool:
    before, star, after = pattern.lower().partition("*")
    origin = origin.lower()
    if not star:
        return origin == before
    return len(origin) >= len(before) + len(after) and origin.startswith(before) and origin.endswith(after)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host if host.count(":") > 1 else host.partition(":")[0]
