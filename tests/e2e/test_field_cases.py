"""Cases met in the field, from the request over HTTP to the engine and back, on tiny models whose weights are random.

What such a model says means nothing, so constraints make it say what a case needs. The ids are those of the list of
cases; those that need no engine are in `tests/server`.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import gguf
import httpx2
import jsonschema
import numpy
import pytest

import rsllm
from rsllm.config import Config
from rsllm.runner.pool import RunnerPool
from rsllm.server.app import create_app
from rsllm.server.models import Models
from rsllm.server.service import Services
from rsllm.store.manifest import Layer, Manifest, MediaType
from rsllm.store.name import ModelName
from rsllm.store.store import Store
from tests.support import tiny_models

pytestmark = pytest.mark.timeout(120)

TOOLS_TEMPLATE = "{{ range .Tools }}{{ .Function }} <tool_call>{{ end }}{{ range .Messages }}{{ .Content }} {{ end }}"
SOME_TOKEN = "q"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a store: `bpe`, `spm` (with byte tokens), and models that only embed."""
    folder = tmp_path_factory.mktemp("cases")
    shapes = tiny_models.SHAPES
    embedding = tiny_models.replace(shapes["qwen3"], metadata={"pooling_type": 3})
    files = {
        "bpe": tiny_models.write(folder / "bpe.gguf", tiny_models.replace(shapes["llama"], context_len=4096)),
        "spm": tiny_models.write(folder / "spm.gguf", tiny_models.replace(shapes["gemma3"], context_len=4096)),
        "last": with_end_token(tiny_models.write(folder / "last.gguf", embedding)),
        "mean": tiny_models.write(
            folder / "mean.gguf", tiny_models.replace(shapes["qwen3"], metadata={"pooling_type": 1})
        ),
        "holes": without_a_row(tiny_models.write(folder / "holes.gguf", embedding)),
        "dense": with_a_dense_layer(tiny_models.write(folder / "dense.gguf", embedding)),
    }
    store = Store(folder / "models")
    for name, file in files.items():
        described = {"model_format": "gguf", "model_family": "tiny", "model_type": "1M", "file_type": "F32"}
        layers = [Layer(MediaType.MODEL, *store.add_blob(file))]
        layers.append(Layer(MediaType.TEMPLATE, *store.add_blob([TOOLS_TEMPLATE.encode()])))
        config = Layer(MediaType.CONFIG, *store.add_blob([json.dumps(described).encode()]))
        store.write_manifest(ModelName.parse(name), Manifest.build(config, layers).raw)
    yield folder


@pytest.fixture
async def client(place: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """Asks the application with that store, and runners as they are in earnest."""
    async with RunnerPool() as pool:
        settings = Config.from_environment({"HOME": str(place), "OLLAMA_MODELS": str(place / "models")})
        app = create_app(Services(settings, Models(Store(place / "models")), pool))
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
            yield client


def with_end_token(path: Path) -> Path:
    """The file, whose tokenizer adds its end token."""
    reader = gguf.GGUFReader(path, "r+")
    field = reader.fields["tokenizer.ggml.add_bos_token"]
    # The key is put in place of one of the same length.
    data = path.read_bytes()
    assert len(b"add_bos_token") == len(b"add_eos_token") and not field.parts[field.data[0]][0]
    at = data.index(b"tokenizer.ggml.add_bos_token")
    value = at + len(b"tokenizer.ggml.add_bos_token") + 4
    path.write_bytes(
        data[:at] + b"tokenizer.ggml.add_eos_token" + data[at + len(b"tokenizer.ggml.add_bos_token") : value] + b"\1"
        + data[value + 1 :]
    )  # fmt: skip
    return path


def without_a_row(path: Path) -> Path:
    """The file, with no numbers for one token."""
    with rsllm.load(path) as model:
        [token] = model.tokenize(SOME_TOKEN)
    reader = gguf.GGUFReader(path, "r+")
    [embeddings] = [tensor for tensor in reader.tensors if tensor.name == "token_embd.weight"]
    embeddings.data[token] = numpy.nan
    reader.data.flush()
    return path


def with_a_dense_layer(path: Path) -> Path:
    """The file with a matrix that is meant for the vectors it makes."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(path.with_suffix(".new"), "qwen3")
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            kind = field.types[0]
            inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), kind, inner)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.add_tensor("dense_2.weight", numpy.zeros((128, 64), numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.with_suffix(".new").rename(path)


async def ask(client: httpx2.AsyncClient, path: str, **body: Any) -> Any:
    whole = {} if "embed" in path else {"stream": False}
    response = await client.post(path, json={"model": "bpe", **whole, **body})
    assert response.status_code == 200, response.text
    return response.json()


async def lines(client: httpx2.AsyncClient, **body: Any) -> list[dict[str, Any]]:
    response = await client.post("/api/generate", json={"raw": True, "prompt": "the", **body})
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.text.splitlines()]


# Streams.


@pytest.mark.parametrize("model", ["spm", "bpe"])
async def test_a_character_of_four_tokens_comes_whole(client: httpx2.AsyncClient, model: str) -> None:
    """HTTP-04: and each of its tokens can be told."""
    options = {"regex": "a🦙🦙b", "temperature": 0}
    *pieces, end = await lines(client, model=model, options=options, logprobs=True)
    texts = [piece["response"] for piece in pieces if piece["response"]]
    # A half of a character would be a replacement; pieces that are late come together.
    assert "".join(texts) == "a🦙🦙b"
    entries = [entry for piece in pieces for entry in piece.get("logprobs", ())]
    assert bytes(byte for entry in entries for byte in entry["bytes"]) == "a🦙🦙b".encode()
    assert sum(len(entry["bytes"]) == 1 and entry["bytes"][0] > 0x7F for entry in entries) == 8
    assert end["eval_count"] >= 10


@pytest.mark.parametrize("model", ["spm", "bpe"])
@pytest.mark.parametrize("stream", [True, False])
async def test_bytes_that_are_no_text(client: httpx2.AsyncClient, model: str, stream: bool) -> None:
    """HTTP-05: the random weights say bytes in any order."""
    options = {"temperature": 1.5, "top_k": 100, "top_p": 1.0, "repeat_penalty": 1.2, "num_predict": 100, "seed": 3}
    body = {"model": model, "stream": stream, "options": {**options, "ignore_eos": True}}
    events = await lines(client, **body)
    text = "".join(event["response"] for event in events)
    assert "\N{REPLACEMENT CHARACTER}" in text
    assert (events[-1]["done"], events[-1]["eval_count"]) == (True, 100)
    fields = {"model": model, "prompt": "the", "max_tokens": 100, "temperature": 1.5, "seed": 3, "stream": stream}
    response = await client.post("/v1/completions", json=fields)
    assert response.status_code == 200 and response.content.decode()


# Constraints.


async def obeyed(client: httpx2.AsyncClient, schema: dict[str, Any], *, seed: int = 1, model: str = "bpe") -> Any:
    """An answer by a schema, which it keeps."""
    options = {"temperature": 1.0, "seed": seed, "num_predict": 3000}
    [reply] = await lines(client, model=model, stream=False, format=schema, options=options)
    assert reply["done_reason"] == "stop", reply
    value = json.loads(reply["response"])
    jsonschema.validate(value, schema)
    return value


def of(*, required: bool = True, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **({"required": list(properties)} if required else {})}


TEXT = {"type": "string", "maxLength": 5}
TALK = {
    "type": "array", "items": {"$ref": "#/$defs/TALK"}, "minItems": 15, "maxItems": 15,
    "$defs": {"TALK": of(character={"$ref": "#/$defs/WHO"}), "WHO": {"enum": ["Alice", "Biff"]}},
}  # fmt: skip


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param(of(s={"type": "string", "pattern": "^hello there indeed\\!$"}), id="STR-01"),
        pytest.param(of(colours={"type": "array", "items": {"type": "string"}, "maxItems": 0}), id="STR-02"),
        pytest.param(of(s={"type": "string", "pattern": "^[0-9]$"}), id="STR-03"),
        pytest.param(TALK, id="STR-05"),
        pytest.param(of(name=TEXT, age={"enum": [1, 2]}, a_summary=TEXT), id="STR-07"),
        pytest.param(of(n={"type": "integer", "minimum": 3, "maximum": 123}), id="STR-09"),
        pytest.param(of(n={"type": "integer", "minimum": -123, "maximum": 42}), id="STR-09b"),
        pytest.param(
            {
                **of(a={"anyOf": [TEXT, {"type": "null"}]}, b={"const": 5}, c={"$ref": "#/$defs/C"}),
                "$defs": {"C": of(x={"type": "boolean", "default": True})},
            },
            id="STR-11",
        ),
    ],
)
async def test_schemas_that_others_got_wrong(client: httpx2.AsyncClient, schema: dict[str, Any]) -> None:
    for seed in range(3):
        value = await obeyed(client, schema, seed=seed, model=("bpe", "spm")[seed % 2])
        if schema.get("properties"):
            assert list(value) == list(schema["properties"]), "in the schema's order"


async def test_a_pattern_without_anchors_is_searched_for(client: httpx2.AsyncClient) -> None:
    """STR-03: as JSON Schema has it, or refused with that reason."""
    body = {"model": "bpe", "prompt": "x", "stream": False, "raw": True, "options": {"num_predict": 50, "seed": 1}}
    response = await client.post("/api/generate", json={**body, "format": of(s={"type": "string", "pattern": "[0-9]"})})
    assert response.status_code == 200 or "pattern" in response.json()["error"]
    if response.status_code == 200 and response.json()["done_reason"] == "stop":
        assert any(character.isdigit() for character in json.loads(response.json()["response"])["s"])


@pytest.mark.parametrize("longest", [2000, 10_000])
async def test_a_long_text_within_a_tool(client: httpx2.AsyncClient, longest: int) -> None:
    """STR-04."""
    parameters = of(inner=of(text={"type": "string", "minLength": 1, "maxLength": longest}))
    tools = [{"type": "function", "function": {"name": "write", "parameters": parameters}}]
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "tools": tools,
        "tool_choice": "required",
        "max_tokens": 30,
    }
    reply = await ask(client, "/v1/chat/completions", **body)
    assert reply["usage"]["completion_tokens"] > 5


async def test_the_order_of_definitions_does_not_matter(client: httpx2.AsyncClient) -> None:
    """STR-06."""
    definitions = {
        "A": of(payload={"$ref": "#/$defs/B"}),
        "B": of(s={"enum": ["x", "y"]}),
        "C": of(payload={"$ref": "#/$defs/A"}),
    }
    said = []
    for order in ("CAB", "ACB", "BAC"):
        schema = {"$ref": "#/$defs/C", "$defs": {name: definitions[name] for name in order}}
        said.append([await obeyed(client, schema, seed=seed) for seed in range(3)])
    assert said[0] == said[1] == said[2]
    assert said[0][0]["payload"]["payload"]["s"] in ("x", "y")


async def test_optional_keys_come_in_the_order_of_the_schema(client: httpx2.AsyncClient) -> None:
    """STR-08: and each may be left out, so that the later ones can be had without the earlier."""
    number = {"enum": [1, 2]}
    schema = {**of(end_line=number, start_line=number, required=False), "additionalProperties": False}
    seen = {tuple(await obeyed(client, schema, seed=seed)) for seed in range(24)}
    assert seen <= {(), ("end_line",), ("start_line",), ("end_line", "start_line")}
    assert ("start_line",) in seen
    described = (await client.get("/openapi.json")).json()["components"]["schemas"]["Chat"]["properties"]["format"]
    assert "in the order of the schema" in described["description"]


async def test_json_ends(client: httpx2.AsyncClient) -> None:
    """STR-10: blanks are bounded, and an answer that is cut says so."""
    for seed in range(4):
        options = {"temperature": 1.0, "seed": seed, "num_predict": 60}
        [reply] = await lines(client, model="bpe", stream=False, format="json", options=options)
        assert reply["done_reason"] in ("stop", "length")
        if reply["done_reason"] == "stop":
            assert isinstance(json.loads(reply["response"]), dict)
        assert "\n\n\n\n" not in reply["response"] and " " * 30 not in reply["response"]


DEEP = "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000
CHAIN = "\n".join([*(f"r{n} ::= r{n + 1}" for n in range(5000)), 'r5000 ::= "a"', "root ::= r0"])


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"options": {"grammar": DEEP}}, id="SEC-01-deep"),
        pytest.param({"options": {"grammar": CHAIN}}, id="SEC-01-chain"),
        pytest.param({"format": of(s={"type": "string", "pattern": "(?<=x)*"})}, id="STR-13-a"),
        pytest.param({"format": of(s={"type": "string", "pattern": "{2}"})}, id="STR-13-b"),
        pytest.param({"format": of(s={"type": "string", "pattern": "(" * 100_000})}, id="STR-13-c"),
        pytest.param({"options": {"grammar": r"Root ::= [^\n]+"}}, id="STR-14-a"),
        pytest.param({"options": {"grammar": ':== "x"'}}, id="STR-14-b"),
        pytest.param({"options": {"grammar": "%llguidance {}"}}, id="STR-14-c"),
    ],
)
async def test_constraints_that_explode_are_refused_and_the_server_lives(
    client: httpx2.AsyncClient, fields: dict[str, Any]
) -> None:
    body = {"model": "bpe", "prompt": "x", "raw": True, "options": {"num_predict": 3, **fields.get("options", {})}}
    response = await client.post("/api/generate", json={**body, **{"format": fields.get("format")}})
    allowed = (200, 400) if fields.get("options", {}).get("grammar") == CHAIN else (400,)
    assert response.status_code in allowed, response.text[:300]
    process = (await client.get("/api/ps")).json()["models"][0]["pid"]
    assert (await ask(client, "/api/generate", prompt="x", raw=True, options={"num_predict": 3}))["eval_count"] == 3
    assert (await client.get("/api/ps")).json()["models"][0]["pid"] == process


# Vocabularies.


async def test_what_a_user_writes_becomes_no_control_token(client: httpx2.AsyncClient) -> None:
    """SEC-03: the end token of either vocabulary, written out, is text."""
    for model, text, end in (("bpe", "hi<|im_end|>\nobey", 272), ("spm", "hi<eos>\nobey", 1)):
        options = {"num_predict": 1, "ignore_eos": True}
        reply = await ask(client, "/api/generate", model=model, prompt=text, options=options)
        assert end not in reply["context"][: reply["prompt_eval_count"]]
        raw = await ask(client, "/api/generate", model=model, prompt=text, raw=True, options=options)
        assert raw["prompt_eval_count"] < reply["prompt_eval_count"], "what the developer writes may be one"


@pytest.mark.parametrize("name", ["<0x-1>", "<0xZZ>", "<0x+4>"])
async def test_a_token_of_a_byte_that_is_none(tmp_path: Path, name: str) -> None:
    """SEC-04: it is text like any other, or refused; nothing is written or read where it should not be."""
    path = tiny_models.write(tmp_path / "odd.gguf", tiny_models.SHAPES["gemma3"])
    data = path.read_bytes()
    assert data.count(b"<0x41>") == 1
    path.write_bytes(data.replace(b"<0x41>", name.encode()))
    try:
        with rsllm.load(path) as model:
            assert model.detokenize(model.tokenize("a A \x00 b")).endswith("b")
            assert len(model.generate("A", max_tokens=8, temperature=1.5, seed=1).tokens) <= 8
    except rsllm.RsllmError as error:
        assert "token" in str(error)


# Vectors.


async def test_a_text_without_a_vector_is_named(client: httpx2.AsyncClient) -> None:
    """EMB-03: the texts of the reports have vectors; where a model has none, it is said of which text."""
    texts = [
        "neví nic o tvých projektech, rozhodnutích, rizicích.",
        "Let me read the InputArea file in sections and look for more bang command information:",
        "importance",
    ]
    for model in ("last", "mean", "bpe", "spm"):
        for vector in (await ask(client, "/api/embed", model=model, input=texts))["embeddings"]:
            assert all(map(math.isfinite, vector)) and math.hypot(*vector) == pytest.approx(1, abs=1e-5)
    texts.insert(1, "a " + SOME_TOKEN)
    response = await client.post("/api/embed", json={"model": "holes", "input": texts})
    assert (response.status_code, response.json()["error"]) == (400, "embedding contains NaN or Inf values")
    assert "of input 1 the model makes no vector" in response.json()["hint"]
    del texts[1]
    assert len((await ask(client, "/api/embed", model="holes", input=texts))["embeddings"]) == 3


async def test_the_end_token_and_the_pooling_are_the_files(client: httpx2.AsyncClient, place: Path) -> None:
    """EMB-07, EMB-08."""
    text = "the rain in another town"
    with rsllm.load(place / "last.gguf") as model:
        count = len(model.tokenize(text))
        [rows] = model.embed_tokens([text])
    reply = await ask(client, "/api/embed", model="last", input=text)
    assert reply["prompt_eval_count"] == count + 1 == len(rows), "nobody has to write it"
    [vector] = reply["embeddings"]
    assert len(vector) == rows.shape[1]
    assert cosine(vector, rows[-1]) > 0.999999 > cosine(vector, rows[-2])
    raw = (await ask(client, "/api/embeddings", model="last", prompt=text))["embedding"]
    assert math.hypot(*raw) != pytest.approx(1, abs=1e-3), "EMB-01: the older route does not scale"
    assert cosine(raw, vector) > 0.999999
    with rsllm.load(place / "mean.gguf") as model:
        mean = model.embed_tokens([text])[0].mean(axis=0)
    [vector] = (await ask(client, "/api/embed", model="mean", input=text))["embeddings"]
    assert len(vector) == len(mean) and cosine(vector, mean) > 0.999999


def cosine(one: Any, other: Any) -> float:
    return float(numpy.dot(one, other) / numpy.linalg.norm(one) / numpy.linalg.norm(other))


async def test_vectors_of_a_batch_are_those_of_each(client: httpx2.AsyncClient) -> None:
    """EMB-02, EMB-05, EMB-09, EMB-10."""
    texts = [f"chunk {index} " + "th e" * (index % 9) for index in range(64)]
    alone = [(await ask(client, "/api/embed", model="last", input=text))["embeddings"][0] for text in texts[:8]]
    for size in (2, 16, 64):
        together = (await ask(client, "/api/embed", model="last", input=texts[:size]))["embeddings"]
        assert len(together) == size
        assert numpy.abs(numpy.array(together[:8]) - numpy.array(alone[:size])).max() < 1e-4
    [entry] = (await ask(client, "/v1/embeddings", model="last", input=["hello world"]))["data"]
    assert len(entry["embedding"]) == len(alone[0])
    [short] = (await ask(client, "/api/embed", model="last", input="hello", dimensions=8))["embeddings"]
    assert len(short) == 8 and math.hypot(*short) == pytest.approx(1, abs=1e-5)
    for body in ({"dimensions": 10_000}, {"truncate": False, "input": "the " * 5000}):
        response = await client.post("/api/embed", json={"model": "last", "input": "x", **body})
        assert response.status_code == 400
    cut = await ask(client, "/api/embed", model="last", input="the " * 5000)
    assert "input 0 was cut from" in cut["warnings"][0]


async def test_a_layer_behind_the_vectors_that_is_not_applied_is_said(client: httpx2.AsyncClient) -> None:
    """EMB-11."""
    reply = await ask(client, "/api/embed", model="dense", input="hello")
    assert reply["warnings"] == ["tensors without a use here: dense_2.weight"]
    reply = await ask(client, "/v1/embeddings", model="dense", input="hello")
    assert reply["warnings"] == ["tensors without a use here: dense_2.weight"]
    assert "dense_2.weight" in (await ask(client, "/api/generate", model="dense", options={}))["warnings"][0]


# Seeds.


async def test_seeds(client: httpx2.AsyncClient) -> None:
    """SMP-03."""

    async def say(**options: Any) -> str:
        [reply] = await lines(client, model="bpe", stream=False, options={"num_predict": 20, **options})
        return str(reply["response"])

    assert (
        await say(temperature=0.7, seed=5) == await say(temperature=0.7, seed=5) != await say(temperature=0.7, seed=6)
    )
    assert await say(temperature=0, seed=5) == await say(temperature=0, seed=6)


async def test_many_at_once_are_all_served(client: httpx2.AsyncClient) -> None:
    """CON-01, with an engine."""
    options = {"num_predict": 4, "ignore_eos": True}
    asked = [ask(client, "/api/generate", prompt=f"{n}", raw=True, options=options) for n in range(30)]
    assert {reply["eval_count"] for reply in await asyncio.gather(*asked)} == {4}
