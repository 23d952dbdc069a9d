"""Clients that stop in the middle: what they hold is given back, and those who are merely slow are let be."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.server.conftest import Bench
from tests.server.test_serving import running, serving, until

pytestmark = pytest.mark.timeout(60)
BODY = json.dumps({"model": "tiny", "prompt": "hi", "stream": False}).encode()
HEAD = b"POST /api/generate HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"


@contextlib.asynccontextmanager
async def impatient(make_bench: Callable[..., Bench], behaviour: Any = None) -> AsyncIterator[tuple[Bench, int, Any]]:
    """A server that lets its clients stall for a second: the bench, its port, and the server."""
    bench = make_bench(environment={"RSLLM_CLIENT_TIMEOUT": "1"})
    bench.add(behaviour=behaviour)
    async with serving(bench) as (server, url):
        yield bench, int(url.rpartition(":")[2]), server


async def reply_to(port: int, *parts: bytes, pause: float = 0.0) -> bytes:
    """All that comes back for what is sent, until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for part in parts:
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(pause)
    reply = await reader.read()
    writer.close()
    return reply


@pytest.mark.parametrize(
    ("sent", "begins"),
    [
        (b"", b""),
        (b"POST /api/gen", b"HTTP/1.1 408 "),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\n", b"HTTP/1.1 408 "),
        (HEAD % 1000, b"HTTP/1.1 408 "),
        (HEAD % 1000 + BODY, b"HTTP/1.1 408 "),
        (b"POST /api/blobs/sha256:" + b"0" * 64 + b" HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\nab",
         b"HTTP/1.1 408 "),
    ],
)  # fmt: skip
async def test_half_a_request(make_bench: Callable[..., Bench], sent: bytes, begins: bytes) -> None:
    async with impatient(make_bench) as (bench, port, server):
        reply = await reply_to(port, sent)
        assert reply.startswith(begins) and bool(reply) == bool(begins)
        assert not reply or json.loads(reply.partition(b"\r\n\r\n")[2])["error"]
        await until(lambda: not bench.services.active and not server.server_state.connections)
        assert not list((bench.store.root / "blobs").glob("*partial*"))


async def test_a_client_that_does_not_read_loses_its_place(make_bench: Callable[..., Bench]) -> None:
    behaviour = {"pieces": None, "text": "x" * 20_000, "context": 100_000_000}
    async with impatient(make_bench, behaviour) as (bench, port, _):
        with socket.create_connection(("127.0.0.1", port)) as client:
            body = BODY.replace(b"false", b"true")
            client.sendall(HEAD % len(body) + body)
            await until(lambda: running(bench) == 1)
            await until(lambda: running(bench) == 0 and not bench.services.active)
        (status,) = bench.pool.status()
        assert (status.requests, status.running) == (0, 0)


async def test_a_body_that_comes_slowly_is_waited_for(make_bench: Callable[..., Bench]) -> None:
    async with impatient(make_bench) as (_, port, _server):
        step = len(BODY) // 6 + 1
        parts = [BODY[i : i + step] for i in range(0, len(BODY), step)]
        reply = await reply_to(port, HEAD % len(BODY), *parts, pause=0.4)
        assert reply.startswith(b"HTTP/1.1 200 ")


async def test_a_reply_that_takes_long_is_no_fault_of_the_client(make_bench: Callable[..., Bench]) -> None:
    async with impatient(make_bench, {"load_delay": 3}) as (_, port, _server):
        assert (await reply_to(port, HEAD % len(BODY) + BODY)).startswith(b"HTTP/1.1 200 ")


async def test_a_connection_may_wait_between_requests(make_bench: Callable[..., Bench]) -> None:
    asked = b"GET /api/version HTTP/1.1\r\nhost: localhost\r\n\r\n"
    async with impatient(make_bench) as (_, port, _server):
        reply = await reply_to(port, asked, asked, pause=0.5)
        assert reply.count(b"HTTP/1.1 200 ") == 2, "then it was idle, and closed without a word"
        assert b"408" not in reply
