"""Small requests that fail by chance are made again; what a registry says for good is not asked twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from rsllm.errors import DownloadError, ModelNotFoundError, RegistryError
from rsllm.registry.push import push
from rsllm.store.manifest import Manifest
from rsllm.store.name import ModelName
from rsllm.store.store import Store
from tests.support import hostile_pulls
from tests.support.hostile_pulls import LAYERS, is_whole, pull_it
from tests.support.hostile_registry import Exchange, HostileRegistry
from tests.support.registry import add_model, quick

registry, manifest, store = hostile_pulls.registry, hostile_pulls.manifest, hostile_pulls.store


def failing(times: int, fail: Callable[[Exchange], None]) -> Callable[[Exchange], bool]:
    """A trick that plays `fail` so often, and is honest from then on."""
    left = times

    def trick(exchange: Exchange) -> bool:
        nonlocal left
        left -= 1
        if left >= 0:
            fail(exchange)
        return left >= 0

    return trick


def unavailable(exchange: Exchange) -> None:
    exchange.answer(503, b"come back later")


def hang_up(exchange: Exchange) -> None:
    exchange.close_connection = True
    exchange.connection.close()


@pytest.mark.parametrize("fail", [unavailable, hang_up])
def test_a_manifest_is_asked_for_again(
    fail: Callable[[Exchange], None], store: Store, registry: HostileRegistry, manifest: Manifest, tmp_path: Path
) -> None:
    registry.tricks["manifest"] = failing(2, fail)
    assert pull_it(store, registry, tmp_path)[-1] == "success"
    assert len(registry.asked("manifest")) == 3
    assert is_whole(store, registry, manifest)


def test_but_not_for_ever(store: Store, registry: HostileRegistry, manifest: Manifest, tmp_path: Path) -> None:
    registry.tricks["manifest"] = unavailable
    with pytest.raises(RegistryError, match="pull model manifest: 503: come back later"):
        pull_it(store, registry, tmp_path)
    assert len(registry.asked("manifest")) == 3


def test_what_is_not_there_is_asked_for_once(store: Store, registry: HostileRegistry, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        pull_it(store, registry, tmp_path)
    assert len(registry.asked("manifest")) == 1


def test_a_registry_that_does_not_answer_in_time_is_not_waited_for_again(
    store: Store, registry: HostileRegistry, tmp_path: Path
) -> None:
    registry.tricks["manifest"] = lambda exchange: registry.gone.wait(20)
    with pytest.raises(DownloadError, match="did not answer in time"):
        pull_it(store, registry, tmp_path, stall_seconds=0.2)
    assert len(registry.asked("manifest")) == 1


def test_pushing_survives_answers_of_chance(store: Store, registry: HostileRegistry, tmp_path: Path) -> None:
    name = ModelName.parse(f"http://{registry.host}/me/m")
    manifest = add_model(store, name, LAYERS)
    registry.tricks["manifest"] = failing(1, unavailable)
    registry.tricks["blob"] = failing(1, hang_up)

    async def run() -> list[str]:
        return [step.status async for step in push(store, name, insecure=True, settings=quick(tmp_path))]

    assert asyncio.run(run())[-1] == "success"
    assert registry.manifests["me/m", "latest"] == manifest.raw
