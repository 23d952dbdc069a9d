"""Redirects, credentials, and which registries may be asked at all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rsllm.errors import (
    AddressRefusedError,
    RegistryAuthError,
    RegistryError,
)
from rsllm.store.manifest import Manifest
from rsllm.store.store import Store
from tests.support import hostile_pulls
from tests.support.hostile_pulls import (
    is_whole,
    name_of,
    pull_it,
)
from tests.support.hostile_registry import Exchange, HostileRegistry, Trick, signature_is_good
from tests.support.registry import pulled, quick

registry, manifest, store = hostile_pulls.registry, hostile_pulls.manifest, hostile_pulls.store


def to(location: str, status: int = 307) -> Trick:
    return lambda exchange: exchange.answer(status, Location=location)


@pytest.mark.parametrize(
    ("location", "kind", "reason"),
    [
        ("http://10.0.0.1/x", AddressRefusedError, "10.0.0.1:80 is a private address"),
        ("http://169.254.169.254/latest/meta-data", AddressRefusedError, "private address"),
        ("http://127.0.0.1:9/x", AddressRefusedError, "private address"),
        ("http://[::1]:9/x", AddressRefusedError, "private address"),
        ("http://[::ffff:127.0.0.1]:9/x", AddressRefusedError, "private address"),
        ("http://0.0.0.0:9/x", AddressRefusedError, "private address"),
        ("http://inside.test/x", AddressRefusedError, r"inside.test:80 leads to 192.168.1.1, which is a private"),
        ("file:///etc/passwd", RegistryError, "file:///etc/passwd"),
        ("ftp://example.com/x", RegistryError, "a redirect to 'ftp://example.com/x' was refused"),
        ("http://user:secret@example.com/x", RegistryError, "user name in it"),
        ("http://[broken", RegistryError, "not an address"),
        ("", RegistryError, "without saying where"),
    ],
)
@pytest.mark.parametrize("kind_of_request", ["manifest", "blob"])
def test_a_redirect_that_must_not_be_followed(
    kind_of_request: str, location: str, kind: type[Exception], reason: str, store: Store, registry: HostileRegistry,
    manifest: Manifest, tmp_path: Path,
) -> None:  # fmt: skip
    """SEC-08."""

    async def resolver(host: str, port: int) -> list[str]:
        return {"inside.test": ["192.168.1.1"]}[host]

    registry.tricks[kind_of_request] = to(location)
    with pytest.raises(kind, match=reason):
        pull_it(store, registry, tmp_path, resolver=resolver)
    assert not store.names()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_credentials_do_not_go_to_another_host(
    status: int, store: Store, registry: HostileRegistry, manifest: Manifest, tmp_path: Path
) -> None:
    """CVE-2026-5530."""

    async def resolver(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    with HostileRegistry(blobs=registry.blobs) as elsewhere:
        registry.lock()
        demand = registry.tricks["any"]

        def redirect(exchange: Exchange) -> Any:
            if demand(exchange) is not False:
                return None
            digest = exchange.path.rpartition("/")[2]
            return exchange.answer(status, Location=f"http://elsewhere.test:{elsewhere.port}/data/{digest}?signature=1")

        registry.tricks = {"any": lambda exchange: False if "blobs" not in exchange.path else redirect(exchange)}
        registry.tricks["manifest"] = demand
        elsewhere.tricks["blob"] = lambda exchange: exchange.blob(
            registry.blobs[exchange.path.rpartition("/")[2].partition("?")[0]]
        )
        pull_it(store, registry, tmp_path, resolver=resolver, private_allowed=("elsewhere.test",))
    assert is_whole(store, registry, manifest)
    assert elsewhere.requests
    assert {request.headers["Host"] for request in elsewhere.requests} == {f"elsewhere.test:{elsewhere.port}"}
    assert not any("Authorization" in request.headers for request in elsewhere.requests)
    assert any(request.headers.get("Authorization") == "Bearer secret-token" for request in registry.asked("blob"))


def test_an_answer_of_200_may_say_where_the_blob_is(
    store: Store, registry: HostileRegistry, manifest: Manifest, tmp_path: Path
) -> None:
    def point(exchange: Exchange) -> Any:
        if exchange.path.startswith("/data/"):
            return False
        return exchange.answer(200, b"see there", Location=f"/data/{exchange.path.rpartition('/')[2]}")

    registry.tricks["blob"] = point
    pull_it(store, registry, tmp_path)
    assert is_whole(store, registry, manifest)


def test_redirects_in_a_circle_end(store: Store, registry: HostileRegistry, manifest: Manifest, tmp_path: Path) -> None:
    registry.tricks["manifest"] = to("/v2/library/m/manifests/latest")
    with pytest.raises(RegistryError, match="more than 10 times"):
        pull_it(store, registry, tmp_path)
    assert len(registry.requests) == 11


# Credentials


def test_a_token_is_asked_for_with_a_good_signature(
    store: Store, registry: HostileRegistry, manifest: Manifest, tmp_path: Path
) -> None:
    registry.lock(scope="repository:library/m:pull repository:library/n:pull")
    pull_it(store, registry, tmp_path)
    assert is_whole(store, registry, manifest)
    (request,) = registry.asked("token")
    assert signature_is_good(request, registry.url)
    assert request.path.count("scope=") == 2
    names = [pair.partition("=")[0] for pair in request.path.partition("?")[2].split("&")]
    assert names == sorted(names)


def test_a_registry_that_is_never_content(
    store: Store, registry: HostileRegistry, manifest: Manifest, tmp_path: Path
) -> None:
    registry.lock()
    registry.tricks["token"] = lambda exchange: exchange.answer(200, b'{"token":"not-the-one"}')
    with pytest.raises(RegistryAuthError, match="unauthorized: access denied"):
        pull_it(store, registry, tmp_path)
    assert len(registry.requests) == 3


@pytest.mark.parametrize(
    "realm", ["http://127.0.0.1:9/token", "http://other.test/token", "file:///etc/passwd", "//x/token"]
)
def test_a_realm_on_another_host_is_not_asked(
    realm: str, store: Store, registry: HostileRegistry, manifest: Manifest, tmp_path: Path
) -> None:
    """CVE-2025-51471, SEC-07."""
    registry.lock(realm=realm)
    with pytest.raises(RegistryError, match=r"does not match original host|not an http address"):
        pull_it(store, registry, tmp_path)
    assert not (tmp_path / "key").exists()


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"token":"a\\r\\nX-Evil: 1"}', b'{"token":7}', b"x" * 2_000_000])
def test_a_token_that_is_none(
    body: bytes, store: Store, registry: HostileRegistry, manifest: Manifest, tmp_path: Path
) -> None:
    registry.lock()
    registry.tricks["token"] = lambda exchange: exchange.answer(200, body)
    with pytest.raises(RegistryError, match=r"access denied|are allowed"):
        pull_it(store, registry, tmp_path)


def test_a_registry_that_wants_a_password(
    store: Store, registry: HostileRegistry, manifest: Manifest, tmp_path: Path
) -> None:
    registry.tricks["any"] = lambda exchange: exchange.answer(401, WWW_Authenticate='Basic realm="x"')
    with pytest.raises(RegistryAuthError, match="access denied") as caught:
        pull_it(store, registry, tmp_path)
    assert "Basic" in (caught.value.hint or "")


# What may be asked at all


def test_over_the_api_a_private_registry_needs_the_list(
    store: Store, registry: HostileRegistry, manifest: Manifest, tmp_path: Path
) -> None:
    """SEC-08."""
    with pytest.raises(AddressRefusedError, match="private address") as caught:
        pull_it(store, registry, tmp_path, user_typed=False)
    assert registry.host in (caught.value.hint or "")
    assert not registry.requests
    pull_it(store, registry, tmp_path, user_typed=False, private_allowed=(registry.host,))
    assert is_whole(store, registry, manifest)


def test_http_needs_to_be_allowed(store: Store, registry: HostileRegistry, tmp_path: Path) -> None:
    async def run() -> None:
        await pulled(store, name_of(registry), quick(tmp_path), insecure=False)

    with pytest.raises(RegistryError, match="insecure protocol http"):
        asyncio.run(run())
