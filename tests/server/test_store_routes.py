"""`/api/tags`, `/api/ps`, `/api/copy`, `/api/delete`, blobs, pull and push."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from rsllm.errors import (
    AddressRefusedError,
    DownloadError,
    ModelNotFoundError,
    RegistryAuthError,
    RegistryError,
    RsllmError,
    StoreFullError,
)
from rsllm.store.name import ModelName
from rsllm.store.progress import Progress
from tests.server.conftest import Bench, lines


async def names(client: httpx2.AsyncClient) -> list[str]:
    return [model["name"] for model in (await client.get("/api/tags")).json()["models"]]


async def test_tags(client: httpx2.AsyncClient, bench: Bench) -> None:
    (model,) = (await client.get("/api/tags")).json()["models"]
    stored = bench.store.find(ModelName.parse("tiny"))
    assert model["name"] == model["model"] == "tiny:latest"
    assert model["digest"] == stored.digest_hex
    assert model["size"] == stored.size
    assert model["details"]["family"] == "fake"
    assert model["details"]["quantization_level"] == "F16"
    assert (await client.head("/api/tags")).status_code == 200


async def test_an_empty_store_has_an_empty_list(client: httpx2.AsyncClient) -> None:
    await client.request("DELETE", "/api/delete", json={"model": "tiny"})
    assert (await client.get("/api/tags")).json() == {"models": []}


async def test_a_damaged_model_hides_no_other(client: httpx2.AsyncClient, bench: Bench) -> None:
    bench.add("broken")
    path = next(entry.manifest_path for entry in bench.store.names() if entry.name.model == "broken")
    path.write_bytes(b"{")
    bench.add("gone", {"text": "gone"})
    bench.store.find(ModelName.parse("gone")).weights.unlink()
    listed = {model["name"]: model for model in (await client.get("/api/tags")).json()["models"]}
    assert set(listed) == {"tiny:latest", "broken:latest", "gone:latest"}
    assert "error" not in listed["tiny:latest"]
    assert listed["broken:latest"]["error"].startswith("the manifest is not JSON")
    assert listed["gone:latest"]["error"].endswith(" is missing")
    assert str(bench.store.root) not in str(listed)
    assert set(listed["broken:latest"]["details"]) <= set(listed["tiny:latest"]["details"])
    openai = (await client.get("/v1/models")).json()["data"]
    assert [model["id"] for model in openai] == ["tiny:latest"]
    for name in ("broken", "gone"):
        response = await client.request("DELETE", "/api/delete", json={"model": name})
        assert response.status_code == 200
    assert await names(client) == ["tiny:latest"]
    assert not path.exists()


async def test_ps(client: httpx2.AsyncClient) -> None:
    assert (await client.get("/api/ps")).json() == {"models": []}
    await client.post("/api/generate", json={"model": "tiny", "keep_alive": -1})
    (model,) = (await client.get("/api/ps")).json()["models"]
    assert (model["name"], model["model"], model["size_vram"]) == ("tiny:latest", "tiny:latest", 0)
    assert model["context_length"] == 4096
    assert model["size"] > 0
    assert len(model["digest"]) == 64
    assert model["expires_at"] > "2300"
    assert model["details"]["family"] == "fake"


async def test_copy(client: httpx2.AsyncClient) -> None:
    response = await client.post("/api/copy", json={"source": "tiny", "destination": "gpt-3.5-turbo"})
    assert (response.status_code, response.content) == (200, b"")
    assert sorted(await names(client)) == ["gpt-3.5-turbo:latest", "tiny:latest"]
    for body, status, text in (
        ({"source": "no", "destination": "x"}, 404, 'model "no" not found'),
        ({"source": "a b", "destination": "x"}, 400, 'source "a b" is invalid'),
        ({"source": "tiny", "destination": "../x"}, 400, 'destination "../x" is invalid'),
    ):
        response = await client.post("/api/copy", json=body)
        assert (response.status_code, response.json()["error"]) == (status, text)


async def test_delete(client: httpx2.AsyncClient, bench: Bench) -> None:
    await client.post("/api/generate", json={"model": "tiny"})
    response = await client.request("DELETE", "/api/delete", json={"name": "tiny"})
    assert (response.status_code, response.content) == (200, b"")
    assert await names(client) == []
    assert not [status for status in bench.pool.status() if status.phase.value == "ready"]
    response = await client.request("DELETE", "/api/delete", json={"model": "tiny"})
    assert (response.status_code, response.json()["error"]) == (404, "model 'tiny' not found")
    response = await client.request("DELETE", "/api/delete", json={"model": "../x"})
    assert (response.status_code, response.json()["error"]) == (400, 'name "../x" is invalid')


async def test_blobs(client: httpx2.AsyncClient, bench: Bench) -> None:
    content = b"x" * 300_000
    digest = "sha256:" + hashlib.sha256(content).hexdigest()
    assert (await client.head(f"/api/blobs/{digest}")).status_code == 404
    assert (await client.post(f"/api/blobs/{digest}", content=content)).status_code == 201
    assert (await client.head(f"/api/blobs/{digest.replace(':', '-')}")).status_code == 200
    assert (await client.post(f"/api/blobs/{digest}", content=content)).status_code == 200
    wrong = await client.post(f"/api/blobs/sha256:{'0' * 64}", content=content)
    assert wrong.status_code == 400
    assert wrong.json()["error"] == f'digest mismatch, expected "sha256:{"0" * 64}", got "{digest}"'
    for odd in ("sha256:abc", "md5:" + "0" * 64, "sha256:" + "A" * 64, "..%2F..%2Fx"):
        response = await client.post(f"/api/blobs/{odd}", content=b"")
        assert response.status_code in (400, 404)
        assert "invalid digest format" in response.text or response.status_code == 404
    left = [path.name for path in bench.store.blob_path.__self__.layout.blobs.iterdir()]  # type: ignore[attr-defined]
    assert not [name for name in left if "new" in name]


@pytest.mark.parametrize("route", ["pull", "push"])
async def test_progress_streams(client: httpx2.AsyncClient, bench: Bench, route: str) -> None:
    asked: list[Any] = []

    async def transfer(store: Any, name: ModelName, *, insecure: bool, typed: bool) -> AsyncIterator[Progress]:
        asked.append((name.short, insecure))
        yield Progress("working")
        yield Progress("moving", "sha256:00", 10, 5)
        yield Progress("success")

    setattr(bench.services, route, transfer)
    response = await client.post(f"/api/{route}", json={"name": "some/model", "insecure": True})
    assert lines(response) == [
        {"status": "working"},
        {"status": "moving", "digest": "sha256:00", "total": 10, "completed": 5},
        {"status": "success"},
    ]
    assert asked == [("some/model:latest", True)]
    response = await client.post(f"/api/{route}", json={"model": "x", "stream": False})
    assert response.json() == {"status": "success"}
    assert (await client.post(f"/api/{route}", json={})).json()["error"] == "model is required"
    assert "invalid model name" in (await client.post(f"/api/{route}", json={"model": "a@b"})).json()["error"]


async def test_a_transfer_that_fails(client: httpx2.AsyncClient, bench: Bench) -> None:
    async def pull(store: Any, name: ModelName, *, insecure: bool, typed: bool) -> AsyncIterator[Progress]:
        yield Progress("pulling manifest")
        raise DownloadError("pull model manifest: file does not exist")

    bench.services.pull = pull
    events = lines(await client.post("/api/pull", json={"model": "x"}))
    assert events[-1]["error"] == "pull model manifest: file does not exist"
    response = await client.post("/api/pull", json={"model": "x", "stream": False})
    assert response.status_code == 502
    assert response.json()["error"] == "pull model manifest: file does not exist"


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (ModelNotFoundError("pull model manifest: file does not exist"), 404),
        (AddressRefusedError("10.0.0.1:80 is a private address and was refused", hint="allow it"), 400),
        (RegistryAuthError("unauthorized: access denied"), 401),
        (RegistryError("pull model manifest: 503: later", status=503), 502),
        (StoreFullError("cannot write: no space is left on the disk"), 507),
    ],
)
async def test_what_becomes_of_failures(
    client: httpx2.AsyncClient, bench: Bench, failure: RsllmError, status: int
) -> None:
    async def transfer(store: Any, name: ModelName, *, insecure: bool, typed: bool) -> AsyncIterator[Progress]:
        yield Progress("working")
        raise failure

    bench.services.pull = bench.services.push = transfer
    for route in ("pull", "push"):
        response = await client.post(f"/api/{route}", json={"model": "x", "stream": False})
        assert response.status_code == status
        assert response.json()["error"] == str(failure)
        assert response.json()["kind"] == type(failure).__name__
        assert lines(await client.post(f"/api/{route}", json={"model": "x"}))[-1]["error"] == str(failure)
