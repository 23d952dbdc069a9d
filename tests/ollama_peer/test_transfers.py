"""Downloads that either program began are finished by the other, from the bytes that are there.

The registry is ours, in this process: it writes down the ranges that it is asked for, and holds back what comes after
some of each part until it is told otherwise, so that whoever downloads can be killed in the middle.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rsllm.store.digest import Digest
from rsllm.store.manifest import MediaType
from rsllm.store.store import Store
from tests.ollama_peer import build
from tests.ollama_peer.servers import Server, manifest_of, ollama_server, rsllm_server
from tests.support.hostile_registry import Exchange, HostileRegistry
from tests.support.registry import MISSING, docker_registry

pytestmark = pytest.mark.timeout(180)

# Two parts of 100 MB, which is the smallest that either cuts, and a rest.
SIZE = 210_000_000
_GIVEN = 24_000_000
"""Bytes of each request that come before the rest is held back."""
_PIECE = 1_000_000
_WAIT_SECONDS = 60


@dataclass
class Blob:
    """A large blob that needs no memory: one piece again and again. `held` while requests are not given all."""

    piece: bytes = field(default_factory=lambda: bytes(range(251)) * (_PIECE // 251 + 1))
    held: threading.Event = field(default_factory=threading.Event)
    asked: list[tuple[int, int]] = field(default_factory=list)

    def bytes(self, start: int, end: int) -> Iterator[bytes]:
        """Those from `start` to `end`, in pieces."""
        period = len(self.piece)
        while start < end:
            offset = start % period
            piece = self.piece[offset : offset + end - start]
            yield piece
            start += len(piece)

    def digest(self) -> str:
        hasher = hashlib.sha256()
        for piece in self.bytes(0, SIZE):
            hasher.update(piece)
        return hasher.hexdigest()

    def answer(self, exchange: Exchange, gone: threading.Event) -> None:
        start, end = exchange.range(SIZE) or (0, SIZE)
        if exchange.command == "HEAD":
            return exchange.answer(200, b"", Content_Length=str(SIZE))
        self.asked.append((start, end))
        exchange.send_response(206)
        exchange.send_header("Content-Length", str(end - start))
        exchange.send_header("Content-Range", f"bytes {start}-{end - 1}/{SIZE}")
        exchange.end_headers()
        sent = 0
        for piece in self.bytes(start, end):
            while self.held.is_set() and sent + len(piece) > _GIVEN and not gone.is_set():
                time.sleep(0.01)
            exchange.wfile.write(piece)
            sent += len(piece)
        return None


@pytest.fixture(scope="module")
def large() -> tuple[Blob, str]:
    blob = Blob()
    return blob, blob.digest()


@pytest.fixture
def registry(large: tuple[Blob, str]) -> Iterator[tuple[HostileRegistry, Blob, Digest]]:
    """A registry with `library/large`, and what was asked of its one large blob."""
    blob, hexadecimal = large
    digest = Digest(hexadecimal)
    blob.asked.clear()
    blob.held.set()
    with HostileRegistry() as registry:
        config = b'{"model_format":"gguf"}'
        registry.blobs[str(Digest.of(config))] = config
        manifest = {
            "schemaVersion": 2,
            "mediaType": MediaType.MANIFEST,
            "config": {"mediaType": MediaType.CONFIG, "digest": str(Digest.of(config)), "size": len(config)},
            "layers": [{"mediaType": MediaType.MODEL, "digest": str(digest), "size": SIZE}],
        }
        registry.manifests["library/large", "latest"] = json.dumps(manifest).encode()

        def serve(exchange: Exchange) -> Any:
            if _sent_elsewhere(exchange, registry):
                return None
            return blob.answer(exchange, registry.gone) if hexadecimal in exchange.path else False

        registry.tricks["blob"] = serve
        yield registry, blob, digest
        blob.held.clear()


def _sent_elsewhere(exchange: Exchange, registry: HostileRegistry) -> bool:
    """Ollama asks for a blob without a range, and wants to be sent to another host name for the bytes."""
    if exchange.command != "GET" or exchange.headers.get("Range") is not None:
        return False
    digest = exchange.path.rpartition("/")[2]
    exchange.answer(307, b"", Location=f"http://localhost:{registry.port}/data/{digest}")
    return True


def _interrupted(server: Server, command: list[str], blob: Blob, digest: Digest) -> int:
    """Pull until all parts have come as far as they may, then kill the server; how many bytes its records tell of."""
    puller = subprocess.Popen(
        command, env=server.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + _WAIT_SECONDS
        while (kept := _kept(server.store, digest)) < 3 * _PIECE or len(blob.asked) < 3:
            assert time.monotonic() < deadline and puller.poll() is None, f"only {kept} bytes came"
            time.sleep(0.05)
        server.kill()
    finally:
        puller.kill()
        puller.wait()
    assert not server.store.has_blob(digest)
    return _kept(server.store, digest)


def _kept(store: Store, digest: Digest) -> int:
    records = store.layout.blobs.glob(f"{digest.file_name}-partial-*")
    total = 0
    for path in records:
        try:
            total += int(json.loads(path.read_text())["Completed"])
        except (ValueError, FileNotFoundError):
            continue  # it is being written
    return total


@pytest.mark.parametrize("first", ["rsllm", "ollama"])
def test_the_other_one_goes_on(
    ollama_program: Path, registry: tuple[HostileRegistry, Blob, Digest], tmp_path: Path, first: str
) -> None:
    site, blob, digest = registry
    name = f"{site.host}/library/large"
    servers = {"rsllm": rsllm_server, "ollama": ollama_server}
    second = "ollama" if first == "rsllm" else "rsllm"
    models = tmp_path / "models"
    with servers[first](tmp_path / first, models) as server:
        program = [str(build.ollama())] if first == "ollama" else [sys.executable, "-m", "rsllm"]
        kept = _interrupted(server, [*program, "pull", "--insecure", name], blob, digest)
    assert kept >= 3 * _PIECE
    blob.held.clear()
    blob.asked.clear()
    with servers[second](tmp_path / second, models) as server:
        command = server.ollama if second == "ollama" else server.rsllm
        command("pull", "--insecure", name).ok()
        asked = sum(end - start for start, end in blob.asked)
        assert asked <= SIZE - kept, f"{kept:,} of {SIZE:,} bytes were there, and {asked:,} were asked for again"
        assert manifest_of(server.store, name).layers[0].digest == digest
        path = server.store.blob_path(digest)
        with path.open("rb") as file:
            assert hashlib.file_digest(file, "sha256").hexdigest() == digest.hex
        assert not list(path.parent.glob("*-partial*"))


def test_what_we_pushed_ollama_pulls(ollama: Server, rsllm: Server, tiny: Path, tmp_path: Path) -> None:
    with HostileRegistry() as registry:
        registry.tricks["blob"] = lambda exchange: _sent_elsewhere(exchange, registry)
        name = f"{registry.host}/team/ours:v1"
        rsllm.rsllm("create", name, "-f", _recipe(tmp_path, tiny)).ok()
        rsllm.rsllm("push", "--insecure", name).ok()
        ollama.ollama("pull", "--insecure", name).ok()
    _require_same(rsllm, ollama, name)
    assert manifest_of(ollama.store, name).raw == manifest_of(rsllm.store, name).raw


def test_what_ollama_pushed_we_pull(ollama: Server, rsllm: Server, tiny: Path, tmp_path: Path) -> None:
    if shutil.which("docker-registry") is None:
        pytest.skip(MISSING)
    with docker_registry(tmp_path / "registry") as host:
        name = f"{host}/team/theirs:v1"
        ollama.ollama("create", name, "-f", _recipe(tmp_path, tiny)).ok()
        ollama.ollama("push", "--insecure", name).ok()
        rsllm.rsllm("pull", "--insecure", name).ok()
    _require_same(ollama, rsllm, name)


def _recipe(folder: Path, weights: Path) -> str:
    path = folder / "Modelfile"
    path.write_text(f"FROM {weights}\nSYSTEM of {folder.name}\nPARAMETER top_k 7\nLICENSE MIT\n")
    return str(path)


def _require_same(origin: Server, target: Server, name: str) -> None:
    before, after = (manifest_of(server.store, name) for server in (origin, target))
    assert after.all_layers == before.all_layers
    for layer in after.all_layers:
        assert Digest.of(target.store.blob_path(layer.digest).read_bytes()) == layer.digest
