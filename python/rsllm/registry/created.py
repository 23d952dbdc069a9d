"""A model of GGUF files that have come as blobs: shards joined, a configuration made, texts that came along added."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path

from rsllm.registry.settings import RegistrySettings
from rsllm.store.adding import Adding
from rsllm.store.configuration import configuration
from rsllm.store.digest import Digest
from rsllm.store.files import explained, require_space
from rsllm.store.manifest import Layer, Manifest, MediaType
from rsllm.store.name import ModelName
from rsllm.store.progress import Progress
from rsllm.store.store import Store

__all__ = ["create_from"]


async def create_from(
    store: Store,
    adding: Adding,
    name: ModelName,
    blobs: Mapping[str, Digest],
    texts: Mapping[str, bytes],
    settings: RegistrySettings,
) -> AsyncGenerator[Progress, None]:
    """Write the manifest of `name`: weights from `blobs` by the names of their files, other layers by media type.

    Raises `GgufError` where the files are no model, `StoreError`.
    """
    made: list[Layer] = []
    done = 0

    def progress(count: int) -> None:
        nonlocal done
        done = count

    total = sum(store.blob_path(digest).stat().st_size for digest in blobs.values())
    what = "joining shards" if len(blobs) > 1 else "checking the model"
    task = asyncio.ensure_future(asyncio.to_thread(_layers, store, adding, blobs, texts, made, progress))
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=settings.progress_seconds)
            yield Progress(what, total=total, completed=min(done, total))
    finally:
        await asyncio.wait({task})  # a thread cannot be stopped, and `adding` must outlive it
    await task
    yield Progress("writing manifest")
    manifest = Manifest.build(made[-1], made[:-1])
    await asyncio.to_thread(adding.write_manifest, name, manifest.raw)
    yield Progress("success")


def _layers(
    store: Store,
    adding: Adding,
    blobs: Mapping[str, Digest],
    texts: Mapping[str, bytes],
    made: list[Layer],
    progress: Callable[[int], None],
) -> None:
    """Add what is not in the store yet; `made` gets the layers, the configuration last."""
    from rsllm.shards import joined, open_linked
    from rsllm.store.details import described

    with tempfile.TemporaryDirectory(prefix="rsllm-") as folder, explained(Path(folder), "join shards"):
        files = {file: store.blob_path(digest) for file, digest in blobs.items()}
        model = open_linked(Path(folder) / "links", files)
        if len(blobs) > 1:
            require_space(store.layout.blobs, model.file_bytes, "join shards")
            digest, size = adding.add_blob(joined(model), progress=progress)
        else:
            (digest,) = blobs.values()
            size = model.file_bytes
        made_of = [(MediaType.MODEL, described(model))]
    made.append(Layer(MediaType.MODEL, digest, size))
    made.extend(Layer(media_type, *adding.add_blob([data])) for media_type, data in texts.items())
    made.append(Layer(MediaType.CONFIG, *adding.add_blob([configuration(made_of)])))
