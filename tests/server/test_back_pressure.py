"""Clients that read slowly: the server keeps little for them, and others do not notice."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from pathlib import Path

import httpx2
import pytest

from tests.support.fake_server import fake_server

pytestmark = pytest.mark.timeout(120)

SLOW = 8
# So much would be there if all that can be made in the time were kept: some hundred times this.
KEPT_BYTES = 40 << 20
MODELS = {
    "flood": {"pieces": None, "text": "x" * 20_000, "context": 10**8},
    "tiny": {"pieces": 4},
}


def resident(process: int) -> int:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * 4096


def ask_for_a_flood(port: int, path: str) -> socket.socket:
    body = json.dumps({"model": "flood", "prompt": "x", "messages": [{"role": "user", "content": "x"}],
                       "stream": True, "max_tokens": 10**6, "input": "x"}).encode()  # fmt: skip
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    client.connect(("127.0.0.1", port))
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    client.sendall(head.encode() + body)
    return client


async def test_memory_stays_where_it_is_and_others_are_answered(tmp_path: Path) -> None:
    paths = ["/api/generate", "/api/chat", "/v1/chat/completions", "/v1/messages"]
    with contextlib.ExitStack() as stack:
        process, port = stack.enter_context(fake_server(tmp_path, MODELS, parallel=SLOW + 2))
        url = f"http://127.0.0.1:{port}"
        async with httpx2.AsyncClient(base_url=url, timeout=30) as client:
            for model in MODELS:
                await client.post("/api/generate", json={"model": model})
            before = resident(process.pid)
            slow = [stack.enter_context(ask_for_a_flood(port, paths[i % len(paths)])) for i in range(SLOW)]
            runners = [model["pid"] for model in (await client.get("/api/ps")).json()["models"]]
            of_runners = sum(map(resident, runners))
            for round in range(40):
                for reader in slow:  # a little now and then, so that none is given up
                    reader.settimeout(5)
                    assert await asyncio.to_thread(reader.recv, 1000)
                for model in ("tiny", "flood"):
                    body = {"model": model, "prompt": "x", "stream": False, "options": {"num_predict": 2}}
                    reply = await client.post("/api/generate", json=body)
                    assert reply.status_code == 200, (round, reply.text)
                await asyncio.sleep(0.05)
            assert resident(process.pid) - before < KEPT_BYTES
            assert sum(map(resident, runners)) - of_runners < KEPT_BYTES
            # Who reads on at last finds no gap.
            assert await asyncio.to_thread(whole_lines, slow[0]) > 10
            metrics = (await client.get("/metrics")).text
            assert f'rsllm_model_requests_running{{model="flood:latest"}} {SLOW}.0' in metrics


def whole_lines(client: socket.socket) -> int:
    """How many lines of a stream are as they should be; raises where one is not. What was read before is left out."""
    data = b""
    while len(data) < 5_000_000:
        data += client.recv(1 << 20)
    count = 0
    position = data.index(b"\r\n", data.index(b'"done":false')) + 2
    while True:
        size, newline, rest = data[position : position + 20].partition(b"\r\n")
        if not newline or not rest:
            return count
        begin = position + len(size) + 2
        end = begin + int(size, 16)
        if end + 2 > len(data):
            return count
        event = json.loads(data[begin:end])
        assert set(event["response"]) <= {"x", "."} and len(event["response"]) >= 20_000
        position = end + 2
        count += 1
