"""Pulling a split model of hf.co: its shards by digest, and then one model of them (`rsllm.registry.hub`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from rsllm.errors import DownloadError, ModelNotFoundError
from rsllm.registry import hub
from rsllm.registry.client import RegistryClient
from rsllm.registry.created import create_from
from rsllm.registry.layers import fetch_layers
from rsllm.registry.patience import ask
from rsllm.registry.settings import RegistrySettings
from rsllm.registry.source import Source
from rsllm.store.progress import Progress
from rsllm.store.store import Store

__all__ = ["pull_split"]


async def pull_split(store: Store, source: Source, settings: RegistrySettings) -> AsyncGenerator[Progress, None]:
    """Fetch the shards that the source's name means, and make one model of them.

    Raises `ModelNotFoundError`, `DownloadError` and its kinds, and what creating a model raises.
    """
    yield Progress("the registry refuses split models: pulling the shards themselves")
    async with source.client() as client:
        shards, texts = await _ask(client, source, settings)
    for note in source.notes:
        yield Progress(note)
    with store.adding() as adding:
        layers = [shard.layer for shard in shards]
        async with aclosing(fetch_layers(store, adding, source, layers, settings)) as steps:
            async for step in steps:
                yield step
        yield Progress("verifying sha256 digest")
        blobs = {shard.name: shard.digest for shard in shards}
        async with aclosing(create_from(store, adding, source.name, blobs, texts, settings)) as steps:
            async for step in steps:
                yield step
    await asyncio.to_thread(store.remove_unused, [shard.digest for shard in shards])


async def _ask(
    client: RegistryClient, source: Source, settings: RegistrySettings
) -> tuple[list[hub.Shard], dict[str, bytes]]:
    """The shards and the texts beside them, from the first place that can tell; it becomes the source's first."""
    for number, place in enumerate(source.places):
        try:
            found = await ask(partial(hub.listing, client, place), settings)
            shards = hub.choose(found, source.name.tag)
            texts = await ask(partial(hub.texts, client, place, found), settings)
        except (DownloadError, ModelNotFoundError) as error:
            if number + 1 == len(source.places):
                raise
            source.notes.append(f"{place.site} was passed over: {error}")
            continue
        source.places = [
            other.with_files({shard.digest: found.address(other, shard.path) for shard in shards})
            for other in source.places[number:]
        ]
        return shards, texts
    raise AssertionError("the last place answers or raises")
