"""Pulls from a registry that lies, stalls, redirects and asks for credentials: refused with the reason, or carried
through, and nothing left behind but parts to go on from."""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rsllm.errors import (
    AddressRefusedError,
    DigestMismatchError,
    DownloadError,
    ManifestError,
    ModelNotFoundError,
    RegistryAuthError,
    RegistryError,
    StoreFullError,
)
from rsllm.registry.disk import Disk
from rsllm.registry.parts import Part, PartFiles
from rsllm.store.digest import Digest
from rsllm.store.manifest import MANIFEST_LIMIT, Manifest, MediaType
from rsllm.store.name import ModelName
from rsllm.store.store import Store
from rsllm.system import lower_io_priority
from tests.support.hostile_registry import Exchange, HostileRegistry, Trick, signature_is_good
from tests.support.registry import noise, pulled, quick, run_pull

WEIGHTS = noise(300_000)
WEIGHTS_HEX = Digest.of(WEIGHTS).hex
LAYERS = {MediaType.MODEL: WEIGHTS, MediaType.TEMPLATE: b"{{ .Prompt }}"}


@pytest.fixture
def registry() -> Iterator[HostileRegistry]:
    with HostileRegistry() as registry:
        yield registry


@pytest.fixture
def manifest(registry: HostileRegistry) -> Manifest:
    return registry.add("library/m", "latest", LAYERS)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models")


def name_of(registry: HostileRegistry) -> str:
    return f"http://{registry.host}/library/m"


def pull_it(store: Store, registry: HostileRegistry, tmp_path: Path, **changes: Any) -> list[str]:
    steps = run_pull(store, name_of(registry), quick(tmp_path, **changes))
    return [step.status for step in steps]


def is_whole(store: Store, registry: HostileRegistry, manifest: Manifest) -> bool:
    found = store.find(ModelName.parse(name_of(registry)))
    return found.manifest.raw == manifest.raw and all(
        Digest.of(store.blob_path(layer.digest).read_bytes()) == layer.digest for layer in manifest.all_layers
    )


def left_behind(store: Store) -> set[str]:
    """The kinds of files that are in the store: `blob`, `partial`, `part`, or what they are called."""
    kinds = set()
    for path in store.root.rglob("*"):
        if not path.is_file() or path.name == "lock":
            continue
        stem, _, rest = path.name.partition("-partial")
        kind = {"": "partial"}.get(rest, "part") if stem != path.name else "blob"
        kinds.add(kind if path.parent.name == "blobs" else str(path.relative_to(store.root)))
    return kinds


def weights_only(trick: Trick) -> Trick:
    """A trick with the weights alone."""
    digest = str(Digest.of(WEIGHTS))
    return lambda exchange: trick(exchange) if exchange.path.endswith(digest) else False


def test_a_pull_ends_with_the_very_bytes_and_tells_so(
    store: Store, registry: HostileRegistry, manifest: Manifest, tmp_path: Path
) -> None:
    statuses = pull_it(store, registry, tmp_path)
    assert statuses[0] == "pulling manifest"
    assert statuses[-3:] == ["verifying sha256 digest", "writing manifest", "success"]
    assert f"pulling {Digest.of(WEIGHTS).short}" in statuses
    assert is_whole(store, registry, manifest)
    assert left_behind(store) == {"blob", f"manifests/{registry.host}/library/m/latest"}


def test_a_second_pull_asks_for_no_blob(
    store: Store, registry: HostileRegistry, manifest: Manifest, tmp_path: Path
) -> None:
    pull_it(store, registry, tmp_path)
    registry.requests.clear()
    steps = run_pull(store, name_of(registry), quick(tmp_path))
    assert not registry.asked("blob")
    assert all(step.completed == step.total for step in steps)


def test_a_name_that_is_not_there(store: Store, registry: HostileRegistry, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="pull model manifest: file does not exist"):
        pull_it(store, registry, tmp_path)


def test_an_error_of_the_registry_is_passed_on(store: Store, registry: HostileRegistry, tmp_path: Path) -> None:
    registry.tricks["manifest"] = lambda exchange: exchange.answer(412, b"a newer version\nis needed")
    with pytest.raises(RegistryError, match="pull model manifest: 412: a newer version is needed"):
        pull_it(store, registry, tmp_path)


# Bodies that lie


def wrong_bytes(exchange: Exchange) -> None:
    exchange.blob(bytes(len(WEIGHTS)))


def empty_body(exchange: Exchange) -> None:
    exchange.answer(200, b"")


def short_body(exchange: Exchange) -> None:
    start, end = exchange.range(len(WEIGHTS)) or (0, len(WEIGHTS))
    exchange.answer(
        206,
        WEIGHTS[start : start + 10],
        Content_Length=str(end - start),
        Content_Range=f"bytes {start}-{end - 1}/{len(WEIGHTS)}",
    )
    exchange.close_connection = True


def other_size(exchange: Exchange) -> None:
    exchange.answer(200, WEIGHTS + b"!")


def other_total(exchange: Exchange) -> None:
    start, end = exchange.range(len(WEIGHTS)) or (0, 1)
    exchange.answer(206, WEIGHTS[start:end], Content_Range=f"bytes {start}-{end - 1}/{len(WEIGHTS) + 1}")


def other_range(exchange: Exchange) -> None:
    start, end = exchange.range(len(WEIGHTS)) or (0, 1)
    exchange.answer(206, WEIGHTS[start:end], Content_Range=f"bytes {start + 1}-{end}/{len(WEIGHTS)}")


def no_range(exchange: Exchange) -> None:
    exchange.answer(206, WEIGHTS, Content_Range="")


def endless(exchange: Exchange) -> None:
    """A chunked body that never says where it ends."""
    exchange.send_response(200)
    exchange.send_header("Transfer-Encoding", "chunked")
    exchange.end_headers()
    for _ in range(10_000):
        exchange.wfile.write(b"10000\r\n" + bytes(0x10000) + b"\r\n")


def compressed(exchange: Exchange) -> None:
    exchange.answer(200, b"\x1f\x8b", Content_Encoding="gzip")


@pytest.mark.parametrize(
    ("trick", "kind", "reason"),
    [
        (wrong_bytes, DigestMismatchError, "digest mismatch, file must be downloaded again: want sha256:.*, got sha"),
        (empty_body, DownloadError, "max retries exceeded: the registry sends 0 bytes .* the manifest says 300,000"),
        (short_body, DownloadError, "max retries exceeded: "),
        (other_size, DownloadError, "sends 300,001 bytes .* the manifest says 300,000"),
        (other_total, DownloadError, "has 300,001 bytes at the registry, but the manifest says 300,000"),
        (other_range, DownloadError, r"bytes \d+-\d+ were asked for, and the registry sends 'bytes \d+-\d+/300000'"),
        (no_range, DownloadError, "does not say which"),
        (endless, DownloadError, "sends more than the 300,000 bytes|asked for"),
        (compressed, RegistryError, "compressed"),
    ],
)
def test_a_blob_that_is_not_what_the_manifest_says(
    trick: Trick, kind: type[Exception], reason: str, store: Store, registry: HostileRegistry, manifest: Manifest,
    tmp_path: Path,
) -> None:  # fmt: skip
    registry.tricks["blob"] = weights_only(trick)
    with pytest.raises(kind, match=reason):
        pull_it(store, registry, tmp_path)
    assert left_behind(store) <= {"blob", "partial", "part"}
    assert not store.has_blob(Digest.of(WEIGHTS))
    assert not store.names()
    registry.tricks.clear()
    pull_it(store, registry, tmp_path)
    assert is_whole(store, registry, manifest)


def test_what_an_earlier_pull_left_damaged_is_fetched_anew(
    store: Store, registry: HostileRegistry, manifest: Manifest, tmp_path: Path
) -> None:
    registry.tricks["blob"] = weights_only(short_body)
    with pytest.raises(DownloadError):
        pull_it(store, registry, tmp_path)
    partial = store.blob_path(Digest.of(WEIGHTS)).with_name(Digest.of(WEIGHTS).file_name + "-partial")
    with partial.open("r+b") as file:
        file.write(b"damaged")
    registry.tricks.clear()
    statuses = pull_it(store, registry, tmp_path)
    assert any("damaged: began anew" in status for status in statuses)
    assert is_whole(store, registry, manifest)


def test_a_registry_without_ranges_is_good_enough(
    store: Store, registry: HostileRegistry, manifest: Manifest, tmp_path: Path
) -> None:
    registry.tricks["blob"] = weights_only(lambda exchange: exchange.answer(200, WEIGHTS))
    pull_it(store, registry, tmp_path)
    assert is_whole(store, registry, manifest)


def test_parts_that_fail_now_and_then_are_asked_for_again_by_themselves(
    store: Store, registry: HostileRegistry, manifest: Manifest, tmp_path: Path
) -> None:
    seen: list[int] = []

    def every_other(exchange: Exchange) -> Any:
        seen.append(1)
        return exchange.answer(503, b"busy") if len(seen) % 2 else False

    registry.tricks["blob"] = weights_only(every_other)
    pull_it(store, registry, tmp_path, parallel=1)
    assert is_whole(store, registry, manifest)
    assert len(seen) == 2 * 5


# Stalls


def test_silence_breaks_the_connection_and_the_part_goes_on_where_it_was(
    store: Store, registry: HostileRegistry, manifest: Manifest, tmp_path: Path
) -> None:
    def stall_once(exchange: Exchange) -> Any:
        start, end = exchange.range(len(WEIGHTS)) or (0, 0)
        if start % 65536:
            return False
        exchange.send_response(206)
        exchange.send_header("Content-Length", str(end - start))
        exchange.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(WEIGHTS)}")
        exchange.end_headers()
        exchange.wfile.write(WEIGHTS[start : start + 1000])
        exchange.wfile.flush()
        registry.gone.wait(10)
        exchange.close_connection = True
        return None

    registry.tricks["blob"] = weights_only(stall_once)
    pull_it(store, registry, tmp_path, stall_seconds=0.4)
    assert is_whole(store, registry, manifest)
    ranges = sorted(request.headers["Range"] for request in registry.asked("blob") if "Range" in request.headers)
    assert "bytes=1000-65535" in ranges


def test_silence_that_does_not_end_ends_the_pull(
    store: Store, registry: HostileRegistry, manifest: Manifest, tmp_path: Path
) -> None:
    registry.tricks["blob"] = lambda exchange: registry.gone.wait(10)
    with pytest.raises(DownloadError, match="did not answer in time"):
        pull_it(store, registry, tmp_path, attempts=2, stall_seconds=0.1)


# Manifests


def ten_gigabytes(exchange: Exchange) -> None:
    exchange.answer(200, b"{", Content_Length=str(10 * 10**9))


def ten_gigabytes_untold(exchange: Exchange) -> None:
    endless(exchange)


@pytest.mark.parametrize("trick", [ten_gigabytes, ten_gigabytes_untold])
def test_a_manifest_of_ten_gigabytes_is_not_read(
    trick: Trick, store: Store, registry: HostileRegistry, tmp_path: Path
) -> None:
    registry.tricks["manifest"] = trick
    with pytest.raises(RegistryError, match=f"{MANIFEST_LIMIT:,}"):
        pull_it(store, registry, tmp_path)
    assert not store.root.exists()


@pytest.mark.parametrize(
    "digest",
    [
        "sha256:../../../../../../tmp/x",
        "sha256-45640291",
        "../sha256-" + "4" * 64,
        "sha256:" + "4" * 74,
        "sha256:" + "A" * 64,
        "md5:" + "4" * 64,
        "",
        None,
    ],
)
@pytest.mark.parametrize("media_type", [MediaType.MODEL, MediaType.TENSOR])
def test_a_digest_that_is_none_is_refused(
    digest: str | None, media_type: str, store: Store, registry: HostileRegistry, tmp_path: Path
) -> None:
    text = "null" if digest is None else f'"{digest}"'
    raw = f'{{"layers":[{{"mediaType":"{media_type}","digest":{text},"size":4}}]}}'.encode()
    registry.manifests["library/m", "latest"] = raw
    with pytest.raises(ManifestError, match=r"layers\[0\]\.digest"):
        pull_it(store, registry, tmp_path)
    assert not registry.asked("blob")
    assert not store.root.exists()


@pytest.mark.parametrize("raw", [b"", b"null", b"{}", b'{"layers":[]}', b'{"layers":{}}', b"[" * 10_000, b"<html>"])
def test_a_manifest_that_is_none_is_refused(
    raw: bytes, store: Store, registry: HostileRegistry, tmp_path: Path
) -> None:
    registry.manifests["library/m", "latest"] = raw
    with pytest.raises(ManifestError, match=r"manifest|layers"):
        pull_it(store, registry, tmp_path)


def test_a_manifest_without_configuration_and_an_empty_layer_are_fine(
    store: Store, registry: HostileRegistry, tmp_path: Path
) -> None:
    empty = Digest.of(b"")
    weights = Digest.of(WEIGHTS)
    registry.blobs[str(weights)] = WEIGHTS
    raw = (
        f'{{"layers":[{{"mediaType":"{MediaType.MODEL}","digest":"{weights}"}},'
        f'{{"mediaType":"{MediaType.PARAMS}","digest":"{empty}","size":0}}]}}'
    )
    registry.manifests["library/m", "latest"] = raw.encode()
    pull_it(store, registry, tmp_path)
    assert store.blob_path(weights).read_bytes() == WEIGHTS  # its size was asked for
    assert store.has_blob(empty, 0)


def test_a_layer_larger_than_the_disk_is_refused_before_anything_is_fetched(
    store: Store, registry: HostileRegistry, tmp_path: Path
) -> None:
    raw = f'{{"layers":[{{"mediaType":"{MediaType.MODEL}","digest":"sha256:{"4" * 64}","size":{2**60}}}]}}'
    registry.manifests["library/m", "latest"] = raw.encode()
    with pytest.raises(StoreFullError, match="bytes are needed"):
        pull_it(store, registry, tmp_path)
    assert not registry.asked("blob")


# Redirects


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


# Mirrors


def test_mirrors_are_asked_first_and_digests_decide(
    store: Store, registry: HostileRegistry, manifest: Manifest, tmp_path: Path
) -> None:
    with HostileRegistry() as lacking, HostileRegistry(manifests=dict(registry.manifests)) as lying:
        lying.tricks["blob"] = lambda exchange: exchange.blob(bytes(len(WEIGHTS)))
        mirrors = tuple(f"{registry.host}={mirror.url}" for mirror in (lacking, lying))
        statuses = pull_it(store, registry, tmp_path, mirrors=mirrors, user_typed=True)
        assert lacking.asked("manifest")
        assert lying.asked("blob")
    assert is_whole(store, registry, manifest)
    assert any(lacking.url in status and "passed over" in status for status in statuses)
    assert any(lying.url in status for status in statuses)
    assert not registry.asked("manifest")


# Several at once


async def test_two_pulls_share_one_download_and_it_stops_with_the_last(
    store: Store, registry: HostileRegistry, manifest: Manifest, tmp_path: Path
) -> None:
    def slow(exchange: Exchange) -> Any:
        time.sleep(0.05)
        return False

    registry.tricks["blob"] = slow
    await asyncio.gather(*(pulled(store, name_of(registry), quick(tmp_path)) for _ in range(3)))
    assert is_whole(store, registry, manifest)
    ranges = [request.headers["Range"] for request in registry.asked("blob") if request.path.endswith(WEIGHTS_HEX)]
    assert len(ranges) == len(set(ranges)) == 5


async def test_a_pull_that_is_given_up_stops_and_can_be_taken_up(
    store: Store, registry: HostileRegistry, manifest: Manifest, tmp_path: Path
) -> None:
    started = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hang(exchange: Exchange) -> Any:
        if (exchange.range(len(WEIGHTS)) or (0, 0))[0] == 0:
            return False
        loop.call_soon_threadsafe(started.set)
        registry.gone.wait(10)
        return False

    registry.tricks["blob"] = weights_only(hang)
    tasks = [asyncio.ensure_future(pulled(store, name_of(registry), quick(tmp_path, stall_seconds=9))) for _ in "ab"]
    await started.wait()
    tasks[0].cancel()
    await asyncio.gather(tasks[0], return_exceptions=True)
    assert not tasks[1].done()
    while not list(store.layout.blobs.glob("*-partial-*")):
        await asyncio.sleep(0.01)
    tasks[1].cancel()
    await asyncio.gather(tasks[1], return_exceptions=True)
    assert left_behind(store) <= {"partial", "part", "blob"}
    registry.tricks.clear()
    await pulled(store, name_of(registry), quick(tmp_path))
    assert is_whole(store, registry, manifest)


def test_layers_that_a_new_manifest_needs_no_more_are_removed(
    store: Store, registry: HostileRegistry, manifest: Manifest, tmp_path: Path
) -> None:
    pull_it(store, registry, tmp_path)
    registry.add("library/m", "latest", {MediaType.MODEL: b"new", MediaType.TEMPLATE: LAYERS[MediaType.TEMPLATE]})
    statuses = pull_it(store, registry, tmp_path)
    assert statuses[-2:] == ["removing unused layers", "success"]
    assert not store.has_blob(Digest.of(WEIGHTS))
    assert store.has_blob(Digest.of(LAYERS[MediaType.TEMPLATE]))


def test_nothing_is_removed_where_pruning_is_off(
    store: Store, registry: HostileRegistry, manifest: Manifest, tmp_path: Path
) -> None:
    pull_it(store, registry, tmp_path)
    registry.add("library/m", "latest", {MediaType.MODEL: b"new"})
    assert "removing unused layers" not in pull_it(store, registry, tmp_path, prune_after_pull=False)
    assert store.has_blob(Digest.of(WEIGHTS))


def test_pulls_that_know_nothing_of_each_other_download_a_blob_once(
    store: Store, registry: HostileRegistry, manifest: Manifest, tmp_path: Path
) -> None:
    """Each thread has a loop, a store and a lock of its own, as processes do."""
    begun = threading.Barrier(3, timeout=10)

    def slow(exchange: Exchange) -> Any:
        time.sleep(0.05)
        return False

    def one(_: int) -> None:
        begun.wait()
        pull_it(Store(store.root), registry, tmp_path)

    registry.tricks["blob"] = weights_only(slow)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(one, range(3)))
    assert is_whole(store, registry, manifest)
    ranges = [request.headers["Range"] for request in registry.asked("blob") if request.path.endswith(WEIGHTS_HEX)]
    assert len(ranges) == len(set(ranges)) == 5
    assert left_behind(store) == {"blob", f"manifests/{registry.host}/library/m/latest"}


def test_a_disk_that_is_full_ends_the_pull_and_the_next_one_goes_on(
    store: Store, registry: HostileRegistry, manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    save = PartFiles.save

    def full(self: PartFiles, part: Part) -> None:
        if part.completed and sum(written) > 100_000:
            part.completed = 0
            raise OSError(errno.ENOSPC, "No space left on device", str(self.data))
        written.append(part.completed)
        save(self, part)

    with monkeypatch.context() as patch:
        patch.setattr(PartFiles, "save", full)
        with pytest.raises(StoreFullError, match="no space is left on the disk") as caught:
            pull_it(store, registry, tmp_path, parallel=1)
    assert "rsllm prune" in (caught.value.hint or "")
    registry.requests.clear()
    pull_it(store, registry, tmp_path)
    assert is_whole(store, registry, manifest)
    ranges = {request.headers.get("Range") for request in registry.asked("blob") if request.path.endswith(WEIGHTS_HEX)}
    assert "bytes=0-65535" not in ranges


async def test_downloads_write_when_nobody_else_does(tmp_path: Path) -> None:
    files = PartFiles(tmp_path / ("sha256-" + "a" * 64))
    (part,) = files.load(10, 100, 100)
    disk = Disk(files)
    try:
        await disk.write(part, b"0123456789")
        await disk.hash_to(10)
        assert disk.digest() == Digest.of(b"0123456789").hex
    finally:
        await disk.close()
    for executor in (disk._writer, disk._hasher):
        assert executor._initializer is lower_io_priority  # type: ignore[attr-defined]
