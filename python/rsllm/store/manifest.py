"""Manifests: which blobs a model consists of.

The bytes of a manifest are its identity (the digest of a model is theirs), so they are kept as they came and never
written anew from what was understood of them. Keys that mean nothing here are ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rsllm.errors import DigestError, ManifestError
from rsllm.store.digest import Digest

__all__ = ["MANIFEST_LIMIT", "Layer", "Manifest", "MediaType"]

MANIFEST_LIMIT = 4 * 2**20
"""Most bytes of a manifest; a model of a thousand tensors, a layer each, needs a quarter of a megabyte."""

_LAYER_LIMIT = 20_000
_SIZE_LIMIT = 2**63 - 1
_SHOWN = 60
_ANY_DIGEST = re.compile(rb"sha256[:-]([0-9a-f]{64})(?![0-9a-f])")


class MediaType:
    """The kinds of layers, and the two types around them."""

    MODEL = "application/vnd.ollama.image.model"
    PROJECTOR = "application/vnd.ollama.image.projector"
    ADAPTER = "application/vnd.ollama.image.adapter"
    DRAFT = "application/vnd.ollama.image.draft"
    TEMPLATE = "application/vnd.ollama.image.template"
    PROMPT = "application/vnd.ollama.image.prompt"
    SYSTEM = "application/vnd.ollama.image.system"
    PARAMS = "application/vnd.ollama.image.params"
    MESSAGES = "application/vnd.ollama.image.messages"
    LICENSE = "application/vnd.ollama.image.license"
    EMBED = "application/vnd.ollama.image.embed"
    TENSOR = "application/vnd.ollama.image.tensor"
    JSON = "application/vnd.ollama.image.json"
    CONFIG = "application/vnd.docker.container.image.v1+json"
    MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


@dataclass(frozen=True, slots=True)
class Layer:
    """One blob and what it is: `size` in bytes, `from_` the model it was taken from, `name` that of a tensor layer."""

    media_type: str
    digest: Digest
    size: int
    from_: str | None = None
    name: str | None = None

    def as_dict(self) -> dict[str, str | int]:
        """In the keys and the order of the file."""
        value: dict[str, str | int] = {"mediaType": self.media_type, "digest": str(self.digest), "size": self.size}
        if self.from_:
            value["from"] = self.from_
        if self.name:
            value["name"] = self.name
        return value


@dataclass(frozen=True)
class Manifest:
    """The bytes, and what they say. A manifest without configuration has `config` `None`."""

    raw: bytes = field(repr=False)
    config: Layer | None
    layers: tuple[Layer, ...]

    @classmethod
    def parse(cls, raw: bytes) -> Manifest:
        """Read a manifest; raises `ManifestError` naming the field."""
        if len(raw) > MANIFEST_LIMIT:
            raise ManifestError(f"the manifest has {len(raw):,} bytes, and at most {MANIFEST_LIMIT:,} are allowed")
        try:
            value = json.loads(raw.decode(), parse_constant=_no_constant)
        except UnicodeDecodeError as error:
            raise ManifestError(f"the manifest is not UTF-8: byte {error.start}") from None
        except (ValueError, RecursionError) as error:
            raise ManifestError(f"the manifest is not JSON: {error or 'too deep'}") from None
        if not isinstance(value, dict):
            raise ManifestError(f"the manifest is {_kind(value)} and not an object")
        layers = value.get("layers")
        if layers is None:
            layers = []
        if not isinstance(layers, list):
            raise ManifestError(f"layers is {_kind(layers)} and not a list", field="layers")
        if len(layers) > _LAYER_LIMIT:
            raise ManifestError(f"there are {len(layers):,} layers, and at most {_LAYER_LIMIT:,} are allowed")
        return cls(
            raw=raw,
            config=_config(value.get("config")),
            layers=tuple(_layer(layer, f"layers[{index}]") for index, layer in enumerate(layers)),
        )

    @classmethod
    def build(cls, config: Layer | None, layers: Iterable[Layer]) -> Manifest:
        """A new manifest, in the bytes that Ollama writes for it."""
        layers = tuple(layers)
        value = {
            "schemaVersion": 2,
            "mediaType": MediaType.MANIFEST,
            "config": config.as_dict() if config else {"mediaType": "", "digest": "", "size": 0},
            "layers": [layer.as_dict() for layer in layers],
        }
        return cls(raw=_go_json(value), config=config, layers=layers)

    @property
    def digest(self) -> Digest:
        """The digest of the model: that of the bytes."""
        return Digest.of(self.raw)

    @property
    def size(self) -> int:
        """Bytes of all blobs, the configuration's too."""
        return sum(layer.size for layer in self.all_layers)

    @property
    def all_layers(self) -> tuple[Layer, ...]:
        """The layers, and the configuration last."""
        return (*self.layers, self.config) if self.config else self.layers

    @property
    def digests(self) -> frozenset[Digest]:
        """The blobs it needs."""
        return frozenset(layer.digest for layer in self.all_layers)

    def of_type(self, media_type: str) -> list[Layer]:
        """Its layers of one kind, in order."""
        return [layer for layer in self.layers if layer.media_type == media_type]


def mentioned_digests(raw: bytes) -> frozenset[Digest]:
    """Every digest that stands anywhere in these bytes: what a damaged manifest may need."""
    return frozenset(Digest(match[1].decode()) for match in _ANY_DIGEST.finditer(raw))


def _config(value: Any) -> Layer | None:
    if value is None or (isinstance(value, dict) and not value.get("digest")):
        return None
    return _layer(value, "config")


def _layer(value: Any, where: str) -> Layer:
    if not isinstance(value, dict):
        raise ManifestError(f"{where} is {_kind(value)} and not an object", field=where)
    try:
        digest = Digest.parse(value.get("digest"))
    except DigestError as error:
        raise ManifestError(f"{where}.digest: {error}", field=f"{where}.digest") from None
    size = value.get("size", 0)
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _SIZE_LIMIT:
        raise ManifestError(f"{where}.size is not a number of bytes: {str(size)[:_SHOWN]}", field=f"{where}.size")
    return Layer(
        media_type=_text(value, "mediaType", where),
        digest=digest,
        size=size,
        from_=_text(value, "from", where) or None,
        name=_text(value, "name", where) or None,
    )


def _text(value: dict[str, Any], key: str, where: str) -> str:
    text = value.get(key)
    if text is None:
        return ""
    if not isinstance(text, str):
        raise ManifestError(f"{where}.{key} is {_kind(text)} and not a text", field=f"{where}.{key}")
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a pair, which JSON can spell
        raise ManifestError(f"{where}.{key} is not valid Unicode", field=f"{where}.{key}") from None
    return text


_KINDS = {bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "null")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _go_json(value: Any) -> bytes:
    """JSON as Go's encoder writes it: compact, five characters escaped, a newline at the end."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode() + b"\n"
