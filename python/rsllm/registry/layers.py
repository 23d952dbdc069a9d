"""The blobs of a model: what is there, what is not, and getting the latter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

from rsllm.errors import ManifestError
from rsllm.registry.parts import PartFiles
from rsllm.registry.settings import RegistrySettings
from rsllm.registry.sharing import shared
from rsllm.registry.source import Source
from rsllm.store.adding import Adding
from rsllm.store.digest import Digest
from rsllm.store.files import require_space
from rsllm.store.manifest import Layer
from rsllm.store.progress import Progress
from rsllm.store.store import Store

__all__ = ["fetch_layers"]


async def fetch_layers(
    store: Store, adding: Adding, source: Source, layers: Iterable[Layer], settings: RegistrySettings
) -> AsyncGenerator[Progress, None]:
    """Have every blob in the store, one after another, and held by `adding`."""
    wanted = list({layer.digest: layer for layer in layers}.values())
    await asyncio.to_thread(adding.hold, [layer.digest for layer in wanted])
    missing = [layer for layer in wanted if not store.has_blob(layer.digest, layer.size or None)]
    left = sum(max(0, layer.size - _resumable(store, layer)) for layer in missing)
    require_space(store.layout.blobs, left, f"pull {source.name.short}")
    for layer in wanted:
        if layer not in missing:
            yield _line(layer, layer.size, layer.size)
            PartFiles(store.blob_path(layer.digest)).remove_records()  # of a download that was killed at its very end
        elif layer.digest == Digest.of(b""):
            await asyncio.to_thread(adding.add_blob, [b""], layer.digest)
            yield _line(layer, 0, 0)
        else:
            async with aclosing(_download(store, source, layer, settings)) as steps:
                async for step in steps:
                    yield step


async def _download(
    store: Store, source: Source, layer: Layer, settings: RegistrySettings
) -> AsyncGenerator[Progress, None]:
    size = layer.size or await source.size(layer)
    if size == 0:
        raise ManifestError(f"the registry has 0 bytes for {layer.digest}, which is not the digest of nothing")
    path = store.blob_path(layer.digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    async with shared(path, lambda: source.transfer(store, layer, size)) as download:
        told = 0
        while not download.task.done():
            await asyncio.wait({download.task}, timeout=settings.progress_seconds)
            yield _line(layer, size, download.transfer.completed)
            for note in download.transfer.notes[told:]:
                told += 1
                yield Progress(note)
        await download.task
    yield _line(layer, size, size)


def _resumable(store: Store, layer: Layer) -> int:
    return sum(part.completed for part in PartFiles(store.blob_path(layer.digest)).peek())


def _line(layer: Layer, total: int, completed: int) -> Progress:
    return Progress(f"pulling {layer.digest.short}", str(layer.digest), total, completed)
