"""Small stores for tests: models of a few bytes, and what a store may never look like."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from rsllm.store.digest import Digest
from rsllm.store.manifest import Layer, Manifest, MediaType
from rsllm.store.name import ModelName
from rsllm.store.store import Store


def add_model(store: Store, name: str, weights: bytes = b"weights", **parts: bytes) -> Manifest:
    """A model with these weights and further parts by the last word of their media type."""
    with store.adding() as adding:
        layers = []
        for kind, content in {"model": weights, **parts}.items():
            digest, size = adding.add_blob([content])
            layers.append(Layer(f"application/vnd.ollama.image.{kind}", digest, size))
        digest, size = adding.add_blob([json.dumps({"model_format": "gguf"}).encode()])
        manifest = Manifest.build(Layer(MediaType.CONFIG, digest, size), layers)
        adding.write_manifest(ModelName.parse(name), manifest.raw)
    return manifest


def names(store: Store) -> list[str]:
    """The short names of all models."""
    return [entry.name.short for entry in store.names()]


def blobs(store: Store) -> set[str]:
    """The names of all files among the blobs."""
    return set(os.listdir(store.layout.blobs)) if store.layout.blobs.exists() else set()


def age(path: Path, seconds: float) -> None:
    """Make a file look as if it was last touched so long ago."""
    then = time.time() - seconds
    os.utime(path, (then, then), follow_symlinks=False)


def age_all(store: Store, seconds: float = 7200) -> None:
    """Make all blobs old."""
    for name in blobs(store):
        age(store.layout.blobs / name, seconds)


def digest_names(*contents: bytes) -> set[str]:
    """The file names of blobs with these contents."""
    return {Digest.of(content).file_name for content in contents}
