"""Where one model comes from: the places to ask, in order, and what each of them said.

The first place that gives a manifest decides what the name means. Blobs are asked for there first, then at the places
after it; those before it have failed already. Why a place was passed over stands in `notes`, for whoever pulls to see.
"""

from __future__ import annotations

import ssl
from functools import partial

from rsllm.errors import DownloadError, ManifestError, ModelNotFoundError, RegistryError, RsllmError
from rsllm.registry import hub
from rsllm.registry.client import RegistryClient, check_answer
from rsllm.registry.endpoints import Endpoint, endpoints
from rsllm.registry.patience import ask
from rsllm.registry.settings import RegistrySettings
from rsllm.registry.transfer import Transfer
from rsllm.store.manifest import MANIFEST_LIMIT, Layer, Manifest, MediaType
from rsllm.store.name import ModelName
from rsllm.store.store import Store

__all__ = ["Source"]

_WHAT = "pull model manifest"


class Source:
    """The places that may have `name`; raises what `endpoints` raises."""

    def __init__(self, name: ModelName, settings: RegistrySettings, *, insecure: bool) -> None:
        self.name = name
        self.notes: list[str] = []
        self.places = endpoints(name, settings, insecure=insecure)
        self._settings = settings
        self._tokens: dict[tuple[str, str, int | None], str] = {}
        self._certificates: list[ssl.SSLContext] = []

    def client(self) -> RegistryClient:
        """A client for all of the places; clients of one source share their tokens, and read certificates once."""
        configured = [place.site for place in self.places if place.mirror]
        typed = [place.site for place in self.places if self._settings.user_typed]
        return RegistryClient(
            self._settings, trusted=(*configured, *typed), tokens=self._tokens, certificates=self._certificates
        )

    async def manifest(self) -> Manifest:
        """What the name means. Raises `ModelNotFoundError`, `DownloadError`, `ManifestError`."""
        async with self.client() as client:
            for number, place in enumerate(self.places):
                try:
                    manifest = await ask(partial(self._ask, client, place), self._settings)
                except (DownloadError, ManifestError, ModelNotFoundError) as error:
                    if isinstance(error, RegistryError) and hub.is_split(self.name, error):
                        self.places = self.places[number:]  # it has the model, in another form
                        raise
                    self._pass_over(number, error)
                else:
                    self.places = self.places[number:]
                    return manifest
        raise AssertionError("the last place answers or raises")

    async def size(self, layer: Layer) -> int:
        """The bytes of a blob, asked for where the manifest does not say; its digest decides what it holds."""
        async with self.client() as client:
            return await ask(partial(self._ask_size, client, self.places[0], layer), self._settings)

    async def _ask_size(self, client: RegistryClient, place: Endpoint, layer: Layer) -> int:
        async with client.send("HEAD", place.blob(layer.digest), registry=place.site) as response:
            length = response.headers.get("Content-Length", "")
            check_answer(response.status_code, b"", f"blob {layer.digest.short}")
            if not (length.isascii() and length.isdigit()):
                raise ManifestError(f"neither the manifest nor the registry says how large {layer.digest} is")
            return int(length)

    def transfer(self, store: Store, layer: Layer, size: int) -> Transfer:
        """The download of a blob, to be run."""
        return Transfer(
            layer.digest,
            size,
            store.blob_path(layer.digest),
            lock=store.blob_lock(layer.digest),
            client=self.client(),
            places=self.places,
            settings=self._settings,
        )

    async def _ask(self, client: RegistryClient, place: Endpoint) -> Manifest:
        status, body = await client.read(
            "GET",
            place.manifest(self.name.tag),
            registry=place.site,
            limit=MANIFEST_LIMIT,
            headers={"Accept": MediaType.MANIFEST},
        )
        if status == 404:
            raise ModelNotFoundError(f"{_WHAT}: file does not exist", hint=f"check the name: {self.name.full}")
        check_answer(status, body, _WHAT)
        manifest = Manifest.parse(body)
        if not manifest.layers:
            raise ManifestError("the registry's manifest has no layers", field="layers")
        if all(layer.media_type == MediaType.TENSOR for layer in manifest.layers if _is_weights(layer)):
            raise ManifestError("this model requires MLX support, but the MLX runtime is not available", field="layers")
        return manifest

    def _pass_over(self, number: int, error: RsllmError) -> None:
        """Note why a place was passed over; the last one raises, and tells of the others."""
        if number + 1 < len(self.places):
            self.notes.append(f"{self.places[number].site} was passed over: {error}")
            return
        if self.notes:
            error.add_note("; ".join(self.notes))
        raise error


def _is_weights(layer: Layer) -> bool:
    return layer.media_type in (MediaType.MODEL, MediaType.TENSOR)
