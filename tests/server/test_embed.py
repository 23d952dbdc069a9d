"""`POST /api/embed` and the older `/api/embeddings`."""

from __future__ import annotations

import struct
from typing import Any

import httpx2
import pytest

from rsllm.runner.pool import Lease
from rsllm.server import embedding
from tests.server.conftest import METADATA, Bench


@pytest.fixture
def vectors(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[list[int]], dict[str, Any]]]:
    """Embeds by counting tokens, and remembers what was asked for."""
    asked: list[tuple[list[list[int]], dict[str, Any]]] = []

    async def embed(self: Lease, inputs: list[list[int]], options: dict[str, Any]) -> bytearray:
        asked.append((inputs, options))
        return bytearray(b"".join(struct.pack("<4f", len(ids), 3.0, 4.0, 0.0) for ids in inputs))

    monkeypatch.setattr(Lease, "embed", embed)
    return asked


async def ask(client: httpx2.AsyncClient, **body: Any) -> httpx2.Response:
    return await client.post("/api/embed", json={"model": "tiny", **body})


async def test_one_text_and_several(client: httpx2.AsyncClient, vectors: Any) -> None:
    reply = (await ask(client, input=["ab", "abc"])).json()
    assert reply["embeddings"] == [[2.0, 3.0, 4.0, 0.0], [3.0, 3.0, 4.0, 0.0]]
    assert reply["prompt_eval_count"] == 5
    assert reply["total_duration"] >= reply["load_duration"] > 0
    assert (await ask(client, input="ab")).json()["embeddings"] == [[2.0, 3.0, 4.0, 0.0]]
    assert [options for _, options in vectors] == [{"pooling": "last", "normalise": True}] * 2


async def test_the_pooling_is_that_of_the_file(client: httpx2.AsyncClient, bench: Bench, vectors: Any) -> None:
    bench.add(metadata={**METADATA, "fake.pooling_type": 1})
    await ask(client, input="x")
    assert vectors[0][1]["pooling"] == "mean"
    bench.add("rank", {"text": "r"}, metadata={**METADATA, "fake.pooling_type": 4})
    await ask(client, model="rank", input="x")
    assert vectors[1][1]["pooling"] == "rank"
    bench.add("odd", {"text": "o"}, metadata={**METADATA, "fake.pooling_type": 5})
    assert (await ask(client, model="odd", input="x")).status_code == 400


async def test_fewer_dimensions_are_normalised_again(client: httpx2.AsyncClient, vectors: Any) -> None:
    """EMB-09."""
    (vector,) = (await ask(client, input="abcd", dimensions=2)).json()["embeddings"]
    assert vector == pytest.approx([0.8, 0.6])
    assert len((await ask(client, input="abcd", dimensions=4)).json()["embeddings"][0]) == 4
    refused = await ask(client, input="abcd", dimensions=99)
    assert refused.status_code == 400
    assert refused.json()["error"] == "dimensions is 99, and embeddings of this model have 4"


@pytest.mark.parametrize("body", [{}, {"input": None}, {"input": ""}, {"input": []}])
async def test_nothing_to_embed_loads(client: httpx2.AsyncClient, bench: Bench, body: dict[str, Any]) -> None:
    assert (await ask(client, **body)).json()["embeddings"] == []
    assert len(bench.pool.status()) == 1


async def test_many_inputs_keep_their_order(client: httpx2.AsyncClient, vectors: Any) -> None:
    texts = ["x" * (1 + i % 7) for i in range(100)]
    reply = (await ask(client, input=texts)).json()
    assert [vector[0] for vector in reply["embeddings"]] == [len(text) for text in texts]
    assert [len(inputs) for inputs, _ in vectors] == [32, 32, 32, 4]


async def test_an_input_that_is_too_long(client: httpx2.AsyncClient, bench: Bench, vectors: Any) -> None:
    """EMB-10."""
    bench.add(behaviour={"context": 10})
    reply = (await ask(client, input=["x" * 30, "y"])).json()
    assert len(vectors[0][0][0]) == 10
    assert reply["warnings"] == ["input 0 was cut from 30 to 10 tokens, the length of the context"]
    response = await ask(client, input="x" * 30, truncate=False)
    assert response.status_code == 400
    assert response.json()["error"].startswith("the input length exceeds the context length")


@pytest.mark.parametrize("value", [5, {"a": 1}, [1], ["a", None], [["a"]]])
async def test_other_inputs_are_refused(client: httpx2.AsyncClient, value: Any) -> None:
    response = await ask(client, input=value)
    assert (response.status_code, response.json()["error"]) == (400, "invalid input type")


async def test_models_that_are_not_there(client: httpx2.AsyncClient) -> None:
    response = await ask(client, model="no", input="x")
    assert (response.status_code, response.json()["error"]) == (404, 'model "no" not found, try pulling it first')
    assert (await ask(client, model="", input="x")).json()["error"] == "model '' not found"
    assert (await ask(client, model="a b", input="x")).status_code == 400


async def test_the_older_route(client: httpx2.AsyncClient, vectors: Any) -> None:
    """EMB-01."""
    response = await client.post("/api/embeddings", json={"model": "tiny", "prompt": "abc"})
    assert response.json() == {"embedding": [3.0, 3.0, 4.0, 0.0]}
    assert vectors[0][1]["normalise"] is False
    assert (await client.post("/api/embeddings", json={"model": "tiny"})).json() == {"embedding": []}
    assert (await client.post("/api/embeddings", json={"prompt": "x"})).status_code == 400


async def test_what_is_no_number_is_an_error(client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """EMB-03."""

    async def embed(self: Lease, inputs: list[list[int]], options: dict[str, Any]) -> bytearray:
        return bytearray(struct.pack("<2f", 1.0, float("nan")))

    monkeypatch.setattr(Lease, "embed", embed)
    response = await ask(client, input="x")
    assert (response.status_code, response.json()["error"]) == (400, "embedding contains NaN or Inf values")


async def test_an_end_token_survives_the_cut() -> None:
    class Held:
        info = {"context": 3}  # noqa: RUF012
        special_tokens = {"add_eos": True, "eos": 9}  # noqa: RUF012

    assert embedding._fitting([1, 2, 3, 4, 9], Held(), True, 0, []) == [1, 2, 9]  # type: ignore[arg-type]
