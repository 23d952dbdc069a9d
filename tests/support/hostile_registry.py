"""A registry in this process, honest unless it is told to play a trick.

    with HostileRegistry() as registry:
        registry.add("library/m", "latest", {MODEL: b"GGUF…"})
        registry.tricks["blob"] = lambda exchange: exchange.answer(200, b"")   # every blob is empty

A trick is called with the `Exchange` for each request of its kind: `manifest`, `blob`, `token`, `upload` or `any`. If
it returns `False` the honest answer follows. All requests are kept in `requests`, to see who was told what.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from rsllm.store.digest import Digest
from rsllm.store.manifest import Layer, Manifest, MediaType

__all__ = ["Exchange", "HostileRegistry", "Request"]

Trick = Callable[["Exchange"], Any]


@dataclass(frozen=True)
class Request:
    """What was asked."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""

    @property
    def kind(self) -> str:
        for kind, pattern in {
            "manifest": r"/v2/.+/manifests/",
            "upload": r"/v2/.+/blobs/uploads/|/storage/",
            "blob": r"/v2/.+/blobs/|/data/",
            "token": r"/token",
        }.items():
            if re.match(pattern, self.path):
                return kind
        return "other"


class Exchange(BaseHTTPRequestHandler):
    """One request and its answer."""

    protocol_version = "HTTP/1.1"
    server: _Server
    request_seen: Request

    def log_message(self, format: str, *args: Any) -> None:
        """Be quiet."""

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        """A whole answer; underscores in header names stand for dashes. `Content_Length=` may lie."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **named}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def range(self, size: int) -> tuple[int, int] | None:
        """The range that was asked for: its first byte, and the one after its last."""
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        return (int(match[1]), min(int(match[2]) + 1, size)) if match else None

    def honest(self) -> None:
        """What a good registry answers."""
        registry, request = self.server.registry, self.request_seen
        if request.kind == "manifest":
            repository, _, tag = request.path.removeprefix("/v2/").partition("/manifests/")
            if request.method == "PUT":
                registry.manifests[repository, tag] = request.body
                return self.answer(201)
            raw = registry.manifests.get((repository, tag))
            return self.answer(404, b'{"errors":[]}') if raw is None else self.answer(200, raw)
        if request.kind == "blob":
            return self.blob(registry.blobs.get(request.path.rpartition("/")[2]))
        if request.kind == "upload":
            return self._upload(registry)
        if request.kind == "token":
            return self.answer(200, json.dumps({"token": registry.token}).encode())
        return self.answer(404)

    def blob(self, data: bytes | None) -> None:
        """A blob, or the range of it that was asked for."""
        if data is None:
            return self.answer(404, b"no such blob")
        if (asked := self.range(len(data))) is None:
            return self.answer(200, data)
        start, end = asked
        return self.answer(206, data[start:end], Content_Range=f"bytes {start}-{end - 1}/{len(data)}")

    def _upload(self, registry: HostileRegistry) -> None:
        """Uploads in Ollama's way: parts are sent elsewhere, `mount` is honoured, the etag is checked."""
        request = self.request_seen
        query = {name: values[0] for name, values in parse_qs(urlsplit(request.path).query).items()}
        if request.path.startswith("/storage/"):
            registry.parts[int(request.path.rpartition("/")[2])] = request.body
            return self.answer(200)
        if request.method == "POST":
            if query.get("mount") in registry.blobs and query.get("from"):
                return self.answer(201)
            registry.parts.clear()
            return self.answer(202, Docker_Upload_Location=f"/v2/x/blobs/uploads/1?n={len(registry.parts)}")
        if request.method == "PATCH":
            number = int(query["n"])
            following = f"/v2/x/blobs/uploads/1?n={number + 1}"
            return self.answer(307, Location=f"/storage/{number}", Docker_Upload_Location=following)
        data = b"".join(registry.parts[number] for number in sorted(registry.parts))
        sums = b"".join(hashlib.md5(registry.parts[number]).digest() for number in sorted(registry.parts))
        wanted = f"{hashlib.md5(sums).hexdigest()}-{len(registry.parts)}"
        if query["etag"] != wanted or str(Digest.of(data)) != query["digest"]:
            return self.answer(400, b"not what was announced")
        registry.blobs[query["digest"]] = data
        return self.answer(201)

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) or self._chunked()
        request = Request(self.command, self.path, dict(self.headers.items()), body)
        self.request_seen = request
        registry = self.server.registry
        registry.requests.append(request)
        for kind in ("any", request.kind):
            trick = registry.tricks.get(kind)
            if trick is not None and trick(self) is not False:
                return
        self.honest()

    def _chunked(self) -> bytes:
        body = b""
        if self.headers.get("Transfer-Encoding", "") == "chunked":
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        return body

    do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = _handle


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    registry: HostileRegistry

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is part of the game."""


@dataclass
class HostileRegistry:
    """See the module. `token` is what clients must show once `locked` is set."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[tuple[str, str], bytes] = field(default_factory=dict)
    tricks: dict[str, Trick] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    parts: dict[int, bytes] = field(default_factory=dict)
    token: str = "secret-token"
    gone: threading.Event = field(default_factory=threading.Event)
    """Set at the end, for tricks that wait."""
    tls: ssl.SSLContext | None = None
    """Speak https with this certificate."""

    def __enter__(self) -> Self:
        self._server = _Server(("127.0.0.1", 0), Exchange)
        self._server.registry = self
        if self.tls is not None:
            self._server.socket = self.tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.gone.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}"

    def add(self, repository: str, tag: str, layers: dict[str, bytes], config: bytes = b"{}") -> Manifest:
        """A model, with its blobs."""
        made = []
        for media_type, data in [*layers.items(), (MediaType.CONFIG, config)]:
            digest = Digest.of(data)
            self.blobs[str(digest)] = data
            made.append(Layer(media_type, digest, len(data)))
        manifest = Manifest.build(made[-1], made[:-1])
        self.manifests[repository, tag] = manifest.raw
        return manifest

    def lock(self, **challenge: str) -> None:
        """Ask for a token from here on."""
        parameters = {"realm": f"{self.url}/token", "service": "registry", "scope": "repository:library/m:pull"}
        text = ",".join(f'{name}="{value}"' for name, value in {**parameters, **challenge}.items())

        def demand(exchange: Exchange) -> Any:
            if exchange.request_seen.kind == "token":
                return False
            if exchange.headers.get("Authorization") == f"Bearer {self.token}":
                return False
            return exchange.answer(401, b"who are you?", WWW_Authenticate=f"Bearer {text}")

        self.tricks["any"] = demand

    def asked(self, kind: str) -> list[Request]:
        """The requests of one kind."""
        return [request for request in self.requests if request.kind == kind]


def signature_is_good(request: Request, url: str) -> bool:
    """Whether the request for a token is signed by the key it names."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    public, _, signature = request.headers["Authorization"].partition(":")
    empty = base64.b64encode(hashlib.sha256(b"").hexdigest().encode()).decode()
    # The blob of an OpenSSH key: length and name of the type, length and 32 bytes of the key.
    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public)[-32:])
    try:
        key.verify(base64.b64decode(signature), f"GET,{url}{request.path},{empty}".encode())
    except InvalidSignature:
        return False
    return True
