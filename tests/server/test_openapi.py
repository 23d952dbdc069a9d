"""The description of the routes, held against the routes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest
from jsonschema import Draft202012Validator

from rsllm.server.body import Body
from rsllm.server.dialects import anthropic, completions, openai, responses
from rsllm.server.dialects.common import Fields
from rsllm.server.openapi import OPERATIONS, document
from rsllm.server.schemas import ChatRequest, EmbedRequest, GenerateRequest, TransferRequest
from rsllm.store.progress import Progress
from tests.server.conftest import Bench

DOCUMENT = document("1.2.3")
SCHEMAS: Mapping[str, Any] = DOCUMENT["components"]["schemas"]
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": False}


def check(component: str, value: Any) -> None:
    """Raise if a value is not what a component describes."""
    schema = {"$ref": f"#/components/schemas/{component}", "components": DOCUMENT["components"]}
    Draft202012Validator(schema).validate(value)


def test_every_route_that_is_mounted_is_described_and_no_other(bench: Bench) -> None:
    mounted = set()
    for route in bench.app.routes:
        methods = set(route.methods)  # type: ignore[attr-defined]
        if "GET" in methods:
            methods.discard("HEAD")
        mounted |= {(method, route.path.replace(":name}", "}")) for method in methods}  # type: ignore[attr-defined]
    assert {(operation.method, operation.path) for operation in OPERATIONS} == mounted


def test_the_schemas_are_schemas_and_their_references_lead_somewhere() -> None:
    for schema in SCHEMAS.values():
        Draft202012Validator.check_schema(schema)
    used = set(references(DOCUMENT))
    assert used <= SCHEMAS.keys()
    assert SCHEMAS.keys() - used == set(), "nobody refers to them"
    names = [method["operationId"] for path in DOCUMENT["paths"].values() for method in path.values()]
    assert len(set(names)) == len(names)


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"].removeprefix("#/components/schemas/")
        for item in value.values():
            yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


async def test_it_is_served(client: httpx2.AsyncClient) -> None:
    response = await client.get("/openapi.json")
    assert response.status_code == 200
    assert response.json()["openapi"] == "3.1.0"
    assert response.json()["paths"].keys() == DOCUMENT["paths"].keys()


def read_show(body: Body) -> None:
    for name in ("model", "name", "verbose", "system", "options"):
        body.take(name)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of all fields that are asked for while the test runs."""
    names: set[str] = set()
    take, default_only = Body.take, Fields.default_only

    def noting(self: Body, *wanted: str) -> Any:
        names.update(wanted)
        return take(self, *wanted)

    def noting_default(self: Fields, name: str, *defaults: Any) -> None:
        names.add(name)
        default_only(self, name, *defaults)

    monkeypatch.setattr(Body, "take", noting)
    monkeypatch.setattr(Fields, "default_only", noting_default)
    return names


@pytest.mark.parametrize(
    ("component", "read", "body"),
    [
        ("Generate", lambda body: GenerateRequest.read(Body(body)), {"model": "m"}),
        ("Chat", lambda body: ChatRequest.read(Body(body)), {"model": "m"}),
        ("Embed", lambda body: EmbedRequest.read(Body(body)), {"model": "m"}),
        ("OldEmbed", lambda body: EmbedRequest.read_legacy(Body(body)), {"model": "m"}),
        ("Transfer", lambda body: TransferRequest.read(Body(body)), {}),
        ("OpenAIChat", openai.chat_request, CHAT),
        ("OpenAICompletion", completions.completion_request, {"model": "m", "prompt": "x"}),
        ("OpenAIEmbed", completions.embeddings_request, {"model": "m", "input": "x"}),
        ("OpenAIResponse", responses.response_request, {"model": "m", "input": "x"}),
        ("Message", anthropic.message_request, {**CHAT, "max_tokens": 5, "cache_control": {}}),
        ("MessageCount", anthropic.count_request, {**CHAT, "cache_control": {}}),
    ],
)
def test_the_fields_are_those_that_are_read(
    taken: set[str], component: str, read: Callable[[Any], Any], body: dict[str, Any]
) -> None:
    assert taken == set()
    read(body)
    assert SCHEMAS[component]["properties"].keys() == taken


EMBED = {"model": "tiny", "input": ["a", "b"]}


@pytest.mark.parametrize(
    ("method", "path", "body", "component"),
    [
        ("GET", "/healthz", None, "Health"),
        ("GET", "/readyz", None, "Health"),
        ("GET", "/api/version", None, "Version"),
        ("GET", "/api/tags", None, "Tags"),
        ("POST", "/api/generate", {"model": "tiny", "prompt": "x", "stream": False, "logprobs": True}, "Generated"),
        ("POST", "/api/generate", {"model": "tiny"}, "Generated"),
        ("POST", "/api/generate", {"model": "nosuch", "prompt": "x"}, "Error"),
        ("POST", "/api/chat", {**CHAT, "logprobs": True, "top_logprobs": 2, "x": 1}, "Chatted"),
        ("POST", "/api/embed", EMBED, "Embedded"),
        ("POST", "/api/embeddings", {"model": "tiny", "prompt": "a"}, "OldEmbedded"),
        ("POST", "/api/pull", {"model": "tiny", "stream": False}, "Progress"),
        ("POST", "/api/create", {"model": "other", "from": "tiny", "stream": False}, "Progress"),
        ("POST", "/v1/chat/completions", CHAT, "OpenAIChatted"),
        ("POST", "/v1/chat/completions", {}, "OpenAIError"),
        ("POST", "/v1/completions", {"model": "tiny", "prompt": "x"}, "OpenAICompleted"),
        ("POST", "/v1/embeddings", EMBED, "OpenAIEmbedded"),
        ("POST", "/v1/embeddings", {**EMBED, "encoding_format": "base64"}, "OpenAIEmbedded"),
        ("POST", "/v1/responses", {"model": "tiny", "input": "x"}, "OpenAIResponded"),
        ("GET", "/v1/models", None, "OpenAIModels"),
        ("GET", "/v1/models/tiny", None, "OpenAIModel"),
        ("GET", "/v1/models/nosuch", None, "OpenAIError"),
        ("POST", "/v1/messages", {**CHAT, "max_tokens": 5}, "Messaged"),
        ("POST", "/v1/messages", {}, "AnthropicError"),
        ("POST", "/v1/messages/count_tokens", CHAT, "MessageCounted"),
        ("POST", "/v1/messages/count_tokens", {}, "AnthropicError"),
        ("POST", "/v1/completions", {"model": "tiny", "prompt": ["x", "y"]}, "OpenAICompleted"),
    ],
)
async def test_replies_are_what_is_said_of_them(
    client: httpx2.AsyncClient, bench: Bench, method: str, path: str, body: Any, component: str
) -> None:
    async def pulled(*arguments: Any, **named: Any) -> Any:
        yield Progress("success")

    bench.services.pull = pulled
    response = await client.request(method, path, json=body)
    check(component, response.json())
    if body is not None and component.endswith("Error") is False:
        operation = next(one for one in OPERATIONS if (one.method, one.path) == (method, path))
        assert operation.request is not None and operation.reply == component
        check(operation.request, body)


async def test_what_is_loaded_and_what_is_known_of_a_model(client: httpx2.AsyncClient) -> None:
    await client.post("/api/generate", json={"model": "tiny"})
    check("Running", (await client.get("/api/ps")).json())


def test_every_handler_that_is_imported_late_is_there() -> None:
    from rsllm.server import app

    late = set(re.findall(r'"(\w+:\w+)"\)', Path(app.__file__).read_text()))
    assert len(late) > 25
    for handler in late:
        assert callable(app._found(handler))
