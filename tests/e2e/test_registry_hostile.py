"""Pulls from a registry whose blobs and manifests lie, or that stalls: refused with the reason, and nothing left behind
but parts to go on from."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from rsllm.errors import (
    DigestMismatchError,
    DownloadError,
    ManifestError,
    ModelNotFoundError,
    RegistryError,
    StoreFullError,
)
from rsllm.store.digest import Digest
from rsllm.store.manifest import MANIFEST_LIMIT, Manifest, MediaType
from rsllm.store.store import Store
from tests.support import hostile_pulls
from tests.support.hostile_pulls import (
    WEIGHTS,
    is_whole,
    left_behind,
    name_of,
    pull_it,
    weights_only,
)
from tests.support.hostile_registry import Exchange, HostileRegistry, Trick
from tests.support.registry import quick, run_pull

registry, manifest, store = hostile_pulls.registry, hostile_pulls.manifest, hostile_pulls.store


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
    """STO-02 (a body of nothing among them), CVE-2025-44779."""
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
    """SEC-06, CVE-2024-37032."""
    text = "null" if digest is None else f'"{digest}"'
    raw = f'{{"layers":[{{"mediaType":"{media_type}","digest":{text},"size":4}}]}}'.encode()
    registry.manifests["library/m", "latest"] = raw
    (tmp_path / "x").write_text("not ours")
    with pytest.raises(ManifestError, match=r"layers\[0\]\.digest"):
        pull_it(store, registry, tmp_path)
    assert not registry.asked("blob")
    assert not store.root.exists()
    assert (tmp_path / "x").read_text() == "not ours"


@pytest.mark.parametrize("kind", ["manifest", "token"])
def test_a_small_answer_that_grows_when_it_is_unpacked_is_refused(
    kind: str, store: Store, registry: HostileRegistry, manifest: Manifest, tmp_path: Path
) -> None:
    """CVE-2024-12886."""
    bomb = gzip.compress(bytes(10**7))

    def packed(exchange: Exchange) -> None:
        exchange.answer(200, bomb, Content_Encoding="gzip")

    if kind == "token":
        registry.lock()
    registry.tricks[kind] = packed
    with pytest.raises(RegistryError, match=r"answers compressed|access denied"):
        pull_it(store, registry, tmp_path)
    assert not store.root.exists()


@pytest.mark.parametrize("raw", [b"", b"null", b"{}", b'{"layers":[]}', b'{"layers":{}}', b"[" * 10_000, b"<html>"])
def test_a_manifest_that_is_none_is_refused(
    raw: bytes, store: Store, registry: HostileRegistry, tmp_path: Path
) -> None:
    """CVE-2025-1975."""
    registry.manifests["library/m", "latest"] = raw
    with pytest.raises(ManifestError, match=r"manifest|layers"):
        pull_it(store, registry, tmp_path)


def test_a_manifest_without_configuration_and_an_empty_layer_are_fine(
    store: Store, registry: HostileRegistry, tmp_path: Path
) -> None:
    """CVE-2025-1975."""
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
    """STO-04."""
    raw = f'{{"layers":[{{"mediaType":"{MediaType.MODEL}","digest":"sha256:{"4" * 64}","size":{2**60}}}]}}'
    registry.manifests["library/m", "latest"] = raw.encode()
    with pytest.raises(StoreFullError, match="bytes are needed"):
        pull_it(store, registry, tmp_path)
    assert not registry.asked("blob")
