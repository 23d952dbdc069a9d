"""A reranker from the file to the answer, against the reference engine: in Python and through the server."""

from __future__ import annotations

import json
from pathlib import Path

import httpx2
import numpy
import pytest

import rsllm
from rsllm.config import Config
from rsllm.errors import OptionError
from rsllm.runner.pool import RunnerPool
from rsllm.server.app import create_app
from rsllm.server.models import Models
from rsllm.server.service import Services
from rsllm.store.manifest import Layer, Manifest, MediaType
from rsllm.store.name import ModelName
from rsllm.store.store import Store
from tests.support import tiny_models
from tests.support.reference import Reference

pytestmark = pytest.mark.timeout(180)

QUERY = "and the sea"
DOCUMENTS = ["the rain in another town", "1234", "on and on: " * 12]


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.write(tmp_path_factory.mktemp("reranker") / "reranker.gguf", tiny_models.RERANKER)


@pytest.mark.reference
def test_scores_are_those_of_the_reference_engine(reranker: Path, reference_python: Path) -> None:
    with rsllm.load(reranker, kv_type="f32") as model, Reference(reranker, kv_type="f32", context=256) as engine:
        scores = model.rank(QUERY, DOCUMENTS)
        pairs = [[*model.tokenize(QUERY), *model.tokenize(text)] for text in DOCUMENTS]
        assert numpy.allclose(scores, [engine.rank(ids) for ids in pairs], atol=2e-5)
        assert 0 < scores.min() < scores.max() < 1
        # A pair is a text like others for `embed`, which goes by the file.
        assert numpy.array_equal(model.embed([QUERY + text for text in DOCUMENTS]).shape, (3, 1))


def test_the_rows_of_single_tokens(reranker: Path) -> None:
    with rsllm.load(reranker) as model:
        rows = model.embed_tokens(DOCUMENTS)
        counts = [len(model.tokenize(text)) for text in DOCUMENTS]
        assert [row.shape for row in rows] == [(count, model.info()["embed_dim"]) for count in counts]
        last = model.embed(DOCUMENTS, pooling="last")
        scaled = [row[-1] / numpy.linalg.norm(row[-1]) for row in rows]
        assert numpy.allclose(last, scaled, atol=1e-6)
        assert model.embed_tokens([]) == []


def test_a_model_without_a_head_does_not_rank(tmp_path: Path) -> None:
    with (
        rsllm.load(tiny_models.write(tmp_path / "plain.gguf", tiny_models.SHAPES["llama"])) as model,
        pytest.raises(OptionError, match=r"cls\.output\.weight"),
    ):
        model.rank(QUERY, DOCUMENTS)


async def test_the_server_gives_the_same_scores(reranker: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "models")
    layer = Layer(MediaType.MODEL, *store.add_blob(reranker))
    config = Layer(MediaType.CONFIG, *store.add_blob([json.dumps({"model_format": "gguf"}).encode()]))
    store.write_manifest(ModelName.parse("reranker"), Manifest.build(config, [layer]).raw)
    texts = [f"{QUERY} {text}" for text in DOCUMENTS]
    with rsllm.load(reranker) as model:
        expected = model.embed(texts).tolist()
    async with RunnerPool() as pool:
        app = create_app(Services(Config.from_environment({"HOME": str(tmp_path)}), Models(store), pool))
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://localhost") as client:
            reply = await client.post("/api/embed", json={"model": "reranker", "input": texts})
            assert reply.json()["embeddings"] == expected
            same = await client.post("/v1/embeddings", json={"model": "reranker", "input": texts})
            assert [row["embedding"] for row in same.json()["data"]] == expected
