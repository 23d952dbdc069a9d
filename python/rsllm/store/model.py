"""One model of the store: its manifest, and its parts, each read when asked for and no sooner."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from rsllm.errors import ModelError, StoreError
from rsllm.store.digest import Digest
from rsllm.store.files import read_limited
from rsllm.store.manifest import Layer, Manifest, MediaType
from rsllm.store.name import ModelName

__all__ = ["StoredModel"]

_TEXT_LIMIT = 4 * 2**20
_JSON_LIMIT = 16 * 2**20


@dataclass(frozen=True)
class StoredModel:
    """A model that is there. `name` is in the spelling of the disk; paths are those of the blobs."""

    name: ModelName
    manifest: Manifest
    modified_at: datetime
    blob_path: Callable[[Digest], Path] = field(repr=False, compare=False)

    @property
    def digest(self) -> Digest:
        """The digest of the manifest, by which lists tell models apart."""
        return self.manifest.digest

    @property
    def digest_hex(self) -> str:
        """The digits of `digest`."""
        return self.digest.hex

    @property
    def size(self) -> int:
        """Bytes of all its blobs."""
        return self.manifest.size

    def path(self, layer: Layer) -> Path:
        """The blob of a layer."""
        return self.blob_path(layer.digest)

    @property
    def weight_layers(self) -> list[Layer]:
        """The layers with weights; of several the last one counts."""
        return self.manifest.of_type(MediaType.MODEL)

    @property
    def weights(self) -> Path:
        """The GGUF; raises `ModelError` where the model has none, or its file is missing."""
        layers = self.weight_layers
        if not layers:
            if self.manifest.of_type(MediaType.TENSOR):
                reason = "its weights are safetensors, which cannot be run yet"
            elif remote := self.config.get("remote_host"):
                reason = f"it runs at {remote}"
            else:
                reason = "its manifest has no layer with weights"
            raise ModelError(f"model {self.name.short!r} has no weights here: {reason}")
        path = self.path(layers[-1])
        if not path.is_file():
            raise ModelError(
                f"model {self.name.short!r} is incomplete: its weights {layers[-1].digest.file_name} are missing",
                hint=f"get it with `rsllm pull {self.name.short}`",
            )
        return path

    @property
    def adapters(self) -> list[Path]:
        """LoRA adapters."""
        return [self.path(layer) for layer in self.manifest.of_type(MediaType.ADAPTER)]

    @property
    def projectors(self) -> list[Path]:
        """Projectors for images and sound."""
        return [self.path(layer) for layer in self.manifest.of_type(MediaType.PROJECTOR)]

    @property
    def drafts(self) -> list[Path]:
        """Draft models."""
        return [self.path(layer) for layer in self.manifest.of_type(MediaType.DRAFT)]

    @property
    def draft(self) -> Path | None:
        """The draft model in use, the last, if its file is there: without it the model says the same, only later."""
        path = self.drafts[-1] if self.drafts else None
        return path if path is not None and path.is_file() else None

    @property
    def parts_beside_weights(self) -> list[str]:
        """In words, what the model says beyond its file: what somebody who loads that file alone goes without."""
        kinds = {
            "a template": (MediaType.TEMPLATE, MediaType.PROMPT),
            "a system message": (MediaType.SYSTEM,),
            "parameters": (MediaType.PARAMS,),
            "messages": (MediaType.MESSAGES,),
            "a projector": (MediaType.PROJECTOR,),
        }
        present = {layer.media_type for layer in self.manifest.layers if layer.size > 0}
        return [words for words, types in kinds.items() if present & set(types)]

    @property
    def template(self) -> str | None:
        """The Go template; that of older models, which have another type, where there is no newer one."""
        layers = self.manifest.of_type(MediaType.TEMPLATE) or self.manifest.of_type(MediaType.PROMPT)
        return self._text(layers[-1]) if layers else None

    @property
    def system(self) -> str | None:
        """The system message."""
        layers = self.manifest.of_type(MediaType.SYSTEM)
        return self._text(layers[-1]) if layers else None

    @property
    def licenses(self) -> list[str]:
        """The licences, in order."""
        return [self._text(layer) for layer in self.manifest.of_type(MediaType.LICENSE)]

    @property
    def parameters(self) -> dict[str, Any]:
        """Its options by name, as they were written."""
        layers = self.manifest.of_type(MediaType.PARAMS)
        value: dict[str, Any] = self._json(layers[-1], dict) if layers else {}
        return value

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation that it starts with: role and content."""
        layers = self.manifest.of_type(MediaType.MESSAGES)
        messages: list[Any] = self._json(layers[-1], list) if layers else []
        if not all(isinstance(message, dict) for message in messages):
            raise StoreError(f"model {self.name.short!r}: its messages are not all objects")
        return messages

    @property
    def config(self) -> dict[str, Any]:
        """What its configuration says; any key may be missing."""
        layer = self.manifest.config
        value: dict[str, Any] = self._json(layer, dict) if layer else {}
        return value

    def _read(self, layer: Layer, limit: int) -> bytes:
        if layer.size == 0:
            return b""  # such a blob need not be there
        path = self.path(layer)
        try:
            return read_limited(path, limit)
        except FileNotFoundError:
            raise StoreError(
                f"model {self.name.short!r} is incomplete: its {_kind(layer)} {layer.digest.file_name} is missing",
                path=str(path),
                hint=f"get it with `rsllm pull {self.name.short}`",
            ) from None

    def _text(self, layer: Layer) -> str:
        # A licence in Latin-1 is no reason to refuse a model.
        return self._read(layer, _TEXT_LIMIT).decode(errors="replace")

    def _json(self, layer: Layer, kind: type) -> Any:
        raw = self._read(layer, _JSON_LIMIT)
        if not raw.strip():
            return kind()
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise StoreError(f"model {self.name.short!r}: its {_kind(layer)} is not JSON: {error}") from None
        if value is None:
            return kind()
        if not isinstance(value, kind):
            raise StoreError(f"model {self.name.short!r}: its {_kind(layer)} is not of the right kind")
        return value


def _kind(layer: Layer) -> str:
    """The last word of the media type: `params`, `template`."""
    return "configuration" if layer.media_type == MediaType.CONFIG else layer.media_type.rpartition(".")[2]
