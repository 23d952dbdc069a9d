"""Pulling a model: its manifest, the blobs that are missing, and then its name.

The name appears last, so a pull that ends early, however it ends, leaves the store as it was but for parts to go on
from. Blobs that are there, or have come, are held meanwhile, so nobody deletes them before the manifest refers to
them. What the manifest of the same name referred to before, and nothing needs any more, is removed at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

from rsllm.config import config
from rsllm.errors import RegistryError, RsllmError
from rsllm.registry import hub
from rsllm.registry.layers import fetch_layers
from rsllm.registry.settings import RegistrySettings
from rsllm.registry.source import Source
from rsllm.registry.split import pull_split
from rsllm.store.digest import Digest
from rsllm.store.manifest import Manifest
from rsllm.store.name import ModelName
from rsllm.store.progress import Progress
from rsllm.store.store import Store

__all__ = ["pull"]


async def pull(
    store: Store, name: ModelName, *, insecure: bool = False, settings: RegistrySettings | None = None
) -> AsyncGenerator[Progress, None]:
    """Fetch `name` into `store`, telling of it in Ollama's words; close the iterator to stop.

    `insecure` speaks http to the registry that the name says. Raises `ModelNotFoundError`, `DownloadError` and its
    kinds, `ManifestError`, `DigestMismatchError`, `StoreError`.
    """
    settings = settings or RegistrySettings.from_config(config())
    source = Source(name, settings, insecure=insecure)
    yield Progress("pulling manifest")
    manifest = await _manifest(source)
    if manifest is None:
        async with aclosing(pull_split(store, source, settings)) as steps:
            async for step in steps:
                yield step
        return
    for note in source.notes:
        yield Progress(note)
    with store.adding() as adding:
        async with aclosing(fetch_layers(store, adding, source, manifest.all_layers, settings)) as steps:
            async for step in steps:
                yield step
        yield Progress("verifying sha256 digest")  # done as they came: only what is verified gets its name
        yield Progress("writing manifest")
        before = await asyncio.to_thread(adding.write_manifest, name, manifest.raw)
    if before is not None and settings.prune_after_pull and (unused := before.digests - manifest.digests):
        async with aclosing(_remove_unused(store, unused)) as steps:
            async for step in steps:
                yield step
    yield Progress("success")


async def _manifest(source: Source) -> Manifest | None:
    """What the name means; `None` for a split model of hf.co, which has no manifest."""
    try:
        return await source.manifest()
    except RegistryError as error:
        if hub.is_split(source.name, error):
            return None
        raise


async def _remove_unused(store: Store, digests: Iterable[Digest]) -> AsyncGenerator[Progress, None]:
    """Remove blobs that nothing needs any more; failing that is told, and is no failure of the pull."""
    yield Progress("removing unused layers")
    try:
        await asyncio.to_thread(store.remove_unused, digests)
    except (OSError, RsllmError) as error:
        yield Progress(f"couldn't remove unused layers: {error}")
