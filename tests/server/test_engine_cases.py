"""Cases met in the field that the server decides, not the model: full contexts, memory, and many callers.

They run against runners without a model, so that a token is a byte; with a real one they are in `tests/e2e`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from tests.server.conftest import METADATA, Bench, asking
from tests.server.test_serving import running, serving, until, waiting

HI = [{"role": "user", "content": "hi"}]
ENDLESS = {"pieces": None, "text": "ab"}


async def post(client: httpx2.AsyncClient, path: str, **body: Any) -> httpx2.Response:
    return await client.post(path, json={"model": "tiny", "stream": False, **body})


# The context.


@pytest.mark.parametrize("path", ["/api/generate", "/api/chat"])
async def test_a_prompt_that_is_cut_keeps_what_the_answer_leaves_room_for(
    client: httpx2.AsyncClient, path: str
) -> None:
    """CTX-02: 600 tokens into 512, of which 16 are for the answer."""
    text = "x" * 600
    asked = {"prompt": text, "raw": True} if "generate" in path else {"messages": [{"role": "user", "content": text}]}
    reply = (await post(client, path, **asked, options={"num_ctx": 512, "num_predict": 16})).json()
    assert reply["prompt_eval_count"] == 512 - 16
    given = 600 if "generate" in path else 600 + len("<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n")
    assert reply["warnings"] == [
        f"the prompt was cut from {given} to 496 tokens in its middle: it did not fit into the context of 512"
    ]


async def test_the_same_rule_for_all_models(client: httpx2.AsyncClient, bench: Bench) -> None:
    """CTX-03: whatever its family and template, and however it was loaded."""
    bench.add("other", {"text": "z"}, metadata={**METADATA, "general.architecture": "another"})
    bench.add("third", {"text": "y"}, layers={"application/vnd.ollama.image.params": json.dumps({"num_predict": 4})})
    long = [{"role": "user", "content": "x" * 9000}]
    for extra in ({}, {"truncate": False}, {"shift": False}):
        replies = [await post(client, "/api/chat", model=name, messages=long, **extra) for name in ("tiny", "other")]
        assert [reply.status_code for reply in replies] == [400 if extra else 200] * 2
        if extra:
            assert replies[0].json() == replies[1].json()
            assert "4096" in replies[0].json()["error"]
        else:
            assert len({reply.json()["prompt_eval_count"] for reply in replies}) == 1
            assert len({str(reply.json()["warnings"]) for reply in replies}) == 1
    third = (await post(client, "/api/chat", model="third", messages=long)).json()
    assert third["prompt_eval_count"] == 4092, "its own limit leaves more room"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "x" * 9000}],
        [
            {"role": "user", "content": "What does the file say?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "1", "type": "function", "function": {"name": "read", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "1", "content": "word " * 2500},
        ],
    ],
)
async def test_what_is_too_long_is_an_error_as_openai_writes_it(
    client: httpx2.AsyncClient, messages: list[dict[str, Any]], stream: bool
) -> None:
    """CTX-04, and CTX-05 with a tool's result of 12,500 tokens."""
    response = await post(client, "/v1/chat/completions", messages=messages, stream=stream)
    assert response.status_code == 400
    assert response.headers["content-type"].startswith("application/json")
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "context_length_exceeded")
    count = sum(len(message["content"] or "") for message in messages)
    assert "4096" in error["message"]
    [prompt] = [int(word) for word in error["message"].split() if word.isdigit() and word != "4096"]
    assert count < prompt < count + 200


@pytest.mark.parametrize("limit", [None, -1, -2])
@pytest.mark.parametrize("architecture", ["fake", "deepseek2"])
async def test_an_answer_without_a_limit_ends_at_the_window(
    client: httpx2.AsyncClient, bench: Bench, limit: int | None, architecture: str
) -> None:
    """CTX-06, CTX-07 and CTX-08: also for a model that cannot shift; -2 fills the window too."""
    bench.add(behaviour=ENDLESS, metadata={**METADATA, "general.architecture": architecture})
    options: dict[str, Any] = {"num_ctx": 256, "ignore_eos": True}
    if limit is not None:
        options["num_predict"] = limit
    reply = (await post(client, "/api/generate", prompt="x" * 56, raw=True, options=options)).json()
    assert (reply["done_reason"], reply["eval_count"]) == ("length", 200)
    assert reply["warnings"] == ["stopped because the context of 256 tokens is full"]


async def test_who_asks_for_more_than_the_window_gets_it_and_no_more(client: httpx2.AsyncClient, bench: Bench) -> None:
    """CTX-07 and CTX-08: a limit of one's own, or Ollama's ten contexts; -2 is the window whatever else is asked."""
    bench.add(behaviour=ENDLESS)
    body = {"prompt": "x" * 56, "raw": True}
    for asked, count in (
        ({"options": {"num_predict": 500}}, 500),
        ({"options": {"num_predict": 500}, "shift": False}, 200),
        ({"options": {"num_predict": -1}, "shift": True}, 2560),
        ({"options": {"num_predict": -2}, "shift": True}, 200),
    ):
        options = {"num_ctx": 256, "ignore_eos": True, **asked.pop("options")}
        reply = (await post(client, "/api/generate", **body, **asked, options=options)).json()
        assert (reply["done_reason"], reply["eval_count"]) == ("length", count), asked


async def test_a_prompt_that_nearly_fills_the_window_still_gets_an_answer(
    client: httpx2.AsyncClient, bench: Bench
) -> None:
    bench.add(behaviour={"pieces": 40})
    options = {"num_ctx": 256, "ignore_eos": True}
    reply = (await post(client, "/api/generate", prompt="x" * 250, raw=True, options=options)).json()
    assert (reply["done_reason"], reply["eval_count"]) == ("stop", 40)
    bench.add(behaviour=ENDLESS)
    reply = (await post(client, "/api/generate", prompt="x" * 250, raw=True, options=options)).json()
    assert (reply["done_reason"], reply["eval_count"]) == ("length", 256)
    assert reply["warnings"] == ["stopped after 256 tokens, since no num_predict says how many there may be"]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_endless_answer_is_stopped_by_its_client(make_bench: Callable[..., Bench], stream: bool) -> None:
    """CTX-07: leaving ends it."""
    bench = make_bench(parallel=1)
    bench.add(behaviour={**ENDLESS, "delay": 0.01})
    body = {"model": "tiny", "prompt": "hi", "stream": stream, "shift": True, "options": {"num_predict": -1}}
    async with serving(bench) as (_, url), httpx2.AsyncClient() as client:
        task = asyncio.create_task(client.post(url + "/api/generate", json=body))
        await until(lambda: running(bench) == 1)
        task.cancel()
        await until(lambda: running(bench) == 0)
        await asyncio.gather(task, return_exceptions=True)


async def test_one_token_is_one_token(client: httpx2.AsyncClient, bench: Bench) -> None:
    """CTX-09."""
    bench.add(behaviour=ENDLESS)
    reply = (await post(client, "/v1/chat/completions", messages=HI, max_tokens=1)).json()
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 1


# Memory.


async def test_layers_for_a_gpu_that_is_not_there_step_down_and_it_is_said(client: httpx2.AsyncClient) -> None:
    """MEM-02: all of them run where there is room, which is the processor."""
    reply = (await post(client, "/api/generate", prompt="hi", options={"num_gpu": 999})).json()
    assert reply["response"] == "abababab"
    assert reply["warnings"] == ["option 'num_gpu' has no effect: this build has no GPU backend, all runs on the CPU"]


async def test_more_than_the_memory_there_is_refused_with_both_figures(make_bench: Callable[..., Bench]) -> None:
    """MEM-02 and MEM-03, with a cap on memory: scratch counts, nothing is tried that cannot go well, and a smaller
    context does."""
    bench = make_bench()
    bench.add(behaviour={"plan": {"scratch_bytes": 2_500_000_000}})
    bench.add("small", {"text": "s"})
    bench.pool._effects.available_bytes = lambda: 2_000_000_000
    async with bench.pool, asking(bench) as client:
        response = await post(client, "/api/generate", prompt="hi")
        assert response.status_code == 500
        assert response.json()["kind"] == "MemoryPlanError"
        assert "needs 2388 MiB of memory beside its weights, and 1907 MiB can be had" in response.json()["error"]
        bench.pool._effects.available_bytes = lambda: 3_500_000
        response = await post(client, "/api/generate", model="small", prompt="hi")
        assert "smaller context" in response.json()["hint"]
        options = {"num_ctx": 1000}
        assert (await post(client, "/api/generate", model="small", prompt="hi", options=options)).status_code == 200


async def test_the_window_is_not_multiplied_by_the_places(make_bench: Callable[..., Bench]) -> None:
    """MEM-04: four at once share the pages of one context."""
    plans = []
    for parallel in (1, 4):
        bench = make_bench(parallel=parallel)
        bench.add()
        async with bench.pool, asking(bench) as client:
            assert (await post(client, "/api/generate", prompt="hi")).status_code == 200
            [status] = bench.pool.status()
            assert status.plan is not None
            plans.append(status.plan.kv_bytes)
    assert plans[0] == plans[1]


# Many callers.


async def test_a_burst_is_served_whole(make_bench: Callable[..., Bench]) -> None:
    """CON-01: 30 prompts at once, and 300 embeddings while the model loads."""
    bench = make_bench()
    bench.add(behaviour={"load_delay": 0.3})
    async with bench.pool, asking(bench, timeout=60) as client:
        embeds = [post(client, "/api/embed", input="abc") for _ in range(300)]
        prompts = [post(client, "/api/generate", prompt="hi") for _ in range(30)]
        replies = await asyncio.gather(*embeds, *prompts)
        assert {reply.status_code for reply in replies} == {200}
        assert bench.pool.metrics().counts.loads == 1


async def test_beyond_the_bound_is_503_and_when_to_come_back(make_bench: Callable[..., Bench]) -> None:
    """CON-01 beyond the bound, and CON-02: one runs, one waits, four are refused, and never a 500."""
    bench = make_bench(parallel=1, max_queue=1)
    bench.add(behaviour={"pieces": 5, "delay": 0.05})
    async with bench.pool, asking(bench, timeout=60) as client:
        assert (await post(client, "/api/generate", prompt="")).status_code == 200  # it is warm
        replies = await asyncio.gather(*(post(client, "/api/generate", prompt="hi") for _ in range(6)))
        assert sorted(reply.status_code for reply in replies) == [200] * 2 + [503] * 4
        refused = [reply for reply in replies if reply.status_code == 503]
        assert {reply.headers["retry-after"] for reply in refused} == {"1"}
        assert all("maximum pending requests exceeded" in reply.json()["error"] for reply in refused)
        assert (await post(client, "/api/generate", prompt="hi")).status_code == 200


@pytest.mark.parametrize("where", ["generating", "queued"])
async def test_a_dead_client_frees_its_place(make_bench: Callable[..., Bench], where: str) -> None:
    """CON-03 (a, c); (b), a long prompt, needs a real engine."""
    bench = make_bench(parallel=1)
    bench.add(behaviour={"pieces": None, "delay": 0.02})
    body = {"model": "tiny", "prompt": "hi", "options": {"num_predict": 10**6}}
    async with serving(bench) as (_, url), httpx2.AsyncClient() as client:
        first = asyncio.create_task(client.post(url + "/api/generate", json=body))
        await until(lambda: running(bench) == 1)
        if where == "queued":
            second = asyncio.create_task(client.post(url + "/api/generate", json={**body, "prompt": "never"}))
            await until(lambda: waiting(bench) == 1)
            second.cancel()
            await until(lambda: waiting(bench) == 0)
            await asyncio.gather(second, return_exceptions=True)
            assert running(bench) == 1
        first.cancel()
        await until(lambda: running(bench) == 0)
        await asyncio.gather(first, return_exceptions=True)
        while (await bench.pool.figures(10))[0].engine["running"]:  # the engine hears of it too
            await asyncio.sleep(0.01)
        short = {**body, "stream": False, "options": {"num_predict": 2}}
        assert (await client.post(url + "/api/generate", json=short)).json()["eval_count"] == 2
        assert bench.pool.metrics().counts.abandoned == (where == "queued")


async def test_another_client_s_smaller_context_is_no_reason_to_load_anew(
    client: httpx2.AsyncClient, bench: Bench
) -> None:
    """CON-04."""
    bench.add(behaviour={"plan": {"training_context": 8192}}, metadata={**METADATA, "fake.context_length": 8192})
    assert (await post(client, "/api/generate", prompt="hi", options={"num_ctx": 8192})).status_code == 200
    [before] = bench.pool.status()
    reply = (await post(client, "/api/generate", prompt="hi", options={"num_ctx": 2048})).json()
    assert "loaded with a context of 8192" in reply["warnings"][0]
    [after] = bench.pool.status()
    assert before.pid == after.pid
    assert bench.pool.metrics().counts.reloads == 0


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
async def test_a_stream_to_its_end_and_then_the_next(make_bench: Callable[..., Bench], path: str) -> None:
    """CON-05: on one connection, and on another one."""
    bench = make_bench()
    bench.add()
    body = {"model": "tiny", "messages": HI, "stream": True}
    async with serving(bench) as (_, url), httpx2.AsyncClient() as client, httpx2.AsyncClient() as other:
        texts = [(await who.post(url + path, json=body)).text for who in (client, client, other)]
    for text in texts:
        if path == "/api/chat":
            events = [json.loads(line) for line in text.splitlines()]
            assert "".join(event["message"]["content"] for event in events) == "abababab"
            assert events[-1]["done"]
        else:
            assert text.endswith("data: [DONE]\n\n")


async def test_many_short_requests_leave_nothing_behind(client: httpx2.AsyncClient, bench: Bench) -> None:
    """CON-06 through HTTP; the long form is `python -m tests.soak_runner --steady 10000`."""

    async def caller() -> None:
        for _ in range(40):
            response = await post(client, "/api/generate", prompt="hi", options={"num_predict": 1})
            assert response.status_code == 200 and response.json()["eval_count"] == 1

    await asyncio.gather(*(caller() for _ in range(5)))
    [status] = bench.pool.status()
    assert (status.requests, status.running, status.queued) == (0, 0, 0)
    assert not bench.pool._effects._answers
    assert bench.pool.metrics().counts.requests == 200
