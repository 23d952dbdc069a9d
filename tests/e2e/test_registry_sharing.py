"""Mirrors, pulls that meet, pulls that are given up, and what is removed after a pull."""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rsllm.errors import (
    StoreFullError,
)
from rsllm.registry.disk import Disk
from rsllm.registry.parts import Part, PartFiles
from rsllm.store.digest import Digest
from rsllm.store.manifest import Manifest, MediaType
from rsllm.store.store import Store
from rsllm.system import lower_io_priority
from tests.support import hostile_pulls
from tests.support.hostile_pulls import (
    LAYERS,
    WEIGHTS,
    WEIGHTS_HEX,
    is_whole,
    left_behind,
    name_of,
    pull_it,
    weights_only,
)
from tests.support.hostile_registry import Exchange, HostileRegistry
from tests.support.registry import pulled, quick

registry, manifest, store = hostile_pulls.registry, hostile_pulls.manifest, hostile_pulls.store


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
    """STO-05."""
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
    """STO-01: each thread has a loop, a store and a lock of its own, as processes do."""
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
    """STO-04."""
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
