"""Tools: shown to the model, called by it, answered to it, in all protocols."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from rsllm.store.manifest import MediaType
from tests.server.conftest import CHATML, METADATA, Bench, lines

HI = [{"role": "user", "content": "hi"}]
HERMES = "{% if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}" + CHATML.replace(
    "{{ message.content }}",
    "{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}"
    "</tool_call>{% endfor %}{% if message.role == 'tool' %}[{{ message.name }} {{ message.tool_call_id }}]{% endif %}",
)
WEATHER = {
    "name": "weather",
    "description": "Compare if temp > 10 & humidity < 50 (user's choice)",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "at": {"type": ["string", "null"]}}},
}
TOOLS = [
    {"type": "function", "function": WEATHER},
    {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}},
]
CALLS = [
    "Let me see. ", "<tool_call>", '{"name": "weather", "arg', 'uments": {"city": "Paris"}}', "</tool_call>", "\n",
    '<tool_call>{"name": "clock"}</tool_call>',
]  # fmt: skip


def caller(bench: Bench, says: list[Any] | None = None, template: str = HERMES, **behaviour: Any) -> None:
    """Let `tiny` be a model that calls tools."""
    tokens = {"tokenizer.ggml.tokens": ["a"] * 201 + ["[TOOL_CALLS]", "[ARGS]"],
              "tokenizer.ggml.token_type": [1] * 201 + [3, 3]}  # fmt: skip
    bench.add(
        behaviour={"says": CALLS if says is None else says, **behaviour},
        metadata={**METADATA, **tokens, "tokenizer.chat_template": template},
    )


async def chat(client: httpx2.AsyncClient, messages: Any = HI, **body: Any) -> Any:
    asked = {"model": "tiny", "messages": messages, "tools": TOOLS, "stream": False, **body}
    response = await client.post("/api/chat", json=asked)
    assert response.status_code == 200, response.text
    return response.json()


async def rendered(client: httpx2.AsyncClient, messages: Any = HI, **body: Any) -> str:
    reply = await chat(client, messages, _debug_render_only=True, **body)
    return str(reply["_debug_info"]["rendered_template"])


def named(message: dict[str, Any]) -> list[tuple[str, dict[str, Any], int]]:
    """Name, arguments and index of each call."""
    functions = [call["function"] for call in message["tool_calls"]]
    return [(function["name"], function["arguments"], function["index"]) for function in functions]


async def test_calls_of_a_whole_reply(client: httpx2.AsyncClient, bench: Bench) -> None:
    caller(bench)
    reply = await chat(client)
    assert reply["message"]["content"] == "Let me see. "
    assert named(reply["message"]) == [("weather", {"city": "Paris"}, 0), ("clock", {}, 1)]
    ids = [call["id"] for call in reply["message"]["tool_calls"]]
    assert len(set(ids)) == 2 and all(id.startswith("call_") and len(id) == 13 for id in ids)
    assert reply["done_reason"] == "stop" and "warnings" not in reply


async def test_calls_stream_whole_and_the_last_chunk_has_the_counts(client: httpx2.AsyncClient, bench: Bench) -> None:
    """TOOL-13."""
    caller(bench, delay=0.01)
    events = lines(await client.post("/api/chat", json={"model": "tiny", "messages": HI, "tools": TOOLS}))
    with_calls = [event["message"] for event in events if event["message"].get("tool_calls")]
    assert [named(message) for message in with_calls] == [
        [("weather", {"city": "Paris"}, 0)],
        [("clock", {}, 1)],
    ]
    assert all(message["content"] == "" for message in with_calls)
    assert "".join(event["message"]["content"] for event in events) == "Let me see. "
    assert events[-1]["done"] and events[-1]["eval_count"] == 7


async def test_without_tools_a_call_is_text(client: httpx2.AsyncClient, bench: Bench) -> None:
    caller(bench)
    assert (await chat(client, tools=[]))["message"]["content"] == "".join(CALLS)


@pytest.mark.parametrize(
    "says",
    [
        '<tool_call>{"name": "weather", "arguments": {"city": </tool_call>',
        '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "weather"',
    ],
)
async def test_a_malformed_call_is_text_with_a_warning(client: httpx2.AsyncClient, bench: Bench, says: str) -> None:
    caller(bench, [says])
    reply = await chat(client)
    assert reply["message"] == {"role": "assistant", "content": says}
    assert "what looked like a tool call was left in the content" in reply["warnings"][0]
    asked = {"model": "tiny", "messages": HI, "tools": TOOLS}
    reply = (await client.post("/v1/chat/completions", json=asked)).json()
    assert reply["choices"][0]["message"]["content"] == says and reply["choices"][0]["finish_reason"] == "stop"
    assert any("looked like a tool call" in warning for warning in reply["warnings"])


async def test_thoughts_come_before_calls(client: httpx2.AsyncClient, bench: Bench) -> None:
    caller(bench, ["<think>", "I <tool_call> think", "</think>", *CALLS], HERMES + "{# <think> </think> #}")
    message = (await chat(client))["message"]
    assert message["thinking"] == "I <tool_call> think"
    assert len(message["tool_calls"]) == 2


async def test_calls_that_begin_with_a_control_token(client: httpx2.AsyncClient, bench: Bench) -> None:
    template = "{{ tools }}[TOOL_CALLS]" + CHATML
    caller(bench, [201, "weather", 202, '{"city": "Oslo"}', 201, "clock", 202, "{}"], template)
    assert named((await chat(client))["message"]) == [("weather", {"city": "Oslo"}, 0), ("clock", {}, 1)]
    caller(bench, [201, "weather", 202, '{"city": "Oslo"}'], template, delay=0.01)
    assert named((await chat(client))["message"]) == [("weather", {"city": "Oslo"}, 0)]


async def test_a_tool_reaches_the_template_as_it_was_sent(client: httpx2.AsyncClient, bench: Bench) -> None:
    """TOOL-02."""
    caller(bench)
    assert (await rendered(client)).startswith(json.dumps(TOOLS[0]) + "\n")


async def test_what_clients_leave_out_of_tools(client: httpx2.AsyncClient, bench: Bench) -> None:
    """TOOL-03, TOOL-04."""
    caller(bench)
    empty = {"name": "f", "parameters": {"type": "object", "properties": [], "required": []}}
    text = await rendered(client, tools=[{"function": empty}, {"function": {"name": "g"}}])
    first, second = (json.loads(line) for line in text.splitlines()[:2])
    assert first["function"]["parameters"]["properties"] == {} and first["type"] == "function"
    assert second["function"]["parameters"] == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("tools", "text"),
    [
        (["x"], "field 'tools[0]' must be an object, not a text"),
        ([{"type": "function"}], "tools[0].function has no name"),
        ([{"function": {"name": 5}}], "field 'tools[0].function.name' must be a text"),
        ([{"function": {"name": "f", "parameters": []}}], "field 'tools[0].function.parameters' must be an object"),
        ([{"function": {"name": "f", "parameters": {"properties": ["a"]}}}],
         "field 'tools[0].function.parameters.properties' must be an object"),
    ],
)  # fmt: skip
async def test_what_is_no_tool(client: httpx2.AsyncClient, bench: Bench, tools: Any, text: str) -> None:
    caller(bench)
    response = await client.post("/api/chat", json={"model": "tiny", "messages": HI, "tools": tools})
    assert response.status_code == 400
    assert text in response.json()["error"]


async def test_a_model_without_tools_refuses(client: httpx2.AsyncClient) -> None:
    response = await client.post("/api/chat", json={"model": "tiny", "messages": HI, "tools": TOOLS})
    assert response.status_code == 400
    assert response.json()["error"] == "registry.ollama.ai/library/tiny:latest does not support tools"


# The history.


async def test_calls_and_results_of_the_history(client: httpx2.AsyncClient, bench: Bench) -> None:
    caller(bench)
    calls = [
        {"function": {"name": "weather", "arguments": {"city": "Zürich", "b": 1, "a": 2}}},
        {"id": "own", "function": {"name": "clock", "arguments": "{}"}},
    ]
    messages = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": "3", "tool_name": "clock"},
        {"role": "tool", "content": "rain"},
    ]
    text = await rendered(client, messages)
    assert '<tool_call>{"name": "weather", "arguments": {"city": "Zürich", "b": 1, "a": 2}}</tool_call>' in text
    assert "3[clock own]" in text
    assert "rain[weather call_" in text
    assert text == await rendered(client, messages), "ids that are made up stay the same"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("x", "field 'messages[0].tool_calls[0]' must be an object"),
        ({"function": {"arguments": {}}}, "messages[0].tool_calls[0] has no function with a name"),
        ({"function": {"name": "f", "arguments": "{"}}, "arguments' is a text that is not JSON"),
        ({"function": {"name": "f", "arguments": [1]}}, "arguments' must be an object, not a list"),
    ],
)
async def test_what_is_no_call(client: httpx2.AsyncClient, call: Any, text: str) -> None:
    messages = [{"role": "assistant", "tool_calls": [call]}]
    response = await client.post("/api/chat", json={"model": "tiny", "messages": messages})
    assert response.status_code == 400
    assert text in response.json()["error"]


async def test_templates_that_want_ids_of_nine_letters(client: httpx2.AsyncClient, bench: Bench) -> None:
    refuse = "{{ raise_exception('length 9!') }}"
    template = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id|length != 9 %}" + refuse + "{% endif %}"
        "{{ c.id }} {% endfor %}{% if m.role == 'tool' %}{% if m.tool_call_id|length != 9 %}" + refuse + "{% endif %}"
        "{{ m.tool_call_id }}{% endif %}{% endfor %}{{ tools }}"
    )
    caller(bench, template=template)
    calls = [{"id": "call_abcdefgh", "function": {"name": "clock", "arguments": {}}}]
    text = await rendered(
        client, [{"role": "assistant", "tool_calls": calls}, {"role": "tool", "tool_call_id": "call_abcdefgh"}]
    )
    first, second = text.split()[:2]
    assert second.startswith(first)


async def test_templates_that_want_arguments_as_text(client: httpx2.AsyncClient, bench: Bench) -> None:
    shown = "{{ '>' + c.function.arguments }}"
    template = "{% for m in messages %}{% for c in m.tool_calls or [] %}" + shown + "{% endfor %}{% endfor %}"
    caller(bench, template=template + "{{ tools }}")
    calls = [{"function": {"name": "clock", "arguments": {"a": "é"}}}]
    assert (await rendered(client, [{"role": "assistant", "tool_calls": calls}])).startswith('>{"a": "é"}')


async def test_the_files_own_template_for_tools(client: httpx2.AsyncClient, bench: Bench) -> None:
    bench.add(
        behaviour={"says": ['<tool_call>{"name": "clock"}</tool_call>']},
        metadata={**METADATA, "tokenizer.chat_template.tool_use": "with tools: {{ tools | length }}<tool_call>"},
    )
    assert (await rendered(client)) == "with tools: 2<tool_call>"
    assert (await rendered(client, tools=[])).startswith("<|im_start|>")
    assert named((await chat(client))["message"]) == [("clock", {}, 0)]


async def test_results_stay_with_their_calls_when_old_messages_are_dropped(
    client: httpx2.AsyncClient, bench: Bench
) -> None:
    caller(bench, context=400)
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "clock", "arguments": {}}}]}
    messages = [{"role": "user", "content": "x" * 500}, call, {"role": "tool", "content": "noon"}]
    text = await rendered(client, messages, tools=TOOLS[1:])
    assert "x" * 9 not in text and '"name": "clock", "arguments"' in text and "noon[clock" in text


# In other protocols.


def sse(text: str) -> list[Any]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


async def test_openai_streams_calls_with_their_indices(client: httpx2.AsyncClient, bench: Bench) -> None:
    """TOOL-01."""
    caller(bench, delay=0.01)
    body = {"model": "tiny", "messages": HI, "tools": TOOLS}
    chunks = sse((await client.post("/v1/chat/completions", json={**body, "stream": True})).text)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert [(call["index"], call["function"]["name"]) for call in calls] == [(0, "weather"), (1, "clock")]
    assert json.loads(calls[0]["function"]["arguments"]) == {"city": "Paris"}
    assert len({call["id"] for call in calls}) == 2
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["tool_calls"]
    reply = (await client.post("/v1/chat/completions", json=body)).json()
    assert reply["choices"][0]["finish_reason"] == "tool_calls"
    # The reply goes back as it came, with the results.
    message = reply["choices"][0]["message"]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": call["function"]["name"] + "!"}
        for call in message["tool_calls"]
    ]
    again = {**body, "messages": [*HI, message, *results], "_debug_render_only": True}
    text = (await client.post("/v1/chat/completions", json=again)).json()["_debug_info"]["rendered_template"]
    assert f"weather![weather {message['tool_calls'][0]['id']}]" in text


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "clock"}}])
async def test_a_call_that_is_required_is_a_constraint(client: httpx2.AsyncClient, bench: Bench, choice: Any) -> None:
    caller(bench, ["no call"], says_in_schema=['{"name": "clock", ', '"arguments": {}}'])
    body = {"model": "tiny", "messages": HI, "tools": TOOLS, "tool_choice": choice}
    choice = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["clock"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "")
    free = (await client.post("/v1/chat/completions", json={**body, "tool_choice": "auto"})).json()["choices"][0]
    assert free["message"]["content"] == "no call"
    none = {**body, "tool_choice": "none", "_debug_render_only": True}
    text = (await client.post("/v1/chat/completions", json=none)).json()["_debug_info"]["rendered_template"]
    assert "weather" not in text


async def test_a_call_is_required_behind_thoughts(client: httpx2.AsyncClient, bench: Bench) -> None:
    caller(bench, ["<think>", "Hm", "</think>", "no"], HERMES + "{# <think> </think> #}",
           says_in_schema=['{"name": "clock", "arguments": {}}'])  # fmt: skip
    body = {"model": "tiny", "messages": HI, "tools": TOOLS, "tool_choice": "required"}
    message = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"]
    assert message["reasoning"] == "Hm"
    assert message["tool_calls"][0]["function"]["name"] == "clock"


@pytest.mark.parametrize("delay", [0, 0.01])
async def test_one_call_where_no_more_are_wanted(client: httpx2.AsyncClient, bench: Bench, delay: float) -> None:
    caller(bench, [*CALLS, *CALLS], delay=delay)
    body = {"model": "tiny", "messages": HI, "tools": TOOLS, "parallel_tool_calls": False}
    reply = (await client.post("/v1/chat/completions", json=body)).json()
    assert [call["function"]["name"] for call in reply["choices"][0]["message"]["tool_calls"]] == ["weather"]
    assert reply["choices"][0]["finish_reason"] == "tool_calls" and "warnings" not in reply
    caller(bench, ['{"name": "clock"} {"name": "weather", "arguments": {"city": "x"}}'], delay=delay)
    chunks = sse((await client.post("/v1/chat/completions", json={**body, "stream": True})).text)
    calls = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert [call["function"]["name"] for call in calls] == ["clock"]
    assert not bench.pool.metrics().running


async def test_anthropic_both_ways(client: httpx2.AsyncClient, bench: Bench) -> None:
    caller(bench, delay=0.01)
    tools = [{"name": "weather", "input_schema": WEATHER["parameters"]}, {"name": "clock", "input_schema": {}}]
    body = {"model": "tiny", "messages": HI, "tools": tools, "max_tokens": 99}
    reply = (await client.post("/v1/messages", json=body)).json()
    assert [block["type"] for block in reply["content"]] == ["text", "tool_use", "tool_use"]
    assert reply["stop_reason"] == "tool_use"
    assert reply["content"][1]["input"] == {"city": "Paris"}
    events = sse((await client.post("/v1/messages", json={**body, "stream": True})).text)
    starts = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    assert starts == ["text", "tool_use", "tool_use"]
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": [{"type": "text", "text": "ok"}]}
        for block in reply["content"][1:]
    ]
    history = [*HI, {"role": "assistant", "content": reply["content"]}, {"role": "user", "content": results}]
    again = await client.post("/v1/messages", json={**body, "messages": history})
    assert again.status_code == 200, again.text


async def test_responses_both_ways(client: httpx2.AsyncClient, bench: Bench) -> None:
    caller(bench, delay=0.01)
    tools = [{"type": "function", **WEATHER}, {"type": "function", "name": "clock", "parameters": {}}]
    body = {"model": "tiny", "input": "hi", "tools": tools}
    reply = (await client.post("/v1/responses", json=body)).json()
    assert [item["type"] for item in reply["output"]] == ["message", "function_call", "function_call"]
    assert json.loads(reply["output"][1]["arguments"]) == {"city": "Paris"}
    events = sse((await client.post("/v1/responses", json={**body, "stream": True})).text)
    done = [event for event in events if event["type"] == "response.function_call_arguments.done"]
    assert [json.loads(event["arguments"]) for event in done] == [{"city": "Paris"}, {}]
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "ok"} for item in reply["output"][1:]
    ]
    items = [{"role": "user", "content": "hi"}, *reply["output"], *results]
    again = await client.post("/v1/responses", json={**body, "input": items})
    assert again.status_code == 200, again.text


async def test_a_go_template_shows_tools_and_tells_its_tag(client: httpx2.AsyncClient, bench: Bench) -> None:
    template = (
        "{{ range .Tools }}{{ . }}\n{{ end }}{{ range .Messages }}{{ .Role }}: {{ .Content }}"
        '{{ if .ToolCalls }}{{ range .ToolCalls }}<<call>>{"name": "{{ .Function.Name }}", '
        '"arguments": {{ .Function.Arguments }}}{{ end }}{{ end }}\n{{ end }}'
    )
    bench.add(
        behaviour={"says": ["<<call>>", '{"name": "clock", ', '"arguments": {"a": 1}}']},
        layers={MediaType.TEMPLATE: template},
    )
    assert named((await chat(client))["message"]) == [("clock", {"a": 1}, 0)]
    calls = [{"function": {"name": "clock", "arguments": {"b": 1, "a": 2}}}]
    text = await rendered(client, [*HI, {"role": "assistant", "tool_calls": calls}, {"role": "tool", "content": "3"}])
    assert text.startswith('{"type":"function","function":{"name":"weather"')
    assert 'assistant: <<call>>{"name": "clock", "arguments": {"a":2,"b":1}}\ntool: 3\n' in text
