"""`/v1`: the other protocols over the native service, up to the wire. Translations are tested with the dialects."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from tests.server.conftest import METADATA, Bench

HI = [{"role": "user", "content": "hi"}]
ASK = {"model": "tiny", "messages": HI}


def events(response: httpx2.Response) -> list[tuple[str | None, Any]]:
    """Names and data of the events of a stream."""
    assert response.headers["content-type"].startswith("text/event-stream"), response.text
    found: list[tuple[str | None, Any]] = []
    for block in response.text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        data = fields["data"]
        found.append((fields.get("event"), data if data == "[DONE]" else json.loads(data)))
    return found


async def test_a_chat_completion_whole(client: httpx2.AsyncClient) -> None:
    reply = (await client.post("/v1/chat/completions", json={**ASK, "max_tokens": 3, "colour": 1})).json()
    assert (reply["object"], reply["model"]) == ("chat.completion", "tiny")
    [choice] = reply["choices"]
    assert choice["message"]["role"] == "assistant" and choice["message"]["content"]
    assert reply["usage"]["total_tokens"] == reply["usage"]["prompt_tokens"] + reply["usage"]["completion_tokens"]
    assert any("colour" in warning for warning in reply["warnings"])


async def test_a_chat_completion_as_events(client: httpx2.AsyncClient, bench: Bench) -> None:
    bench.add(behaviour={"delay": 0.03, "pieces": 2})
    body = {**ASK, "stream": True, "stream_options": {"include_usage": True}}
    found = [data for _, data in events(await client.post("/v1/chat/completions", json=body))]
    assert found[-1] == "[DONE]"
    assert found[-2]["choices"] == [] and found[-2]["usage"]["completion_tokens"] == 2
    texts = [chunk["choices"][0]["delta"].get("content", "") for chunk in found[:-2]]
    assert "".join(texts) == "abab"
    assert found[0]["choices"][0]["delta"]["role"] == "assistant"
    assert found[-3]["choices"][0]["finish_reason"] == "stop"
    assert len({chunk["id"] for chunk in found[:-1]}) == 1


async def test_completions_go_through_generate(client: httpx2.AsyncClient) -> None:
    reply = (await client.post("/v1/completions", json={"model": "tiny", "prompt": "hi"})).json()
    assert reply["object"] == "text_completion" and reply["choices"][0]["text"]


async def test_a_response_and_its_events(client: httpx2.AsyncClient) -> None:
    body = {"model": "tiny", "input": "hi"}
    reply = (await client.post("/v1/responses", json=body)).json()
    assert (reply["object"], reply["status"]) == ("response", "completed")
    names = [name for name, _ in events(await client.post("/v1/responses", json={**body, "stream": True}))]
    assert names[:2] == ["response.created", "response.in_progress"]
    assert names[-1] == "response.completed" and "response.output_text.delta" in names


async def test_a_message_and_its_events(client: httpx2.AsyncClient) -> None:
    body = {**ASK, "max_tokens": 16, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    reply = (await client.post("/v1/messages", json=body)).json()
    assert (reply["type"], reply["content"][0]["type"]) == ("message", "text")
    assert any("thinking" in warning for warning in reply["warnings"])
    names = [name for name, _ in events(await client.post("/v1/messages", json={**body, "stream": True}))]
    assert (names[0], names[-1]) == ("message_start", "message_stop")
    assert "content_block_delta" in names


async def test_embeddings_as_numbers_and_as_text(client: httpx2.AsyncClient) -> None:
    numbers = (await client.post("/v1/embeddings", json={"model": "tiny", "input": ["a", "b"]})).json()
    assert [entry["index"] for entry in numbers["data"]] == [0, 1]
    assert all(isinstance(value, float) for value in numbers["data"][0]["embedding"])
    body = {"model": "tiny", "input": "a", "encoding_format": "base64"}
    [entry] = (await client.post("/v1/embeddings", json=body)).json()["data"]
    assert isinstance(entry["embedding"], str)


async def test_models_and_one_of_them(client: httpx2.AsyncClient, bench: Bench) -> None:
    bench.add("hf.co/someone/thing:q4")
    listed = (await client.get("/v1/models")).json()
    assert {model["id"] for model in listed["data"]} == {"tiny:latest", "hf.co/someone/thing:q4"}
    for asked in ("tiny", "tiny:latest", "hf.co/someone/thing:q4", "hf.co%2Fsomeone%2Fthing:q4"):
        reply = await client.get(f"/v1/models/{asked}")
        assert reply.status_code == 200 and reply.json()["id"] == asked.replace("%2F", "/")
    for asked in ("nothing", "two%0Alines", "a%0D%0A/b"):
        reply = await client.get(f"/v1/models/{asked}")
        assert reply.status_code in (400, 404) and reply.json()["error"]["message"], asked


@pytest.mark.parametrize(
    ("path", "body", "status", "shape"),
    [
        ("/v1/chat/completions", {"model": "tiny", "messages": []}, 400, "openai"),
        ("/v1/chat/completions", {**ASK, "model": "nothing"}, 404, "openai"),
        ("/v1/chat/completions", {**ASK, "model": "nothing", "stream": True}, 404, "openai"),
        ("/v1/chat/completions", {**ASK, "tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "openai"),
        ("/v1/embeddings", {"model": "tiny", "input": []}, 400, "openai"),
        ("/v1/responses", {"model": "nothing", "input": "x"}, 404, "openai"),
        ("/v1/messages", {**ASK}, 400, "anthropic"),
        ("/v1/messages", {**ASK, "model": "nothing", "max_tokens": 4}, 404, "anthropic"),
    ],
)
async def test_errors_have_the_shape_of_the_dialect(
    client: httpx2.AsyncClient, path: str, body: dict[str, Any], status: int, shape: str
) -> None:
    response = await client.post(path, json=body)
    assert response.status_code == status, response.text
    reply = response.json()
    if shape == "anthropic":
        assert reply["type"] == "error"
    assert reply["error"]["message"] and reply["error"]["type"]


async def test_an_error_after_the_first_event_ends_the_stream(client: httpx2.AsyncClient, bench: Bench) -> None:
    bench.add(behaviour={"delay": 0.02, "pieces": 50, "crash_after": 3}, metadata=METADATA)
    response = await client.post("/v1/chat/completions", json={**ASK, "stream": True})
    assert response.status_code == 200
    assert events(response)[-1][1]["error"]["message"]


@pytest.mark.parametrize(
    ("path", "fields"), [("/v1/chat/completions", {"messages": HI}), ("/v1/completions", {"prompt": "hi"})]
)
async def test_several_answers(client: httpx2.AsyncClient, bench: Bench, path: str, fields: dict[str, Any]) -> None:
    bench.add(behaviour={"delay": 0.01, "pieces": 3})
    body = {"model": "tiny", "n": 3, "seed": 5, "colour": 1, **fields}
    one = (await client.post(path, json={**body, "n": 1})).json()
    reply = (await client.post(path, json=body)).json()
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2]
    assert [{**choice, "index": 0} for choice in reply["choices"]] == one["choices"] * 3
    assert reply["usage"]["completion_tokens"] == 9
    assert reply["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert reply["warnings"] == ["field 'colour' has no effect"]
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    found = [data for _, data in events(await client.post(path, json=asked))]
    assert found[-1] == "[DONE]" and found.count("[DONE]") == 1
    assert found[-2]["choices"] == [] and found[-2]["usage"]["completion_tokens"] == 9
    texts = {0: "", 1: "", 2: ""}
    for [choice] in (chunk["choices"] for chunk in found[:-2]):
        texts[choice["index"]] += choice["text"] if "text" in choice else choice["delta"].get("content", "")
    assert set(texts.values()) == {"ababab"}
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in found[:-2]]
    assert reasons.count("stop") == 3
    assert sum("warnings" in chunk for chunk in found[:-1]) == 1
    assert len({chunk["id"] for chunk in found[:-1]}) == 1


async def test_a_failure_of_one_answer_ends_them_all(client: httpx2.AsyncClient, bench: Bench) -> None:
    bench.add(behaviour={"delay": 0.02, "pieces": 50, "crash_after": 3})
    response = await client.post("/v1/chat/completions", json={**ASK, "n": 2, "stream": True})
    assert "signal SIGKILL" in events(response)[-1][1]["error"]["message"]
    response = await client.post("/v1/chat/completions", json={**ASK, "n": 2, "model": "nothing"})
    assert response.status_code == 404
    bench.add()
    assert (await client.post("/v1/chat/completions", json={**ASK, "n": 2})).status_code == 200
    assert not any(status.requests for status in bench.pool.status())


async def test_a_list_of_prompts(client: httpx2.AsyncClient) -> None:
    body = {"model": "tiny", "prompt": ["a", "bcd"], "n": 2, "max_tokens": 2}
    ones = [(await client.post("/v1/completions", json={**body, "prompt": prompt})).json() for prompt in body["prompt"]]
    reply = (await client.post("/v1/completions", json=body)).json()
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    assert [choice["finish_reason"] for choice in reply["choices"]] == ["length"] * 4
    counts = [one["usage"]["prompt_tokens"] for one in ones]
    assert counts[1] == counts[0] + 2
    assert reply["usage"] == {
        "prompt_tokens": sum(counts), "completion_tokens": 8, "total_tokens": sum(counts) + 8,
    }  # fmt: skip
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    found = [data for _, data in events(await client.post("/v1/completions", json=asked))]
    assert found[-2]["usage"] == reply["usage"] and found[-1] == "[DONE]"
    assert {chunk["choices"][0]["index"] for chunk in found[:-2]} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("prompt", "counts"), [([104, 105], [2]), ([[104, 105], [65]], [2, 1]), (["", "a"], None), ([""], None)]
)
async def test_prompts_as_token_ids_are_sent_as_they_are(
    client: httpx2.AsyncClient, prompt: list[Any], counts: list[int] | None
) -> None:
    reply = (await client.post("/v1/completions", json={"model": "tiny", "prompt": prompt, "max_tokens": 3})).json()
    texts = [choice["text"] for choice in reply["choices"]]
    if counts is None:  # an empty prompt only loads the model
        assert texts == ["" if text == "" else "ababab" for text in prompt]
        return
    assert texts == ["ababab"] * len(counts)
    assert reply["usage"]["prompt_tokens"] == sum(counts)


async def test_token_ids_that_the_model_does_not_have(client: httpx2.AsyncClient) -> None:
    response = await client.post("/v1/completions", json={"model": "tiny", "prompt": [[1], [256]]})
    assert response.status_code == 400
    assert "beyond the vocabulary of 256" in response.json()["error"]["message"]
    response = await client.post("/v1/completions", json={"model": "tiny", "prompt": [1] * 5000})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")


async def test_a_prompt_is_counted_whether_it_fits_or_not(client: httpx2.AsyncClient) -> None:
    body = {"model": "tiny", "messages": HI, "system": "Be brief.", "colour": 1}
    reply = (await client.post("/v1/messages/count_tokens", json=body)).json()
    whole = (await client.post("/v1/messages", json={**body, "max_tokens": 1})).json()
    assert reply == {
        "input_tokens": whole["usage"]["input_tokens"], "warnings": ["field 'colour' has no effect"],
    }  # fmt: skip
    long = {"model": "tiny", "messages": [{"role": "user", "content": "x" * 10_000}] * 3}
    assert (await client.post("/v1/messages", json={**long, "max_tokens": 1})).status_code == 400
    assert (await client.post("/v1/messages/count_tokens", json=long)).json()["input_tokens"] > 30_000
    response = await client.post("/v1/messages/count_tokens", json={"model": "nosuch", "messages": HI})
    assert (response.status_code, response.json()["error"]["type"]) == (404, "not_found_error")
    response = await client.post("/v1/messages/count_tokens", json={"messages": HI})
    assert (response.status_code, response.json()["error"]["message"]) == (400, "model is required")


@pytest.mark.parametrize("says", [["a"] * 40, ["\n", " ", "\t"] * 14], ids=["token", "blanks"])
@pytest.mark.parametrize("raw", [True, False])
async def test_a_model_that_says_the_same_over_and_over_is_stopped(
    client: httpx2.AsyncClient, bench: Bench, says: list[str], raw: bool
) -> None:
    template = "{# tools <tool_call> #}" + METADATA["tokenizer.chat_template"]
    metadata = {**METADATA, "tokenizer.chat_template": template}
    bench.add(behaviour={"says": ["Well", *says], "delay": 0.002}, metadata=metadata)
    tools = [{"type": "function", "function": {"name": "f"}}]
    path, fields = (
        ("/api/generate", {"prompt": "x", "raw": True}) if raw else ("/api/chat", {"messages": HI, "tools": tools})
    )
    body = {"model": "tiny", "stream": False, **fields}
    reply = (await client.post(path, json=body)).json()
    said = reply["response"] if raw else reply["message"]["content"]
    assert said == "Well" + "".join(says[:32]), "the first, thirty repetitions, and the one too many"
    assert (reply["done_reason"], reply["eval_count"]) == ("length", 4 + len("".join(says[:32])))
    assert reply["warnings"] == ["the answer was cut where one token had been repeated more than 30 times"]
    # Unless it is meant to go on.
    reply = (await client.post(path, json={**body, "options": {"ignore_eos": True}})).json()
    assert reply["done_reason"] == "stop" and "warnings" not in reply
    bench.add(behaviour={"says": ["a"] * 31 + ["b"] + ["a"] * 31}, metadata=metadata)
    assert (await client.post(path, json=body)).json()["done_reason"] == "stop"


async def test_a_model_that_is_stuck_in_its_thoughts_gives_no_answer(client: httpx2.AsyncClient, bench: Bench) -> None:
    template = "{# <think></think> #}" + METADATA["tokenizer.chat_template"]
    behaviour = {"says": ["<think>", *["h"] * 50, "</think>"], "says_in_schema": ["{}"], "delay": 0.002}
    bench.add(behaviour=behaviour, metadata={**METADATA, "tokenizer.chat_template": template})
    body = {"model": "tiny", "messages": HI, "stream": False, "format": "json"}
    reply = (await client.post("/api/chat", json=body)).json()
    assert (reply["done_reason"], reply["message"]["content"]) == ("length", "")
    assert reply["message"]["thinking"] == "h" * 32
    assert not any(status.running for status in bench.pool.status())
