"""Certificates and proxies, as the environment gives them; https that must not become http; pushes in Ollama's way."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rsllm.errors import DownloadError, RegistryAuthError, RegistryError
from rsllm.registry.push import push
from rsllm.store.digest import Digest
from rsllm.store.manifest import Layer, Manifest, MediaType
from rsllm.store.name import ModelName
from rsllm.store.store import Store
from tests.support.hostile_registry import Exchange, HostileRegistry
from tests.support.network import ForwardProxy, certificate
from tests.support.registry import add_model, noise, pulled, quick

LAYERS = {MediaType.MODEL: noise(200_000)}
HOST = "registry.test"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def served(tmp_path: Path) -> tuple[ssl.SSLContext, Path]:
    return certificate(tmp_path, HOST)


@pytest.fixture
def registry(served: tuple[ssl.SSLContext, Path]) -> Iterator[HostileRegistry]:
    with HostileRegistry(tls=served[0]) as registry:
        registry.add("library/m", "latest", LAYERS)
        yield registry


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models")


async def loopback(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


def pull_it(store: Store, name: str, tmp_path: Path, **changes: Any) -> None:
    settings = quick(tmp_path, **{"resolver": loopback, **changes})
    asyncio.run(pulled(store, name, settings, insecure=False))


def push_it(store: Store, name: str, tmp_path: Path, **changes: Any) -> list[str]:
    async def run() -> list[str]:
        steps = push(store, ModelName.parse(name), insecure=True, settings=quick(tmp_path, **changes))
        return [step.status async for step in steps]

    return asyncio.run(run())


def test_an_authority_of_ones_own(
    registry: HostileRegistry,
    served: tuple[ssl.SSLContext, Path],
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """STO-16."""
    monkeypatch.setenv("SSL_CERT_FILE", str(served[1]))
    pull_it(store, f"{HOST}:{registry.port}/library/m", tmp_path)
    assert store.has_blob(Digest.of(LAYERS[MediaType.MODEL]))


def test_an_unknown_authority_is_named_as_the_reason(registry: HostileRegistry, store: Store, tmp_path: Path) -> None:
    """STO-16."""
    with pytest.raises(
        RegistryError, match=f"the certificate of https://{HOST}:{registry.port} was refused: "
    ) as caught:
        pull_it(store, f"{HOST}:{registry.port}/library/m", tmp_path)
    assert "SSL_CERT_FILE" in (caught.value.hint or "")
    assert not registry.requests


def test_a_certificate_of_another_host_is_refused(
    registry: HostileRegistry,
    served: tuple[ssl.SSLContext, Path],
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(served[1]))
    with pytest.raises(RegistryError, match=r"certificate of https://other\.test"):
        pull_it(store, f"other.test:{registry.port}/library/m", tmp_path)


def test_a_file_of_certificates_that_is_none(
    registry: HostileRegistry, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "nothing.pem"))
    with pytest.raises(RegistryError, match="SSL_CERT_FILE"):
        pull_it(store, f"{HOST}:{registry.port}/library/m", tmp_path)


@pytest.mark.parametrize("kind", ["manifest", "blob"])
def test_https_does_not_become_http(
    kind: str,
    registry: HostileRegistry,
    served: tuple[ssl.SSLContext, Path],
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(served[1]))
    registry.tricks[kind] = lambda exchange: exchange.answer(307, Location=f"http://{HOST}:{registry.port}/data/x")
    with pytest.raises(RegistryError, match=f"a redirect from https to http://{HOST} was refused"):
        pull_it(store, f"{HOST}:{registry.port}/library/m", tmp_path)


async def unknown(host: str, port: int) -> list[str]:
    raise OSError("only the proxy knows names")


@pytest.mark.parametrize("secure", [True, False])
def test_a_forward_proxy(
    secure: bool,
    registry: HostileRegistry,
    served: tuple[ssl.SSLContext, Path],
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """STO-16."""
    monkeypatch.setenv("SSL_CERT_FILE", str(served[1]))
    with HostileRegistry(blobs=registry.blobs, manifests=registry.manifests) as plain:
        with ForwardProxy((registry if secure else plain).port).running() as proxy:
            monkeypatch.setenv("https_proxy" if secure else "http_proxy", proxy.url)
            settings = quick(tmp_path, resolver=unknown)
            asyncio.run(pulled(store, f"{HOST}/library/m", settings, insecure=not secure))
    assert store.has_blob(Digest.of(LAYERS[MediaType.MODEL]))
    assert proxy.seen[0] == (f"CONNECT {HOST}:443" if secure else f"GET http://{HOST}/v2/library/m/manifests/latest")


def test_a_proxy_that_refuses_is_named(
    registry: HostileRegistry, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ForwardProxy(registry.port, refuses=True).running() as proxy:
        monkeypatch.setenv("https_proxy", proxy.url)
        with pytest.raises(DownloadError, match=r"the proxy refused to connect to https://registry\.test: .*403"):
            pull_it(store, f"{HOST}/library/m", tmp_path, resolver=unknown)


# Pushing in Ollama's way


@pytest.fixture
def plain() -> Iterator[HostileRegistry]:
    with HostileRegistry() as registry:
        yield registry


def test_parts_are_sent_where_the_registry_says_and_without_credentials(
    plain: HostileRegistry, store: Store, tmp_path: Path
) -> None:
    name = f"http://{plain.host}/library/m"
    manifest = add_model(store, ModelName.parse(name), LAYERS)
    plain.lock(scope="repository:library/m:pull,push")
    demand = plain.tricks["any"]
    plain.tricks["any"] = lambda exchange: False if exchange.path.startswith("/storage/") else demand(exchange)
    statuses = push_it(store, name, tmp_path)
    assert statuses[-2:] == ["pushing manifest", "success"]
    assert plain.manifests["library/m", "latest"] == manifest.raw
    assert plain.blobs[str(manifest.layers[0].digest)] == LAYERS[MediaType.MODEL]
    stored = [request for request in plain.requests if request.path.startswith("/storage/")]
    assert len(stored) == 4 + 1  # four parts of 64 KiB, and the configuration
    assert not any("Authorization" in request.headers for request in stored)


def test_a_layer_from_another_repository_is_mounted(plain: HostileRegistry, store: Store, tmp_path: Path) -> None:
    name = ModelName.parse(f"http://{plain.host}/library/m")
    digest, size = store.add_blob([LAYERS[MediaType.MODEL]])
    layer = Layer(MediaType.MODEL, digest, size, from_=f"{plain.host}/library/origin:latest")
    store.write_manifest(name, Manifest.build(None, [layer]).raw)
    plain.blobs[str(digest)] = LAYERS[MediaType.MODEL]
    plain.tricks["blob"] = lambda exchange: exchange.answer(404) if exchange.command == "HEAD" else False
    push_it(store, f"http://{name.full}", tmp_path)
    (begun,) = [request for request in plain.requests if request.method == "POST"]
    assert "mount=sha256%3A" in begun.path
    assert begun.path.endswith("&from=library%2Forigin")
    assert not any(request.method == "PATCH" for request in plain.requests)


def test_parts_that_fail_are_sent_again(plain: HostileRegistry, store: Store, tmp_path: Path) -> None:
    name = f"http://{plain.host}/library/m"
    manifest = add_model(store, ModelName.parse(name), LAYERS)
    failed: set[str] = set()

    def fail_once(exchange: Exchange) -> Any:
        if exchange.path in failed or not exchange.path.startswith("/storage/"):
            return False
        failed.add(exchange.path)
        return exchange.answer(503, b"busy")

    plain.tricks["upload"] = fail_once
    push_it(store, name, tmp_path)
    assert plain.blobs[str(manifest.layers[0].digest)] == LAYERS[MediaType.MODEL]


@pytest.mark.parametrize("location", ["http://elsewhere.test/upload", "file:///tmp/x", ""])
def test_an_upload_does_not_go_on_at_another_host(
    location: str, plain: HostileRegistry, store: Store, tmp_path: Path
) -> None:
    name = f"http://{plain.host}/library/m"
    add_model(store, ModelName.parse(name), LAYERS)
    plain.tricks["upload"] = lambda exchange: exchange.answer(202, Location=location)
    with pytest.raises(RegistryError, match=r"was refused|does not say where"):
        push_it(store, name, tmp_path)
    assert not any(request.method in ("PATCH", "PUT") for request in plain.requests)


def test_without_access_a_push_says_so(plain: HostileRegistry, store: Store, tmp_path: Path) -> None:
    name = f"http://{plain.host}/library/m"
    add_model(store, ModelName.parse(name), LAYERS)
    plain.lock()
    plain.tricks["token"] = lambda exchange: exchange.answer(401)
    with pytest.raises(RegistryAuthError, match="unauthorized: access denied"):
        push_it(store, name, tmp_path)
