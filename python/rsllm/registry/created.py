"""A model of GGUF files that have come as blobs: shards joined, a configuration made, texts that came along added."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rsllm.registry.settings import RegistrySettings
from rsllm.store.adding import Adding
from rsllm.store.digest import Digest
from rsllm.store.files import explained, require_space
from rsllm.store.manifest import Layer, Manifest, MediaType
from rsllm.store.name import ModelName
from rsllm.store.progress import Progress
from rsllm.store.store import Store

if TYPE_CHECKING:
    from rsllm.gguf import GgufFile

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

    with tempfile.TemporaryDirectory(prefix="rsllm-") as folder, explained(Path(folder), "join shards"):
        files = {file: store.blob_path(digest) for file, digest in blobs.items()}
        model = open_linked(Path(folder) / "links", files)
        if len(blobs) > 1:
            require_space(store.layout.blobs, model.file_bytes, "join shards")
            digest, size = adding.add_blob(joined(model), progress=progress)
        else:
            (digest,) = blobs.values()
            size = model.file_bytes
        config = _configuration(model)
    made.append(Layer(MediaType.MODEL, digest, size))
    for media_type, data in {**texts, MediaType.CONFIG: config}.items():
        made.append(Layer(media_type, *adding.add_blob([data])))


def _configuration(model: GgufFile) -> bytes:
    """What lists show of a model; everything else is read from its file when it is asked for."""
    family = str(model.metadata.get("general.architecture", ""))
    config = {
        "model_format": "gguf",
        "model_family": family,
        "model_families": [family],
        "model_type": _rounded(sum(tensor.n_elements for tensor in model.tensors.values())),
        "architecture": "amd64",
        "os": "linux",
    }
    return json.dumps(config, separators=(",", ":")).encode()


def _rounded(parameters: int) -> str:
    """A number of parameters as Ollama writes it: `8.0B` is `8B`, and `134.52M` keeps its decimals."""
    for unit, size, decimals in (("B", 10**9, 1), ("M", 10**6, 2)):
        if parameters >= size:
            return f"{parameters / size:.{decimals if parameters % size else 0}f}{unit}"
    return f"{parameters / 1000:.0f}K" if parameters >= 1000 else str(parameters)
