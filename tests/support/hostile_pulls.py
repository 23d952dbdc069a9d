"""What tests of pulls from a hostile registry share: a small model, fixtures, and what to look for afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rsllm.store.digest import Digest
from rsllm.store.manifest import Manifest, MediaType
from rsllm.store.name import ModelName
from rsllm.store.store import Store
from tests.support.hostile_registry import HostileRegistry, Trick
from tests.support.registry import noise, quick, run_pull

__all__ = [
    "LAYERS",
    "WEIGHTS",
    "WEIGHTS_HEX",
    "is_whole",
    "left_behind",
    "manifest",
    "name_of",
    "pull_it",
    "registry",
    "store",
    "weights_only",
]

WEIGHTS = noise(300_000)
WEIGHTS_HEX = Digest.of(WEIGHTS).hex
LAYERS = {MediaType.MODEL: WEIGHTS, MediaType.TEMPLATE: b"{{ .Prompt }}"}


@pytest.fixture
def registry() -> Iterator[HostileRegistry]:
    with HostileRegistry() as registry:
        yield registry


@pytest.fixture
def manifest(registry: HostileRegistry) -> Manifest:
    return registry.add("library/m", "latest", LAYERS)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models")


def name_of(registry: HostileRegistry) -> str:
    return f"http://{registry.host}/library/m"


def pull_it(store: Store, registry: HostileRegistry, tmp_path: Path, **changes: Any) -> list[str]:
    steps = run_pull(store, name_of(registry), quick(tmp_path, **changes))
    return [step.status for step in steps]


def is_whole(store: Store, registry: HostileRegistry, manifest: Manifest) -> bool:
    found = store.find(ModelName.parse(name_of(registry)))
    return found.manifest.raw == manifest.raw and all(
        Digest.of(store.blob_path(layer.digest).read_bytes()) == layer.digest for layer in manifest.all_layers
    )


def left_behind(store: Store) -> set[str]:
    """The kinds of files that are in the store: `blob`, `partial`, `part`, or what they are called."""
    kinds = set()
    for path in store.root.rglob("*"):
        if not path.is_file() or path.name == "lock":
            continue
        stem, _, rest = path.name.partition("-partial")
        kind = {"": "partial"}.get(rest, "part") if stem != path.name else "blob"
        kinds.add(kind if path.parent.name == "blobs" else str(path.relative_to(store.root)))
    return kinds


def weights_only(trick: Trick) -> Trick:
    """A trick with the weights alone."""
    digest = str(Digest.of(WEIGHTS))
    return lambda exchange: trick(exchange) if exchange.path.endswith(digest) else False
