"""Signs of life: whether the process lives, and whether it takes requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import httpx2
import pytest

from tests.server.conftest import Bench, asking
from tests.server.test_serving import running, serving, until

BODY = {"model": "tiny", "prompt": "hi", "stream": False}


async def test_alive_and_ready(client: httpx2.AsyncClient) -> None:
    alive, ready = await client.get("/healthz"), await client.get("/readyz")
    assert (alive.status_code, alive.json()) == (200, {"status": "ok"})
    assert (ready.status_code, ready.json()) == (200, {"status": "ready"})
    assert (await client.head("/healthz")).status_code == 200


async def test_probes_need_no_key(make_bench: Callable[..., Bench]) -> None:
    async with asking(make_bench(environment={"RSLLM_API_KEY": "secret"})) as client:
        for path in ("/healthz", "/readyz"):
            assert (await client.get(path)).status_code == 200


async def test_not_ready_once_the_end_has_begun(client: httpx2.AsyncClient, bench: Bench) -> None:
    bench.services.draining = True
    response = await client.get("/readyz")
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert response.json()["reason"] == "the server is shutting down"
    assert (await client.get("/healthz")).status_code == 200
    bench.services.draining = False
    await bench.pool.close()
    assert (await client.get("/readyz")).json()["reason"] == "the server has shut down"


async def test_not_ready_while_the_queue_is_full(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(parallel=1, max_queue=1)
    bench.add(behaviour={"pieces": None, "delay": 0.02})
    async with bench.pool, asking(bench) as client:
        tasks = [asyncio.create_task(client.post("/api/generate", json=BODY)) for _ in range(2)]
        await until(lambda: bench.pool.metrics().waiting == 1 and running(bench) == 1)
        response = await client.get("/readyz")
        assert (response.status_code, response.json()["reason"]) == (503, "as many requests wait as may")
        for task in tasks:
            task.cancel()
        await until(lambda: running(bench) == 0)
        assert (await client.get("/readyz")).status_code == 200


async def test_a_signal_makes_the_server_unready_while_it_finishes_what_runs(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    bench.add(behaviour={"delay": 0.1, "pieces": 8})
    async with httpx2.AsyncClient() as client, serving(bench) as (server, url):
        asking_for_text = asyncio.create_task(client.post(url + "/api/generate", json=BODY))
        await until(lambda: running(bench) == 1)
        server.should_exit = True
        await until(lambda: bench.services.draining)
        assert (await asking_for_text).json()["done_reason"] == "stop"


async def test_probes_neither_keep_an_idle_server_up_nor_fill_its_log(
    client: httpx2.AsyncClient, bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    before = bench.services.last_request
    with caplog.at_level(logging.INFO):
        for path in ("/healthz", "/readyz", "/metrics"):
            await client.get(path)
    assert bench.services.last_request == before
    assert not [entry for entry in caplog.records if entry.name.startswith("rsllm")]
    await client.get("/api/version")
    assert bench.services.last_request > before
