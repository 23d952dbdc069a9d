"""What other servers got wrong, asked of this one: cases met in the field that no other test of the server looks at."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import httpx2
import pytest

from rsllm.server.forced import forced_call
from rsllm.server.prompts import Fit, chat_prompt, raw_prompt
from tests.server.conftest import CHATML, METADATA, Bench, lines
from tests.server.test_tools import HERMES, TOOLS

HI = [{"role": "user", "content": "hi"}]


def with_template(bench: Bench, template: str, **behaviour: Any) -> None:
    bench.add(behaviour=behaviour, metadata={**METADATA, "tokenizer.chat_template": template})


async def post(client: httpx2.AsyncClient, path: str, **body: Any) -> httpx2.Response:
    return await client.post(path, json={"model": "tiny", "stream": False, **body})


def sse(text: str) -> list[Any]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


# Templates.


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions", "/v1/messages"])
async def test_roles_that_must_alternate(client: httpx2.AsyncClient, bench: Bench, path: str) -> None:
    """TPL-14."""
    reason = "Conversation roles must alternate user/assistant/user/assistant/..."
    with_template(
        bench,
        "{% for m in messages %}{% if (m['role']=='user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('" + reason + "') }}{% endif %}{{ m.content }}{% endfor %}",
    )
    response = await post(client, path, messages=[*HI, *HI], max_tokens=5)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error if isinstance(error, str) else error["message"]) == reason


async def test_a_role_that_the_template_refuses(client: httpx2.AsyncClient, bench: Bench) -> None:
    """TPL-15."""
    with_template(
        bench, "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    )
    response = await post(client, "/api/chat", messages=[{"role": "system", "content": "x"}, *HI])
    assert (response.status_code, response.json()["error"]) == (400, "System role not supported")


async def test_no_content_beside_a_call(client: httpx2.AsyncClient, bench: Bench) -> None:
    """TPL-16, TOOL-12."""
    with_template(bench, HERMES)
    arguments = '{"actor_id":"22"}'
    call = {"id": "0", "type": "function", "function": {"name": "get-profile", "arguments": arguments}}
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "0", "content": "Ann"},
    ]
    response = await post(client, "/v1/chat/completions", messages=messages, _debug_render_only=True)
    text = response.json()["_debug_info"]["rendered_template"]
    assert '<tool_call>{"name": "get-profile", "arguments": {"actor_id": "22"}}</tool_call>' in text
    assert "Ann[get-profile 0]" in text
    thought = [*HI, {"role": "assistant", "content": None, "reasoning_content": "Done."}, *HI]
    assert (await post(client, "/v1/chat/completions", messages=thought)).status_code == 200


async def test_an_unsafe_template_runs_nothing(client: httpx2.AsyncClient, bench: Bench) -> None:
    """TPL-19."""
    with_template(bench, '{{ lipsum.__globals__["os"].popen("id").read() }}')
    response = await post(client, "/api/chat", messages=HI)
    assert response.status_code == 400
    assert "uid=" not in response.text


async def test_a_template_without_end_is_stopped_and_others_are_served(
    client: httpx2.AsyncClient, bench: Bench
) -> None:
    """TPL-20."""
    with_template(bench, "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}")
    assert (await post(client, "/api/chat", messages=HI)).status_code == 400
    with_template(bench, CHATML)
    assert (await post(client, "/api/chat", messages=HI)).status_code == 200


# Tools.


def test_what_a_parameter_is_described_as_does_not_matter() -> None:
    """TOOL-09."""

    def schema(description: str) -> Any:
        parameters = {
            "type": "object",
            "properties": {"pattern": {"type": "string"}, "path": {"type": "string", "description": description}},
            "required": ["pattern"],
        }
        made = forced_call([{"type": "function", "function": {"name": "glob", "parameters": parameters}}], None)
        made["properties"]["arguments"]["properties"]["path"].pop("description")
        return made

    odd = ['"', "\\", "a | b", "<x>", "line\nline"]
    assert all(schema(description) == schema("plain") for description in odd)


async def test_a_format_leaves_no_room_for_calls_and_that_is_said(client: httpx2.AsyncClient, bench: Bench) -> None:
    with_template(bench, HERMES, says_in_schema=['{"name": "clock", "arguments": {}}'])
    body = {"messages": HI, "tools": TOOLS}
    reply = (await post(client, "/api/chat", **body, format={"type": "object"})).json()
    assert reply["warnings"] == ["the format leaves the model no room to call a tool"]
    assert "warnings" not in (await post(client, "/v1/chat/completions", **body, tool_choice="required")).json()


async def test_parameters_keep_their_order(client: httpx2.AsyncClient, bench: Bench) -> None:
    """TOOL-11."""
    with_template(bench, HERMES, says_in_schema=['{"name": "f", "arguments": {"b": 1, "a": 2}}'])
    parameters = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "integer"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    body = {"messages": HI, "tools": tools, "tool_choice": "required"}
    text = (await post(client, "/v1/chat/completions", **body, _debug_render_only=True)).text
    assert text.index('\\"b\\"') < text.index('\\"a\\"')
    call = (await post(client, "/v1/chat/completions", **body)).json()["choices"][0]["message"]["tool_calls"][0]
    assert call["function"]["arguments"] == '{"b":1,"a":2}'
    schema = forced_call(tools, None)
    assert list(schema["properties"]["arguments"]["properties"]) == ["b", "a"]


@pytest.mark.parametrize(
    ("says", "calls", "content"),
    [
        ('{"name":"weather","arguments":{"city":"X"}} {"name":"clock","arguments":{}}', 2, ""),
        ('```json\n{"name": "weather", "arguments": {"city": "X"}}\n```', 1, ""),
        ('{"name": "weather", "parameters": {"city": "Paris"}}', 1, ""),
        ('{"type":"function","function":{"name":"clock","arguments":{}}}', 1, ""),
        ('Use {"name": "weather"} as an example.', 0, 'Use {"name": "weather"} as an example.'),
        ('Well. <tool_call>{"name": "clock"}</tool_call> Then more. <tool_call>{"name": "clock"}</tool_call>', 2,
         "Well.  Then more. "),
        ('```\n<tool_call>{"name": "clock"}</tool_call>\n```', None, None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("delay", [0, 0.002])
async def test_calls_in_all_their_shapes(
    client: httpx2.AsyncClient, bench: Bench, says: str, calls: int | None, content: str | None, delay: float
) -> None:
    """TOOL-05, TOOL-06, TOOL-07, TOOL-08, TOOL-10."""
    with_template(bench, HERMES, says=[says[i : i + 5] for i in range(0, len(says), 5)], delay=delay)
    body = {"messages": HI, "tools": TOOLS}
    native = (await post(client, "/api/chat", **body)).json()["message"]
    if calls is not None:
        assert len(native.get("tool_calls", ())) == calls
        assert native["content"] == content
    # Streams say the same, in whatever pieces.
    response = await client.post("/v1/chat/completions", json={"model": "tiny", "stream": True, **body})
    deltas = [chunk["choices"][0]["delta"] for chunk in sse(response.text)]
    streamed = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert [call["index"] for call in streamed] == list(range(len(native.get("tool_calls", ()))))
    assert all(isinstance(json.loads(call["function"]["arguments"]), dict) for call in streamed)
    assert "".join(delta.get("content", "") for delta in deltas) == native["content"]


# Streams.


async def test_counts_where_they_are_wanted(client: httpx2.AsyncClient, bench: Bench) -> None:
    """HTTP-07, HTTP-08."""
    bench.add(behaviour={"delay": 0.01})
    body = {"model": "tiny", "messages": HI, "stream": True}
    text = (await client.post("/v1/chat/completions", json={**body, "stream_options": {"include_usage": True}})).text
    chunks = sse(text)
    assert all("usage" in chunk and chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 4
    assert text.endswith("data: [DONE]\n\n")
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    plain = sse((await client.post("/v1/chat/completions", json=body)).text)
    assert not any("usage" in chunk for chunk in plain)


@pytest.mark.parametrize(
    ("path", "fields", "last"),
    [
        ("/v1/chat/completions", {"messages": HI}, "error"),
        ("/v1/completions", {"prompt": "hi"}, "error"),
        ("/v1/messages", {"messages": HI, "max_tokens": 99}, "error"),
        ("/v1/responses", {"input": "hi"}, "response.failed"),
    ],
)
async def test_a_runner_that_dies_is_said(
    client: httpx2.AsyncClient, bench: Bench, path: str, fields: dict[str, Any], last: str
) -> None:
    """HTTP-14."""
    bench.add(behaviour={"delay": 0.03, "crash_after": 2})
    response = await client.post(path, json={"model": "tiny", "stream": True, **fields})
    assert response.status_code == 200
    event = sse(response.text)[-1]
    assert event.get("type", "error") == last
    error = event["response"]["error"] if last == "response.failed" else event["error"]
    assert "signal SIGKILL" in error["message"]
    assert str(bench.store.root) not in response.text


async def test_content_in_parts_with_an_image(client: httpx2.AsyncClient) -> None:
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]
    response = await post(client, "/v1/chat/completions", messages=[{"role": "user", "content": parts}])
    assert response.status_code == 400
    assert "does not support vision" in response.json()["error"]["message"]
    response = await post(client, "/api/chat", messages=[{"role": "user", "content": "x", "images": ["aGk="]}])
    assert response.status_code == 400
    assert response.json()["error"].startswith("registry.ollama.ai/library/tiny:latest does not support vision")


async def test_options_at_the_top_are_said_to_have_no_effect(client: httpx2.AsyncClient) -> None:
    """HTTP-10."""
    reply = (await post(client, "/api/chat", messages=HI, temperature=0, seed=123)).json()
    assert [warning.split()[0] for warning in reply["warnings"]] == ["'temperature'", "'seed'"]


async def test_a_schema_as_a_text_is_refused(client: httpx2.AsyncClient) -> None:
    """STR-15."""
    response = await post(client, "/api/chat", messages=HI, format='{"type":"object"}')
    assert response.status_code == 400
    assert 'expected "json" or a valid JSON Schema object' in response.json()["error"]


# Sampling.


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"temperature": 999999.0}, "temperature"),
        ({"top_p": -1.0}, "top_p"),
        ({"repeat_penalty": 0.0}, "repeat_penalty"),
        ({"min_p": 2}, "min_p"),
        ({"repeat_last_n": -2}, "repeat_last_n"),
        ({"typical_p": 0}, "typical_p"),
        ({"presence_penalty": 1e9}, "presence_penalty"),
        ({"seed": 2**64}, "seed"),
    ],
)
async def test_extreme_values(client: httpx2.AsyncClient, options: dict[str, Any], name: str) -> None:
    """SMP-01."""
    response = await post(client, "/api/chat", messages=HI, options=options)
    assert response.status_code == 400
    assert name in response.json()["error"]


@pytest.mark.parametrize("options", [{"top_k": -1}, {"top_k": 0}, {"top_k": 2**31}, {"seed": -1}, {"num_keep": 10**6}])
async def test_values_with_a_meaning_of_their_own(client: httpx2.AsyncClient, options: dict[str, Any]) -> None:
    """SMP-01."""
    assert (await post(client, "/api/chat", messages=HI, options=options)).status_code == 200


async def test_to_keep_more_than_there_is(client: httpx2.AsyncClient, bench: Bench) -> None:
    """SMP-02."""
    bench.add(behaviour={"context": 100})
    reply = await post(client, "/api/generate", prompt="x" * 500, raw=True, options={"num_keep": 400})
    assert reply.status_code == 200
    assert reply.json()["prompt_eval_count"] < 100


# Embeddings.


async def test_embeddings_as_base64_are_float32(client: httpx2.AsyncClient) -> None:
    """EMB-04, EMB-05."""
    for given in ("hello world", ["hello world"]):
        numbers = (await post(client, "/v1/embeddings", input=given)).json()["data"][0]["embedding"]
        packed = (await post(client, "/v1/embeddings", input=given, encoding_format="base64")).json()["data"]
        data = base64.b64decode(packed[0]["embedding"])
        assert len(packed) == 1 and len(data) == 4 * len(numbers)
        assert list(struct.unpack(f"<{len(numbers)}f", data)) == numbers


async def test_a_native_stream_and_a_whole_reply_have_their_types(client: httpx2.AsyncClient) -> None:
    """HTTP-15."""
    assert lines(await client.post("/api/chat", json={"model": "tiny", "messages": HI}))[-1]["done"]
    whole = await post(client, "/api/chat", messages=HI)
    assert whole.headers["content-type"] == "application/json; charset=utf-8"


@pytest.mark.parametrize(("text", "add_bos", "ids"), [
    ("<s>hi", True, [1, 104, 105]), ("hi", True, [1, 104, 105]), ("<s>hi", False, [1, 104, 105]),
    ("hi", False, [104, 105]),
])  # fmt: skip
async def test_prompts_begin_with_one_token_of_the_beginning(text: str, add_bos: bool, ids: list[int]) -> None:
    """TPL-17."""

    class Held:
        info = {"context": 100}  # noqa: RUF012
        special_tokens = {"bos": 1, "add_bos": add_bos}  # noqa: RUF012

        async def tokenize(self, parts: list[tuple[str, bool]], *, add_special: bool = False) -> list[int]:
            whole = "".join(part for part, _ in parts)
            begin = [1] if add_special and add_bos else []
            return begin + ([1] if whole.startswith("<s>") else []) + list(whole.removeprefix("<s>").encode())

    lease: Any = Held()
    assert (await raw_prompt(lease, text, Fit())).ids == ids
    assert (await chat_prompt(lease, lambda messages: [(text, True)], HI, fit=Fit())).ids == ids
