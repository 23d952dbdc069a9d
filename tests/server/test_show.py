"""`POST /api/show`, on a small real file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from rsllm.server import listing
from rsllm.store.manifest import Layer, Manifest, MediaType
from rsllm.store.name import ModelName
from tests.server.conftest import Bench


def write_gguf(path: Path) -> None:
    """A file with one tensor and some metadata."""
    import gguf
    import numpy

    writer = gguf.GGUFWriter(str(path), "fake")
    writer.add_name("Fake")
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_chat_template("{{ tools }}<think></think>")
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.add_tensor("token_embd.weight", numpy.zeros((2, 32), dtype=numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def shown(bench: Bench, tmp_path: Path) -> Bench:
    """The store with the model `real`."""
    path = tmp_path / "real.gguf"
    write_gguf(path)
    digest, size = bench.store.add_blob(path)
    layers = [Layer(MediaType.MODEL, digest, size)]
    for kind, text in (
        (MediaType.LICENSE, "MIT"),
        (MediaType.LICENSE, "line one\nline two"),
        (MediaType.SYSTEM, "Be nice."),
        (MediaType.PARAMS, json.dumps({"stop": ["a", "b"], "temperature": 0.5})),
    ):
        layers.append(Layer(kind, *bench.store.add_blob([text.encode()])))
    config = Layer(MediaType.CONFIG, *bench.store.add_blob([b'{"model_format":"gguf","model_family":"fake"}']))
    bench.store.write_manifest(ModelName.parse("real"), Manifest.build(config, layers).raw)
    return bench


async def show(client: httpx2.AsyncClient, **body: Any) -> dict[str, Any]:
    response = await client.post("/api/show", json={"model": "real", **body})
    assert response.status_code == 200, response.text
    return dict(response.json())


async def test_show(client: httpx2.AsyncClient, shown: Bench) -> None:
    reply = await show(client)
    assert reply["license"] == "MIT\nline one\nline two"
    assert reply["system"] == "Be nice."
    assert reply["template"] == "{{ tools }}<think></think>"
    assert reply["parameters"].splitlines() == [
        'stop                           "a"',
        'stop                           "b"',
        "temperature                    0.5",
    ]
    info = reply["model_info"]
    assert (info["general.architecture"], info["fake.context_length"]) == ("fake", 128)
    assert info["general.parameter_count"] == 64
    assert info["tokenizer.ggml.tokens"] is None
    assert not {"general.name", "tokenizer.chat_template"} & info.keys()
    assert reply["tensors"] == [{"name": "token_embd.weight", "type": "F32", "shape": [32, 2]}]
    assert reply["capabilities"] == ["completion", "tools", "thinking"]
    assert reply["details"]["family"] == "fake"
    assert reply["modelfile"].splitlines()[2] == "# FROM real:latest"
    assert "messages" not in reply


async def test_more_and_other(client: httpx2.AsyncClient, shown: Bench) -> None:
    reply = await show(client, verbose=True, system="Mine.", options={"seed": 1})
    assert reply["model_info"]["tokenizer.ggml.tokens"] == ["a", "b"]
    assert reply["system"] == "Mine."
    assert reply["parameters"].splitlines()[-1].split() == ["seed", "1"]


async def test_a_client_that_wants_its_own_name(client: httpx2.AsyncClient, shown: Bench) -> None:
    headers = {"user-agent": "GitHubCopilotChat/1.0"}
    response = await client.post("/api/show", json={"name": "real"}, headers=headers)
    assert response.json()["model_info"]["general.basename"] == "real"


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({}, 400, "model is required"),
        ({"model": "no"}, 404, "model 'no:latest' not found"),
        ({"model": "a@b"}, 400, "invalid model name"),
    ],
)
async def test_mistakes(client: httpx2.AsyncClient, body: dict[str, Any], status: int, text: str) -> None:
    response = await client.post("/api/show", json=body)
    assert (response.status_code, text in response.json()["error"]) == (status, True)


async def test_a_damaged_file_is_an_error_without_its_folder(client: httpx2.AsyncClient, bench: Bench) -> None:
    path = Path(bench.add())
    path.write_bytes(path.read_bytes()[:100])
    response = await client.post("/api/show", json={"model": "tiny"})
    assert response.status_code == 500
    assert response.json()["kind"] == "GgufError"
    assert str(bench.store.root) not in response.text


def test_an_embedding_model_completes_nothing() -> None:
    metadata = {"general.architecture": "bert", "bert.pooling_type": 1}
    assert listing.capabilities(metadata, False, "") == ["embedding"]
    assert listing.capabilities({}, True, "{{ .Suffix }}{{ .Tools }}") == ["completion", "vision", "tools", "insert"]


def test_abilities_are_those_of_the_template_that_makes_the_prompts() -> None:
    jinja = {"tokenizer.chat_template": "{{ tools }} tool_calls 'tool'"}
    assert listing.capabilities(jinja, False, "{{ .Prompt }}") == ["completion", "tools"]
    assert listing.capabilities(jinja, False, "{{ .Prompt }}", setting=True) == ["completion"]
    tokens = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
    filling = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [3, 3, 3]}
    assert listing.capabilities(filling, False, "") == ["completion", "insert"]


async def test_the_list_tells_what_it_can_do_and_how_long_it_may_get(client: httpx2.AsyncClient, shown: Bench) -> None:
    for _ in range(2):  # the second time from what is kept
        models = {model["name"]: model for model in (await client.get("/api/tags")).json()["models"]}
        listed, reply = models["real:latest"], await show(client)
        assert listed["capabilities"] == reply["capabilities"]
        assert (listed["details"]["context_length"], listed["details"]["embedding_length"]) == (128, 32)


async def test_an_empty_model_beside_a_name_is_none(client: httpx2.AsyncClient, shown: Bench) -> None:
    """Ollama's own command sends both."""
    for name in ("real", "REAL:latest"):
        response = await client.post("/api/show", json={"model": "", "name": name})
        assert response.status_code == 200, response.text
    response = await client.request("DELETE", "/api/delete", json={"model": "", "name": "real"})
    assert response.status_code == 200
    assert (await client.post("/api/show", json={"model": "", "name": ""})).json() == {"error": "model is required"}


@pytest.mark.parametrize("number", [1e-06, 10000.0, 0.1, 1 / 3, 1e300, 0.0, -2.5e-7, 3.4028235e38, 1e39])
def test_numbers_are_as_short_as_their_width_allows(number: float) -> None:
    import numpy

    assert listing._plain(number) == number
    if number < 1e39:
        single = float(numpy.float32(number))
        assert len(repr(listing._plain(single))) <= len(repr(single))
        assert numpy.float32(listing._plain(single)) == numpy.float32(number)
    assert listing._plain([float("nan"), float("-inf")]) == [None, None]
