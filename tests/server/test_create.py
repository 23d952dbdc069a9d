"""`POST /api/create`."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from rsllm.store.name import ModelName
from rsllm.store.progress import Progress
from tests.server.conftest import Bench, lines
from tests.server.test_show import write_gguf


async def upload(client: httpx2.AsyncClient, content: bytes) -> str:
    digest = "sha256:" + hashlib.sha256(content).hexdigest()
    assert (await client.post(f"/api/blobs/{digest}", content=content)).status_code == 201
    return digest


async def create(client: httpx2.AsyncClient, **body: Any) -> httpx2.Response:
    return await client.post("/api/create", json={"model": "made", **body})


async def test_from_a_file(client: httpx2.AsyncClient, bench: Bench, tmp_path: Path) -> None:
    write_gguf(tmp_path / "real.gguf")
    digest = await upload(client, (tmp_path / "real.gguf").read_bytes())
    events = lines(await create(client, files={"real.gguf": digest}, system="Be nice.", parameters={"seed": 1}))
    statuses = [event["status"] for event in events]
    assert statuses[0] == "parsing GGUF"
    assert statuses[-2:] == ["writing manifest", "success"]
    stored = bench.store.find(ModelName.parse("made"))
    assert (stored.system, stored.parameters) == ("Be nice.", {"seed": 1})
    shown = (await client.post("/api/show", json={"model": "made"})).json()
    assert shown["details"]["family"] == "fake"


async def test_from_a_model_that_is_there(client: httpx2.AsyncClient, bench: Bench) -> None:
    response = await create(client, **{"from": "tiny", "system": "S", "stream": False})
    assert response.json() == {"status": "success"}
    assert bench.store.find(ModelName.parse("made")).system == "S"
    reply = await client.post("/api/generate", json={"model": "made", "prompt": "hi", "stream": False})
    assert reply.status_code == 200


async def test_from_a_model_that_is_pulled_first(client: httpx2.AsyncClient, bench: Bench) -> None:
    async def pull(store: Any, name: ModelName, *, insecure: bool, typed: bool) -> AsyncIterator[Progress]:
        yield Progress("pulling manifest")
        bench.add(name.short, {"text": "far"})
        yield Progress("success")

    bench.services.pull = pull
    statuses = [event["status"] for event in lines(await create(client, **{"from": "far"}))]
    assert statuses[0] == "pulling manifest"
    assert statuses.count("success") == 1
    assert statuses[-1] == "success"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "neither 'from' or 'files' was specified"),
        ({"model": ""}, "model is required"),
        ({"model": "a@b", "from": "tiny"}, "invalid model name"),
        ({"files": {"0.gguf": ""}}, "invalid digest format"),
        ({"files": {"../0.gguf": "sha256:" + "0" * 64}}, ""),
        ({"from": "tiny", "parameters": {"num_ctx": "many"}}, "num_ctx"),
        ({"from": "tiny", "quantize": "q4_K_M"}, "cannot be quantized yet"),
        ({"modelfile": "FROM tiny"}, "the server reads no Modelfile"),
        ({"from": "tiny", "template": "{{ .Prompt"}, "template error: the Go template is not valid"),
        ({"from": "tiny", "template": "{{ if .System }}x"}, "template error: the Go template is not valid"),
        ({"from": "tiny", "template": "{{ exec .Prompt }}"}, "function 'exec' is not defined (line 1)"),
    ],
)
async def test_mistakes(client: httpx2.AsyncClient, bench: Bench, body: dict[str, Any], text: str) -> None:
    response = await create(client, **body)
    assert response.status_code == 400, response.text
    assert text in response.json()["error"]
    assert str(bench.store.root) not in response.text
    assert str(Path.home()) not in response.text


@pytest.mark.parametrize("content", [b"GGUF", b"GGUF\x03\0\0\0" + b"\xff" * 16, b"<html>", b""])
async def test_what_is_no_model_is_refused(client: httpx2.AsyncClient, bench: Bench, content: bytes) -> None:
    digest = await upload(client, content)
    response = await create(client, files={"0.gguf": digest}, stream=False)
    assert response.status_code in (400, 500)
    assert response.json()["error"]
    assert [entry.name.short for entry in bench.store.names()] == ["tiny:latest"]
