"""The server on a real socket: clients that go away, slow ones, the end in order."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from rsllm.server.main import Server, server_settings
from tests.server.conftest import Bench

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(60)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.asynccontextmanager
async def serving(bench: Bench, *, idle_seconds: float | None = None) -> AsyncIterator[tuple[Server, str]]:
    """The application on a port of its own; the server, and its address."""
    settings = server_settings(bench.app, "127.0.0.1", free_port(), drain_seconds=5)
    server = Server(settings, bench.services, idle_seconds)
    running = asyncio.create_task(server._serve())
    await until(lambda: server.started or running.done())
    try:
        yield server, f"http://127.0.0.1:{settings.port}"
    finally:
        server.should_exit = True
        await running


async def until(true: Callable[[], Any]) -> None:
    for _ in range(500):
        if true():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come true")


def running(bench: Bench) -> int:
    return bench.pool.metrics().running


def waiting(bench: Bench) -> int:
    return bench.pool.metrics().waiting


@pytest.fixture
async def endless(make_bench: Callable[..., Bench]) -> AsyncIterator[tuple[Bench, str]]:
    """A model that goes on for ever, one request at a time."""
    bench = make_bench(parallel=1)
    bench.add(behaviour={"pieces": None, "delay": 0.02})
    async with serving(bench) as (_, url):
        yield bench, url


BODY = {"model": "tiny", "prompt": "hi"}


async def test_lines_come_as_they_are_made(endless: tuple[Bench, str]) -> None:
    bench, url = endless
    async with httpx2.AsyncClient() as client, client.stream("POST", url + "/api/generate", json=BODY) as response:
        assert response.headers["transfer-encoding"] == "chunked"
        async for line in response.aiter_lines():
            assert json.loads(line)["response"]
            assert running(bench) == 1
            break


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_ends_its_request(endless: tuple[Bench, str], stream: bool) -> None:
    bench, url = endless
    async with httpx2.AsyncClient() as client:
        asking = asyncio.create_task(client.post(url + "/api/generate", json={**BODY, "stream": stream}))
        await until(lambda: running(bench) == 1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    await until(lambda: running(bench) == 0)
    assert bench.pool.status()[0].requests == 0  # and the model is free for others


async def test_a_client_that_goes_while_it_waits_never_starts(endless: tuple[Bench, str]) -> None:
    bench, url = endless
    async with httpx2.AsyncClient() as client:
        first = asyncio.create_task(client.post(url + "/api/generate", json=BODY))
        await until(lambda: running(bench) == 1)
        second = asyncio.create_task(client.post(url + "/api/generate", json=BODY))
        await until(lambda: waiting(bench) == 1)
        second.cancel()
        await until(lambda: waiting(bench) == 0)
        assert running(bench) == 1
        first.cancel()
        await asyncio.gather(first, second, return_exceptions=True)


async def test_a_client_that_goes_while_the_model_loads(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    bench.add(behaviour={"load_delay": 30})
    async with serving(bench) as (_, url), httpx2.AsyncClient() as client:
        asking = asyncio.create_task(client.post(url + "/api/generate", json=BODY))
        await until(bench.pool.status)
        asking.cancel()
        await until(lambda: not bench.pool.status())


async def test_many_in_a_row_on_one_connection(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    bench.add()
    async with serving(bench) as (_, url), httpx2.AsyncClient() as client:
        for _ in range(20):
            response = await client.post(url + "/api/generate", json=BODY)
            assert json.loads(response.text.splitlines()[-1])["done"]


async def test_requests_that_run_may_finish_at_the_end(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    bench.add(behaviour={"delay": 0.1, "pieces": 8})
    async with httpx2.AsyncClient() as client:
        async with serving(bench) as (server, url):
            asking = asyncio.create_task(client.post(url + "/api/generate", json=BODY))
            await until(lambda: running(bench) == 1)
            server.should_exit = True
            response = await asking
        assert json.loads(response.text.splitlines()[-1])["done_reason"] == "stop"
    assert not bench.pool.status()


async def test_an_idle_server_ends_by_itself_but_not_with_a_model(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    bench.add()
    async with serving(bench, idle_seconds=0.2) as (server, url), httpx2.AsyncClient() as client:
        await client.post(url + "/api/generate", json={"model": "tiny", "keep_alive": -1})
        await asyncio.sleep(0.5)
        assert not server.should_exit
        await client.post(url + "/api/generate", json={"model": "tiny", "keep_alive": 0})
        await until(lambda: server.should_exit)
        assert not bench.pool.status()


def test_the_command_listens_logs_and_ends_with_a_signal(tmp_path: Path) -> None:
    port = free_port()
    log = tmp_path / "log" / "server.log"
    environment = {**os.environ, "HOME": str(tmp_path), "OLLAMA_HOST": f"127.0.0.1:{port}"}
    process = subprocess.Popen(
        [sys.executable, "-m", "rsllm", "serve", "--log-file", str(log)],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=environment,
    )
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                assert httpx2.get(f"http://127.0.0.1:{port}/").text == "Ollama is running"
                break
            except httpx2.ConnectError:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
        again = subprocess.run(
            [sys.executable, "-m", "rsllm", "serve"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=environment,
            timeout=30,
        )
        assert again.returncode == 1
        assert "it cannot listen on" in again.stderr
        assert "Traceback" not in again.stderr
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 0
        assert errors == b""
    finally:
        process.kill()
        process.wait()
    assert f"listens on http://127.0.0.1:{port}" in log.read_text()
