"""Pushing a model: its blobs, those that the registry lacks, and then its manifest, byte for byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import partial

from rsllm.config import config
from rsllm.errors import ManifestError, ModelNameError, ModelNotFoundError, RegistryError
from rsllm.registry.client import RegistryClient, check_answer
from rsllm.registry.endpoints import Endpoint, own_endpoint
from rsllm.registry.patience import ask
from rsllm.registry.settings import RegistrySettings
from rsllm.registry.upload import Upload
from rsllm.store.digest import Digest
from rsllm.store.manifest import Layer, MediaType
from rsllm.store.model import StoredModel
from rsllm.store.name import ModelName
from rsllm.store.progress import Progress
from rsllm.store.store import Store

__all__ = ["push"]

_ANSWER_BYTES = 64 * 1024


async def push(
    store: Store, name: ModelName, *, insecure: bool = False, settings: RegistrySettings | None = None
) -> AsyncGenerator[Progress, None]:
    """Send `name` to the registry that it says, telling of it in Ollama's words; close the iterator to stop.

    Raises `ModelNotFoundError`, `RegistryAuthError`, `DownloadError` and its other kinds, `StoreError`.
    """
    settings = settings or RegistrySettings.from_config(config())
    place = own_endpoint(name, insecure=insecure)
    yield Progress("retrieving manifest")
    try:
        model = await asyncio.to_thread(store.find, name)
    except (ModelNotFoundError, ManifestError):
        yield Progress("couldn't retrieve manifest")
        raise
    client = RegistryClient(settings, trusted=(place.site,) if settings.user_typed else ())
    async with client:
        for layer in {layer.digest: layer for layer in model.manifest.all_layers}.values():
            if layer.size == 0 and layer.digest != Digest.of(b""):
                continue  # a layer that its own registry gave no content
            upload = _upload(client, place, model, layer, settings)
            task = asyncio.ensure_future(upload.run())
            try:
                while not task.done():
                    await asyncio.wait({task}, timeout=settings.progress_seconds)
                    yield _line(layer, upload.size, upload.completed)
                await task
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            yield _line(layer, upload.size, upload.size)
        yield Progress("pushing manifest")
        await ask(partial(_put_manifest, client, place, name.tag, model.manifest.raw), settings)
    yield Progress("success")


async def _put_manifest(client: RegistryClient, place: Endpoint, tag: str, raw: bytes) -> None:
    status, answer = await client.read(
        "PUT",
        place.manifest(tag),
        registry=place.site,
        limit=_ANSWER_BYTES,
        headers={"Content-Type": MediaType.MANIFEST},
        content=raw,
    )
    check_answer(status, answer, "push manifest")


def _upload(
    client: RegistryClient, place: Endpoint, model: StoredModel, layer: Layer, settings: RegistrySettings
) -> Upload:
    path = model.path(layer)
    if not path.is_file():
        if layer.size:
            raise RegistryError(
                f"model {model.name.short!r} is incomplete: {layer.digest.file_name} is missing",
                hint=f"rsllm pull {model.name.short}",
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return Upload(client, place, layer.digest, path, settings, mount_from=_mount_from(layer, model.name))


def _mount_from(layer: Layer, name: ModelName) -> str | None:
    """The repository on the same registry that a layer was taken from, if its manifest says so."""
    try:
        origin = ModelName.parse(layer.from_) if layer.from_ else None
    except ModelNameError:  # some are paths
        return None
    if origin is None or origin.host.lower() != name.host.lower():
        return None
    return f"{origin.namespace}/{origin.model}"


def _line(layer: Layer, total: int, completed: int) -> Progress:
    return Progress(f"pushing {layer.digest.short}", str(layer.digest), total, completed)
