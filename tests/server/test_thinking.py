"""Thoughts told from answers, in all protocols; constraints that wait for their end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from rsllm.store.manifest import MediaType
from tests.server.conftest import CHATML, METADATA, Bench, asking, lines

HI = [{"role": "user", "content": "hi"}]
THINKING = CHATML.replace(
    "assistant\n",
    "assistant\n{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}",
).replace(
    "{{ message.content }}",
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}{{ message.content }}",
)
OPENING = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}{# </think> #}")
THOUGHTS = ["<think>", "\nHm", ", so", "</think>", "\n\n", "Yes", "."]
SCHEMA = {"type": "object"}


def thinker(bench: Bench, says: list[Any] | None = None, template: str = THINKING, **behaviour: Any) -> None:
    """Let `tiny` be a model that thinks."""
    tokens = {"tokenizer.ggml.tokens": ["a"] * 201 + ["[THINK]", "[/THINK]"],
              "tokenizer.ggml.token_type": [1] * 201 + [3, 3]}  # fmt: skip
    bench.add(
        behaviour={"says": THOUGHTS if says is None else says, **behaviour},
        metadata={**METADATA, **tokens, "tokenizer.chat_template": template},
    )


async def chat(client: httpx2.AsyncClient, **body: Any) -> Any:
    response = await client.post("/api/chat", json={"model": "tiny", "messages": HI, "stream": False, **body})
    assert response.status_code == 200, response.text
    return response.json()


async def generate(client: httpx2.AsyncClient, **body: Any) -> Any:
    response = await client.post("/api/generate", json={"model": "tiny", "prompt": "hi", "stream": False, **body})
    assert response.status_code == 200, response.text
    return response.json()


async def rendered(client: httpx2.AsyncClient, **body: Any) -> str:
    return str((await chat(client, _debug_render_only=True, **body))["_debug_info"]["rendered_template"])


@pytest.mark.parametrize("think", [None, True, "low"])
async def test_thoughts_have_a_field_of_their_own(client: httpx2.AsyncClient, bench: Bench, think: Any) -> None:
    thinker(bench)
    asked = {} if think is None else {"think": think}
    reply = await chat(client, **asked)
    assert reply["message"] == {"role": "assistant", "content": "Yes.", "thinking": "Hm, so"}
    assert reply["eval_count"] == 7 and "warnings" not in reply
    reply = await generate(client, **asked)
    assert (reply["response"], reply["thinking"]) == ("Yes.", "Hm, so")


async def test_thoughts_stream(client: httpx2.AsyncClient, bench: Bench) -> None:
    thinker(bench, delay=0.01)
    events = lines(await client.post("/api/chat", json={"model": "tiny", "messages": HI}))
    messages = [event["message"] for event in events]
    assert "".join(message.get("thinking", "") for message in messages) == "Hm, so"
    assert "".join(message["content"] for message in messages) == "Yes."
    # A chunk has something to say, but for the last.
    assert all(message.get("thinking") or message["content"] for message in messages[:-1])
    assert [event["done"] for event in events] == [False] * (len(events) - 1) + [True]
    events = lines(await client.post("/api/generate", json={"model": "tiny", "prompt": "hi"}))
    assert "".join(event.get("thinking", "") for event in events) == "Hm, so"
    assert "".join(event["response"] for event in events) == "Yes."


async def test_a_model_that_need_not_think(client: httpx2.AsyncClient, bench: Bench) -> None:
    thinker(bench, [" Yes", "."])
    assert (await chat(client))["message"] == {"role": "assistant", "content": " Yes."}
    assert (await rendered(client)).endswith("assistant\n")
    assert (await rendered(client, think=False)).endswith("assistant\n<think>\n\n</think>\n\n")
    assert (await chat(client, think=False))["message"]["content"] == " Yes."


async def test_the_prompt_opens_the_thoughts(client: httpx2.AsyncClient, bench: Bench) -> None:
    """HTTP-17."""
    thinker(bench, ["reason…", "</think>", "391"], OPENING)
    assert (await chat(client))["message"] == {"role": "assistant", "content": "391", "thinking": "reason…"}
    reply = await generate(client)
    assert (reply["response"], reply["thinking"]) == ("391", "reason…")
    events = lines(await client.post("/api/chat", json={"model": "tiny", "messages": HI}))
    assert "".join(event["message"].get("thinking", "") for event in events) == "reason…"


@pytest.mark.parametrize("template", [OPENING, THINKING])
async def test_thinking_off_leaves_no_trace_in_the_answer(
    client: httpx2.AsyncClient, bench: Bench, template: str
) -> None:
    """HTTP-16."""
    says = ["reason…", "</think>", "391"] if template == OPENING else ["<think>reason…", "</think>", "391"]
    thinker(bench, says, template)
    if template == THINKING:  # the closed thoughts of the prompt do not keep this model from thinking again
        assert "</think>" in await rendered(client, think=False)
    reply = await generate(client, think=False)
    assert reply["response"] == "391" and "thinking" not in reply
    assert reply["warnings"] == ["the model thinks although `think` is false: its thoughts were left out"]


async def test_tags_that_are_control_tokens(client: httpx2.AsyncClient, bench: Bench) -> None:
    thinker(bench, [201, "Hm", 202, "Yes"], CHATML + "{# [THINK] [/THINK] #}")
    reply = await chat(client)
    assert reply["message"] == {"role": "assistant", "content": "Yes", "thinking": "Hm"}


async def test_raw_prompts_are_only_read_where_it_is_asked_for(client: httpx2.AsyncClient, bench: Bench) -> None:
    thinker(bench)
    assert (await generate(client, raw=True))["response"] == "".join(THOUGHTS)
    assert (await generate(client, raw=True, think=True))["thinking"] == "Hm, so"


async def test_thoughts_of_the_history_reach_the_template(client: httpx2.AsyncClient, bench: Bench) -> None:
    thinker(bench)
    for field in ("thinking", "reasoning_content"):
        messages = [*HI, {"role": "assistant", "content": "Yes", field: "Hm"}, *HI]
        assert "<think>Hm</think>Yes" in await rendered(client, messages=messages)


async def test_log_probabilities_wait_for_the_next_text(client: httpx2.AsyncClient, bench: Bench) -> None:
    thinker(bench, delay=0.01)
    events = lines(await client.post("/api/chat", json={"model": "tiny", "messages": HI, "logprobs": True}))
    tokens = [entry["token"] for event in events for entry in event.get("logprobs", ())]
    assert tokens == THOUGHTS
    assert [entry["token"] for entry in (await chat(client, logprobs=True))["logprobs"]] == THOUGHTS


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
async def test_a_model_that_cannot_think_says_so(client: httpx2.AsyncClient, bench: Bench, path: str) -> None:
    body = {"messages": HI, "prompt": "hi", "think": True, "stream": False}
    response = await client.post(path, json={"model": "tiny", **body})
    assert response.status_code == 400
    assert response.json()["error"] == '"tiny" does not support thinking'
    bench.add("qwen3")
    response = await client.post(path, json={"model": "qwen3", **body})
    assert response.json()["error"] == (
        '"qwen3" does not support thinking. Pull the model again to get the latest version with full thinking support'
    )


async def test_a_notation_that_nobody_knows_is_said(client: httpx2.AsyncClient, bench: Bench) -> None:
    thinker(bench, template=CHATML + "{# reasoning_content #}")
    assert "the text may hold both" in (await chat(client))["warnings"][0]


# With a constraint.


async def test_a_constraint_begins_behind_the_thoughts(client: httpx2.AsyncClient, bench: Bench) -> None:
    """STR-12."""
    thinker(bench, says_in_schema=['{"a":', "1}"])
    reply = await chat(client, format=SCHEMA)
    assert reply["message"] == {"role": "assistant", "content": '{"a":1}', "thinking": "Hm, so"}
    assert reply["eval_count"] == 4 + 2
    prompt = await rendered(client)
    assert reply["prompt_eval_count"] == len(prompt)
    reply = await generate(client, format="json")
    assert (reply["response"], reply["thinking"]) == ('{"a":1}', "Hm, so")
    context = bytes(reply["context"]).decode()
    assert context == prompt + '<think>\nHm, so</think>{"a":1}'


async def test_a_constraint_from_the_first_token_where_nothing_is_thought(
    client: httpx2.AsyncClient, bench: Bench
) -> None:
    thinker(bench, ["never", "used"], says_in_schema=["{}"])
    reply = await chat(client, format=SCHEMA, think=False)
    assert reply["message"]["content"] == "{}" and reply["eval_count"] == 1
    # It may think, and does not.
    reply = await chat(client, format=SCHEMA)
    assert reply["message"] == {"role": "assistant", "content": "{}"}
    assert reply["eval_count"] == 1
    logprobs = (await chat(client, format=SCHEMA, logprobs=True))["logprobs"]
    assert [entry["token"] for entry in logprobs] == ["{}"]


async def test_thoughts_that_cannot_be_off_come_before_the_constraint(client: httpx2.AsyncClient, bench: Bench) -> None:
    thinker(bench, ["Hm", "</think>", "x"], OPENING, says_in_schema=["{}"])
    reply = await chat(client, format=SCHEMA, think=False)
    assert reply["message"] == {"role": "assistant", "content": "{}"}
    assert "its thoughts were left out" in reply["warnings"][0]


async def test_a_constraint_behind_tags_that_are_control_tokens(client: httpx2.AsyncClient, bench: Bench) -> None:
    thinker(bench, [201, "Hm", 202, "Yes"], CHATML + "{# [THINK] [/THINK] #}", says_in_schema=["{}"])
    reply = await generate(client, format=SCHEMA)
    assert (reply["response"], reply["thinking"]) == ("{}", "Hm")
    assert reply["context"][-6:] == [201, *b"Hm", 202, *b"{}"]


async def test_more_in_the_last_token_than_the_tag(client: httpx2.AsyncClient, bench: Bench) -> None:
    thinker(bench, ["<think>", "Hm", "</think>So"], says_in_schema=["{}"])
    reply = await generate(client, format=SCHEMA)
    assert (reply["response"], reply["thinking"]) == ("{}", "Hm")
    assert bytes(reply["context"]).decode().endswith("assistant\n<think>Hm</think>{}")


async def test_a_model_that_ends_within_its_thoughts_answers_all_the_same(
    client: httpx2.AsyncClient, bench: Bench
) -> None:
    thinker(bench, ["<think>", "Hm"], says_in_schema=["{}"])
    reply = await generate(client, format=SCHEMA)
    assert (reply["response"], reply["thinking"]) == ("{}", "Hm")
    assert bytes(reply["context"]).decode().endswith("<think>Hm</think>{}")


@pytest.mark.parametrize(
    ("options", "reason"), [({"num_predict": 2}, "length"), ({"stop": ["Hm"]}, "stop"), ({"num_ctx": 70}, "length")]
)
async def test_an_end_within_the_thoughts(
    client: httpx2.AsyncClient, bench: Bench, options: dict[str, Any], reason: str
) -> None:
    thinker(bench, ["<think>", *["x"] * 20, "Hm", "</think>"], says_in_schema=["{}"])
    reply = await chat(client, format=SCHEMA, options=options)
    assert (reply["message"]["content"], reply["done_reason"]) == ("", reason)
    assert set(reply["message"].get("thinking", "x")) == {"x"}


async def test_thoughts_are_counted(client: httpx2.AsyncClient, bench: Bench) -> None:
    thinker(bench, delay=0.01, says_in_schema=["{}"])
    # Fake tokens are bytes; the tag before the thoughts is known for one when they have begun.
    assert (await chat(client))["thinking_count"] == len("\nHm, so")
    assert (await chat(client, format=SCHEMA))["thinking_count"] == len("\nHm, so")
    body = {"model": "tiny", "messages": HI, "n": 2}
    usage = (await client.post("/v1/chat/completions", json=body)).json()["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 2 * len("\nHm, so")}
    reply = (await client.post("/v1/responses", json={"model": "tiny", "input": "hi"})).json()
    assert reply["usage"]["output_tokens_details"] == {"reasoning_tokens": len("\nHm, so")}
    thinker(bench)  # all in one piece
    assert (await chat(client))["thinking_count"] > 0
    thinker(bench, ["Yes"])
    assert "thinking_count" not in await chat(client)


async def test_the_limit_counts_thoughts_and_answer_together(client: httpx2.AsyncClient, bench: Bench) -> None:
    thinker(bench, says_in_schema=["{", "}", " ", " "])
    reply = await chat(client, format=SCHEMA, options={"num_predict": 5})
    assert (reply["message"]["content"], reply["done_reason"], reply["eval_count"]) == ("{", "length", 5)


# Channels, as gpt-oss has them.

HARMONY = (
    "{{ tools }}{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
    "<|start|>assistant{# <|channel|> #}"
)
CHANNEL, MESSAGE, END, START = 201, 202, 203, 204
ANALYSIS = [CHANNEL, "analysis", MESSAGE, "Hm", END]


def harmonist(bench: Bench, says: list[Any], **behaviour: Any) -> None:
    """Let `tiny` be a model that speaks on channels."""
    tokens = ["a"] * 201 + ["<|channel|>", "<|message|>", "<|end|>", "<|start|>"]
    described = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1] * 201 + [3] * 4}
    bench.add(
        behaviour={"says": says, **behaviour},
        metadata={**METADATA, **described, "tokenizer.chat_template": HARMONY},
    )


@pytest.mark.parametrize("delay", [0, 0.01])
async def test_channels(client: httpx2.AsyncClient, bench: Bench, delay: float) -> None:
    harmonist(bench, [*ANALYSIS, START, "assistant", CHANNEL, "final", MESSAGE, "Ye", "s"], delay=delay)
    assert (await chat(client))["message"] == {"role": "assistant", "content": "Yes", "thinking": "Hm"}
    reply = await chat(client, think=False)
    assert reply["message"] == {"role": "assistant", "content": "Yes"}
    assert "its thoughts were left out" in reply["warnings"][0]
    call = [START, "assistant", CHANNEL, "commentary to=functions.clock", MESSAGE, '{"a": 1}']
    harmonist(bench, [*ANALYSIS, *call], delay=delay)
    tools = [{"type": "function", "function": {"name": "clock"}}]
    message = (await chat(client, tools=tools))["message"]
    assert message["thinking"] == "Hm"
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == [{"a": 1}]


@pytest.mark.parametrize("delay", [0, 0.01])
async def test_a_constraint_holds_on_the_final_channel(client: httpx2.AsyncClient, bench: Bench, delay: float) -> None:
    final = [CHANNEL, "final", MESSAGE, "no JSON"]
    harmonist(bench, [*ANALYSIS, START, "assistant", *final], says_in_schema=["{", "}"], delay=delay)
    reply = await generate(client, format=SCHEMA)
    assert (reply["response"], reply["thinking"]) == ("{}", "Hm")
    begun = [CHANNEL, *b"analysis", MESSAGE, *b"Hm", END, *b"<|start|>assistant<|channel|>final<|message|>", *b"{}"]
    assert reply["context"][-len(begun) :] == begun
    harmonist(bench, final, says_in_schema=["{}"], delay=delay)
    reply = await generate(client, format=SCHEMA)
    assert reply["response"] == "{}" and "thinking" not in reply
    assert bytes(reply["context"]).decode().endswith("<|start|>assistant<|channel|>final<|message|>{}")


# In other protocols.


async def test_openai(client: httpx2.AsyncClient, bench: Bench) -> None:
    thinker(bench, delay=0.01)
    body = {"model": "tiny", "messages": HI, "reasoning_effort": "high"}
    message = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "Yes.", "reasoning": "Hm, so"}
    text = (await client.post("/v1/chat/completions", json={**body, "stream": True})).text
    chunks = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert "".join(delta.get("reasoning", "") for delta in deltas) == "Hm, so"
    assert "".join(delta.get("content", "") for delta in deltas) == "Yes."
    thinker(bench, ["Yes."])
    assert (await client.post("/v1/chat/completions", json={**body, "reasoning_effort": "none"})).status_code == 200
    bench.add()
    response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 400 and "does not support thinking" in response.json()["error"]["message"]


async def test_anthropic(client: httpx2.AsyncClient, bench: Bench) -> None:
    body = {"model": "tiny", "messages": HI, "max_tokens": 50, "thinking": {"type": "enabled"}}
    reply = (await client.post("/v1/messages", json=body)).json()
    assert reply["warnings"] == ["the model does not support thinking: it was left out"]
    thinker(bench, delay=0.01)
    reply = (await client.post("/v1/messages", json=body)).json()
    assert [block["type"] for block in reply["content"]] == ["thinking", "text"]
    assert (reply["content"][0]["thinking"], reply["content"][1]["text"]) == ("Hm, so", "Yes.")
    text = (await client.post("/v1/messages", json={**body, "stream": True})).text
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    starts = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    assert starts == ["thinking", "text"]
    history = [*HI, {"role": "assistant", "content": reply["content"]}, *HI]
    assert (await client.post("/v1/messages", json={**body, "messages": history})).status_code == 200


async def test_responses(client: httpx2.AsyncClient, bench: Bench) -> None:
    thinker(bench, delay=0.01)
    body = {"model": "tiny", "input": "hi"}
    reply = (await client.post("/v1/responses", json=body)).json()
    assert [item["type"] for item in reply["output"]] == ["reasoning", "message"]
    assert reply["output"][0]["summary"][0]["text"] == "Hm, so"
    text = (await client.post("/v1/responses", json={**body, "stream": True})).text
    names = [line[7:] for line in text.splitlines() if line.startswith("event: ")]
    assert "response.reasoning_summary_text.delta" in names
    assert names.index("response.reasoning_summary_text.done") < names.index("response.output_text.delta")
    again = {
        "model": "tiny",
        "input": [{"role": "user", "content": "hi"}, *reply["output"], {"role": "user", "content": "so?"}],
    }
    assert (await client.post("/v1/responses", json=again)).status_code == 200


async def test_a_go_template_tells_its_tags(client: httpx2.AsyncClient, bench: Bench) -> None:
    template = (
        "{{ range .Messages }}<|im_start|>{{ .Role }}\n{{ if .Thinking }}<think>{{ .Thinking }}</think>{{ end }}"
        "{{ .Content }}<|im_end|>\n{{ end }}<|im_start|>assistant\n{{ if and $.IsThinkSet (not $.Think) }}<no>{{ end }}"
    )
    bench.add(behaviour={"says": THOUGHTS}, layers={MediaType.TEMPLATE: template})
    assert (await chat(client))["message"]["thinking"] == "Hm, so"
    assert (await rendered(client, think=False)).endswith("<no>")
    assert not (await rendered(client, think="high")).endswith("<no>")


async def test_nobody_gets_between_thoughts_and_answer(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(parallel=1, max_queue=1)
    thinker(bench, says_in_schema=["{}"], delay=0.02)
    async with bench.pool, asking(bench) as client:
        await chat(client)
        first = asyncio.create_task(chat(client, format=SCHEMA))
        while not bench.pool.metrics().running:
            await asyncio.sleep(0.005)
        second = asyncio.create_task(chat(client))  # the queue is full now
        assert (await first)["message"]["content"] == "{}"
        assert not second.done()
        assert (await second)["message"]["content"] == "Yes."
        assert not bench.pool.metrics().running
