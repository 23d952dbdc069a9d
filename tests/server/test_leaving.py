"""Clients that go away in the middle of what they asked for, whatever they asked for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from rsllm.registry.pull import pull
from tests.server.conftest import METADATA, Bench
from tests.server.test_serving import running, serving, until, waiting
from tests.server.test_thinking import THINKING
from tests.server.test_tools import HERMES, TOOLS
from tests.support import hostile_pulls
from tests.support.hostile_pulls import LAYERS, name_of, weights_only
from tests.support.hostile_registry import Exchange, HostileRegistry
from tests.support.registry import quick

pytestmark = pytest.mark.timeout(60)
registry = hostile_pulls.registry

HI = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": HI}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/messages", {"messages": HI, "max_tokens": 10**6}),
        ("/v1/responses", {"input": "hi"}),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_in_other_protocols(
    make_bench: Callable[..., Bench], path: str, fields: dict[str, Any], stream: bool
) -> None:
    bench = make_bench(parallel=1)
    bench.add(behaviour={"pieces": None, "delay": 0.02})
    body = {"model": "tiny", "stream": stream, **fields}
    async with serving(bench) as (_, url), httpx2.AsyncClient() as client:
        first = asyncio.create_task(client.post(url + path, json=body))
        await until(lambda: running(bench) == 1)
        second = asyncio.create_task(client.post(url + path, json=body))
        await until(lambda: waiting(bench) == 1)
        second.cancel()
        await until(lambda: waiting(bench) == 0)
        first.cancel()
        await until(lambda: running(bench) == 0)
        await asyncio.gather(first, second, return_exceptions=True)
        await until(lambda: bench.pool.status()[0].requests == 0)


@pytest.mark.parametrize(
    "behaviour",
    [
        {"says": ["<think>", *["x"] * 1000]},
        {"says": ["<think>", "</think>"], "says_in_schema": ["{"] * 1000},
        {"says": ["<tool_call>", *["x"] * 1000]},
    ],
    ids=["thoughts", "constraint", "call"],
)
async def test_while_nothing_or_only_thoughts_are_shown(
    make_bench: Callable[..., Bench], behaviour: dict[str, Any]
) -> None:
    bench = make_bench()
    template = HERMES if behaviour["says"][0] == "<tool_call>" else THINKING
    metadata = {**METADATA, "tokenizer.chat_template": template}
    bench.add(behaviour={"delay": 0.02, **behaviour}, metadata=metadata)
    tools = {"tools": TOOLS} if template == HERMES else {"format": {"type": "object"}}
    body = {"model": "tiny", "messages": HI, **tools}
    async with serving(bench) as (_, url), httpx2.AsyncClient() as client:
        asking = asyncio.create_task(client.post(url + "/api/chat", json=body))
        await until(lambda: running(bench) == 1)
        await asyncio.sleep(0.2)
        assert running(bench) == 1
        asking.cancel()
        await until(lambda: running(bench) == 0)
        await asyncio.gather(asking, return_exceptions=True)


async def test_a_pull_goes_on_for_who_stays(
    make_bench: Callable[..., Bench], registry: HostileRegistry, tmp_path: Path
) -> None:
    registry.add("library/m", "latest", LAYERS)
    asked, may_go_on = threading.Event(), threading.Event()

    def wait(exchange: Exchange) -> Any:
        asked.set()
        may_go_on.wait(20)
        return False

    registry.tricks["blob"] = weights_only(wait)
    bench = make_bench()
    bench.services.pull = lambda store, name, **asked: pull(store, name, insecure=True, settings=quick(tmp_path))
    body = {"model": name_of(registry), "insecure": True}
    async with serving(bench) as (_, url), httpx2.AsyncClient(timeout=30) as client:
        first = asyncio.create_task(client.post(url + "/api/pull", json=body))
        await until(asked.is_set)
        second = asyncio.create_task(client.post(url + "/api/pull", json=body))
        await asyncio.sleep(0.3)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        may_go_on.set()
        response = await second
        assert '"status":"success"' in response.text, response.text
        fetched = [request for request in registry.asked("blob") if request.path.endswith(hostile_pulls.WEIGHTS_HEX)]
        ranges = [request.headers["Range"] for request in fetched]
        assert len(ranges) == len(set(ranges)), "one download for both"
        assert (await client.get(url + "/api/tags")).json()["models"]
