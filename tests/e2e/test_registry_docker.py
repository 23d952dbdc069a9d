"""Against Debian's `docker-registry`: push, remove, pull back, the same digests; and pulls that are killed."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rsllm.errors import ModelNotFoundError, RegistryError
from rsllm.registry.pull import pull
from rsllm.registry.push import push
from rsllm.store.manifest import MediaType
from rsllm.store.name import ModelName
from rsllm.store.progress import Progress
from rsllm.store.store import Store
from tests import registry_kills
from tests.support.registry import MISSING, add_model, docker_registry, noise, quick

pytestmark = pytest.mark.skipif(shutil.which("docker-registry") is None, reason=MISSING)

LAYERS = {
    MediaType.MODEL: noise(700_001),
    MediaType.TEMPLATE: "{{ .Prompt }} ü 模型".encode(),
    MediaType.LICENSE: b"",
    MediaType.PARAMS: b'{"temperature":0.5}',
}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with docker_registry(tmp_path_factory.mktemp("registry")) as host:
        yield host


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models")


def pushed(store: Store, name: ModelName, folder: Path) -> list[Progress]:
    async def run() -> list[Progress]:
        return [step async for step in push(store, name, insecure=True, settings=quick(folder))]

    return asyncio.run(run())


def pulled(store: Store, name: ModelName, folder: Path) -> list[Progress]:
    async def run() -> list[Progress]:
        return [step async for step in pull(store, name, insecure=True, settings=quick(folder))]

    return asyncio.run(run())


def files(store: Store) -> dict[str, bytes]:
    return {
        str(path.relative_to(store.root)): path.read_bytes()
        for path in store.root.rglob("*")
        if path.is_file() and ".rsllm" not in path.parts
    }


def test_pushed_removed_and_pulled_back_it_is_the_same(host: str, store: Store, tmp_path: Path) -> None:
    name = ModelName.parse(f"http://{host}/someone/there.and-back:v1")
    add_model(store, name, LAYERS)
    before = files(store)
    steps = pushed(store, name, tmp_path)
    assert steps[0].status == "retrieving manifest"
    assert [step.status for step in steps[-2:]] == ["pushing manifest", "success"]
    store.delete(name)
    assert not files(store)
    pulled(store, name, tmp_path)
    assert files(store) == before


def test_blobs_that_the_registry_has_are_not_sent_again(host: str, store: Store, tmp_path: Path) -> None:
    name = ModelName.parse(f"http://{host}/someone/twice")
    add_model(store, name, LAYERS)
    pushed(store, name, tmp_path)
    steps = pushed(store, name, tmp_path)
    assert all(step.completed in (0, step.total) for step in steps if step.total)


def test_what_is_not_there(host: str, store: Store, tmp_path: Path) -> None:
    name = ModelName.parse(f"http://{host}/someone/nothing")
    with pytest.raises(ModelNotFoundError, match="pull model manifest: file does not exist"):
        pulled(store, name, tmp_path)
    with pytest.raises(ModelNotFoundError, match="not found"):
        pushed(store, name, tmp_path)


@pytest.mark.timeout(180)  # some fifteen processes, one after another
def test_pulls_killed_at_random_bytes_resume_and_verify(tmp_path: Path) -> None:
    rounds = registry_kills.run_rounds(5, tmp_path, seed=7)
    assert len(rounds) == 5


def test_a_registry_that_is_gone(store: Store, tmp_path: Path) -> None:
    with docker_registry(tmp_path / "short-lived") as host:
        name = ModelName.parse(f"http://{host}/someone/m")
        add_model(store, name, LAYERS)
        pushed(store, name, tmp_path)
    with pytest.raises(Exception, match=f"no connection to http://{host}") as caught:
        pulled(Store(tmp_path / "other"), name, tmp_path)
    assert not isinstance(caught.value, RegistryError)
