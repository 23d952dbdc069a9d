"""`POST /api/generate`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from rsllm.store.manifest import MediaType
from tests.server.conftest import Bench, asking, lines

PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


async def ask(client: httpx2.AsyncClient, **body: Any) -> httpx2.Response:
    return await client.post("/api/generate", json={"model": "tiny", "prompt": "hi", "stream": False, **body})


async def rendered(client: httpx2.AsyncClient, **body: Any) -> str:
    reply = (await ask(client, _debug_render_only=True, **body)).json()
    text: str = reply["_debug_info"]["rendered_template"]
    return text


async def test_the_answer_streams(client: httpx2.AsyncClient, bench: Bench) -> None:
    bench.add(behaviour={"delay": 0.03})
    response = await client.post("/api/generate", json={"model": "tiny", "prompt": "hi"})
    assert response.status_code == 200
    events = lines(response)
    assert [event["response"] for event in events] == ["ab"] * 4 + [""]
    assert all(event["model"] == "tiny" and event["created_at"].endswith("Z") for event in events)
    assert [event["done"] for event in events] == [False] * 4 + [True]
    last = events[-1]
    assert last["done_reason"] == "stop"
    durations = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
    for name in (*durations, "prompt_eval_count", "eval_count"):
        assert last[name] > 0
    assert last["eval_count"] == 4
    assert bytes(last["context"]).decode() == PROMPT + "aaaa"
    assert "warnings" not in last


async def test_the_answer_comes_whole(client: httpx2.AsyncClient) -> None:
    response = await ask(client)
    assert response.headers["content-type"] == "application/json; charset=utf-8"
    reply = response.json()
    assert (reply["response"], reply["done"], reply["done_reason"]) == ("ab" * 4, True, "stop")


async def test_the_name_is_echoed_as_it_was_sent(client: httpx2.AsyncClient) -> None:
    assert (await ask(client, model="TINY:latest")).json()["model"] == "TINY:latest"


async def test_an_end_for_want_of_tokens_or_context_is_length(client: httpx2.AsyncClient, bench: Bench) -> None:
    bench.add(behaviour={"pieces": None})
    reply = (await ask(client, options={"num_predict": 2})).json()
    assert (reply["done_reason"], reply["eval_count"]) == ("length", 2)
    assert "warnings" not in reply
    bench.add("small", {"pieces": None, "text": "x"})
    reply = (await ask(client, model="small", options={"num_ctx": 128, "ignore_eos": True})).json()
    assert reply["done_reason"] == "length"
    assert reply["warnings"] == ["stopped because the context of 128 tokens is full"]


@pytest.mark.parametrize("keep_alive", [None, "10m", -1])
async def test_an_empty_prompt_loads(client: httpx2.AsyncClient, bench: Bench, keep_alive: Any) -> None:
    response = await client.post("/api/generate", json={"model": "tiny", "keep_alive": keep_alive})
    reply = response.json()  # one object, although it would stream
    assert (reply["response"], reply["done"], reply["done_reason"]) == ("", True, "load")
    assert [status.name for status in bench.pool.status()] == ["tiny:latest"]


@pytest.mark.parametrize("keep_alive", [0, "0", "0s"])
async def test_an_empty_prompt_unloads(client: httpx2.AsyncClient, bench: Bench, keep_alive: Any) -> None:
    await client.post("/api/generate", json={"model": "tiny"})
    response = await client.post("/api/generate", json={"model": "tiny", "keep_alive": keep_alive})
    assert response.json()["done_reason"] == "unload"
    while bench.pool.status():
        await asyncio.sleep(0.02)
    # What is not loaded is unloaded already.
    assert (await client.post("/api/generate", json={"model": "tiny", "keep_alive": 0})).status_code == 200


@pytest.mark.parametrize(
    ("keep_alive", "seconds"), [("-1", None), ("-1m", None), (-1, None), (42.5, 42.5), ("5m", 300.0), (None, 300.0)]
)
async def test_keep_alive_in_its_forms(
    client: httpx2.AsyncClient, bench: Bench, keep_alive: Any, seconds: float | None
) -> None:
    """HTTP-09."""
    await ask(client, keep_alive=keep_alive)
    (status,) = bench.pool.status()
    assert status.expires_in == (float("inf") if seconds is None else pytest.approx(seconds, abs=5))


async def test_the_template_the_system_message_and_the_history_of_the_model(
    client: httpx2.AsyncClient, bench: Bench
) -> None:
    history = json.dumps([{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}])
    bench.add(layers={MediaType.SYSTEM: "Be nice.", MediaType.MESSAGES: history})
    before = (
        "<|im_start|>system\nBe nice.<|im_end|>\n<|im_start|>user\n1<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n"
    )
    assert await rendered(client) == before + PROMPT
    assert await rendered(client, system="Be brief.") == before.replace("nice", "brief") + PROMPT


async def test_raw_is_sent_as_it_is(client: httpx2.AsyncClient) -> None:
    assert await rendered(client, raw=True) == "hi"
    assert "context" not in (await ask(client, raw=True)).json()
    for field in ({"system": "x"}, {"template": "x"}, {"context": [1]}):
        response = await ask(client, raw=True, **field)
        assert response.status_code == 400
        assert response.json()["error"] == "raw mode does not support template, system, or context"


async def test_context_goes_on_from_an_earlier_answer(client: httpx2.AsyncClient) -> None:
    first = (await ask(client)).json()["context"]
    second = (await ask(client, context=first)).json()["context"]
    assert second == [*first, *PROMPT.encode(), *b"aaaa"]
    assert (await ask(client, context=[10**6])).status_code == 400
    assert (await ask(client, context=["x"])).status_code == 400


async def test_the_parameters_of_the_model_yield_to_the_request(client: httpx2.AsyncClient, bench: Bench) -> None:
    bench.add(behaviour={"pieces": None}, layers={MediaType.PARAMS: json.dumps({"num_predict": 3, "num_ctx": 99})})
    assert (await ask(client)).json()["eval_count"] == 3
    assert bench.pool.status()[0].info["context"] == 99
    assert (await ask(client, options={"num_predict": 1})).json()["eval_count"] == 1


async def test_what_has_no_effect_is_said(client: httpx2.AsyncClient) -> None:
    options = {"mirostat": 1, "num_gpu": 99, "num_batch": 8, "num_ctx": 99999, "num_thread": 0, "draft_num_predict": 16}
    reply = (await ask(client, options=options, temperature=0, promt="x")).json()
    assert reply["warnings"] == [
        "'temperature' has no effect there: it belongs in 'options'",
        "unknown field 'promt'; did you mean 'prompt'?",
        "unknown option 'mirostat' was ignored",
        "option 'num_gpu' has no effect: this build has no GPU backend, all runs on the CPU",
        "option 'num_batch' has no effect: the engine chooses how many tokens it computes at once",
        "option 'draft_num_predict' 16 is more than a step verifies: 15",
        "context: num_ctx of the request, lowered from 99999: the model was trained for 4096",
    ]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"temperature": "hot"}, 'option "temperature" must be of type float32'),
        ({"num_ctx": "8192"}, 'option "num_ctx" must be of type integer'),
        ({"seed": True}, 'option "seed" must be of type integer'),
        ({"stop": "x"}, 'option "stop" must be of type array'),
        ({"stop": [1]}, 'option "stop" must be of type an array of strings'),
        ({"use_mmap": 1}, 'option "use_mmap" must be of type boolean'),
        ({"temperature": -1}, "option temperature must be a number from 0 to 100"),
        ({"top_p": 1e999}, "is not a number"),
        ({"num_ctx": -5}, "num_ctx of the request must be a positive whole number"),
        ({"num_predict": 2**40}, "option num_predict must be"),
        ({"logprobs": 1}, "is the field 'logprobs'"),
        ({"num_thread": -3}, "option num_thread must be from 0"),
    ],
)
async def test_a_mistake_in_an_option_is_a_400_that_names_it(
    client: httpx2.AsyncClient, options: dict[str, Any], text: str
) -> None:
    """HTTP-11."""
    body = json.dumps({"model": "tiny", "prompt": "hi", "options": options})
    response = await client.post("/api/generate", content=body)
    assert response.status_code == 400, response.text
    assert text in response.json()["error"]


@pytest.mark.parametrize("name", ["", "nosuch", "../../etc/passwd", "a/b/c/d", "b@d"])
async def test_a_model_that_is_not_there(client: httpx2.AsyncClient, name: str) -> None:
    response = await ask(client, model=name)
    assert response.status_code == 404
    assert response.json()["error"] == f"model '{name}' not found"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"suffix": "x"}, "registry.ollama.ai/library/tiny:latest does not support insert"),
        ({"images": ["aGk="]}, "does not support vision"),
        ({"think": True}, '"tiny" does not support thinking'),
        ({"think": "loud"}, 'invalid think value: "loud"'),
        ({"template": "{{ if }}"}, "line 1"),
        ({"template": "{% if x %}{% endif %}"}, "a Go template, and this looks like Jinja"),
        ({"format": "xml"}, 'invalid format: "xml"'),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs must be between 0 and 20"),
        ({"keep_alive": "5"}, "keep_alive"),
        ({"keep_alive": "abc"}, "keep_alive"),
        ({"prompt": 5}, "field 'prompt' must be a text, not a number"),
        ({"options": []}, "field 'options' must be an object, not a list"),
        ({"stream": "yes"}, "field 'stream' must be true or false, not a text"),
    ],
)
async def test_what_cannot_be_had_is_a_400(client: httpx2.AsyncClient, fields: dict[str, Any], text: str) -> None:
    response = await ask(client, **fields)
    assert response.status_code == 400
    assert text in response.json()["error"]


async def test_thinking_off_is_no_error(client: httpx2.AsyncClient) -> None:
    assert (await ask(client, think=False)).status_code == 200


async def test_without_any_template_the_prompt_is_sent_as_it_is(client: httpx2.AsyncClient, bench: Bench) -> None:
    bench.add("plain", {"text": "x"}, metadata={"general.architecture": "fake"})
    reply = (await ask(client, model="plain")).json()
    assert bytes(reply["context"]) == b"hi" + b"x" * 4
    assert reply["warnings"] == ["the model has no chat template: the prompt was sent as it is"]
    assert (await ask(client, model="plain", system="x")).status_code == 400


async def test_constraints_and_logprobs_reach_the_engine(client: httpx2.AsyncClient, bench: Bench) -> None:
    bench.add(behaviour={"pieces": 1})
    reply = (await ask(client, format={"type": "object"}, logprobs=True, top_logprobs=1)).json()
    (entry,) = reply["logprobs"]
    assert (entry["token"], entry["logprob"], entry["bytes"]) == ("ab", -0.5, [97, 98])
    assert entry["top_logprobs"][0]["token"] == "ab"
    assert "logprobs" not in (await ask(client)).json()


async def test_a_failure_before_the_first_piece_has_its_own_status(client: httpx2.AsyncClient, bench: Bench) -> None:
    bench.add(behaviour={"load_error": "a tensor is missing"})
    response = await client.post("/api/generate", json={"model": "tiny", "prompt": "hi"})
    assert response.status_code == 500
    reply = response.json()
    assert reply.pop("request_id") == response.headers["x-request-id"]
    assert reply == {"error": "a tensor is missing", "hint": "take another one", "kind": "ModelError"}


async def test_a_failure_after_the_first_piece_is_the_last_line(client: httpx2.AsyncClient, bench: Bench) -> None:
    """HTTP-14."""
    bench.add(behaviour={"delay": 0.03, "crash_after": 2})
    response = await client.post("/api/generate", json={"model": "tiny", "prompt": "hi"})
    assert response.status_code == 200
    events = lines(response)
    assert [event.get("response") for event in events] == ["ab", "ab", None]
    assert "signal SIGKILL" in events[-1]["error"]
    assert "done" not in events[-1]
    assert str(bench.store.root) not in response.text
    # The next request finds a new runner.
    bench.add()
    assert (await ask(client)).status_code == 200


async def test_a_full_queue_is_503(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(parallel=1, max_queue=1)
    bench.add(behaviour={"delay": 0.2})
    async with bench.pool, asking(bench) as client:
        await ask(client)
        responses = await asyncio.gather(*(ask(client) for _ in range(6)))
    statuses = sorted(response.status_code for response in responses)
    assert statuses == [200, 200, 503, 503, 503, 503]
    refused = next(response for response in responses if response.status_code == 503)
    assert refused.json()["error"] == "server busy, please try again.  maximum pending requests exceeded"
    assert refused.headers["retry-after"] == "1"


async def test_a_burst_while_the_model_loads_is_served(client: httpx2.AsyncClient, bench: Bench) -> None:
    bench.add(behaviour={"load_delay": 0.2})
    responses = await asyncio.gather(*(ask(client) for _ in range(30)))
    assert {response.status_code for response in responses} == {200}
    assert bench.pool.metrics().counts.loads == 1


async def test_requests_while_the_model_comes_and_goes(client: httpx2.AsyncClient, bench: Bench) -> None:
    for _ in range(3):
        responses = await asyncio.gather(*(ask(client, keep_alive=0) for _ in range(8)))
        assert {response.status_code for response in responses} == {200}
        assert {response.json()["response"] for response in responses} == {"ab" * 4}
