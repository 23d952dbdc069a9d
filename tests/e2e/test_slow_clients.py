"""Clients that are slow or leave, with a real engine behind the server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from rsllm.config import Config
from rsllm.runner.pool import RunnerPool
from rsllm.runner.scheduler import Settings
from rsllm.server.app import create_app
from rsllm.server.main import Server, server_settings
from rsllm.server.models import Models
from rsllm.server.service import Services
from rsllm.store.manifest import Layer, Manifest, MediaType
from rsllm.store.name import ModelName
from rsllm.store.store import Store
from tests.server.test_serving import free_port, until
from tests.support import tiny_models

pytestmark = pytest.mark.timeout(120)

LONG = {"num_predict": 6000, "num_ctx": 8192, "temperature": 0, "ignore_eos": True}


@contextlib.asynccontextmanager
async def serving(folder: Path, *, parallel: int) -> AsyncIterator[tuple[RunnerPool, int]]:
    """A server with one tiny model; its pool and its port."""
    shape = tiny_models.replace(tiny_models.SHAPES["llama"], context_len=8192)
    store = Store(folder / "models")
    weights = Layer(MediaType.MODEL, *store.add_blob(tiny_models.write(folder / "tiny.gguf", shape)))
    config = Layer(MediaType.CONFIG, *store.add_blob([b'{"model_format":"gguf"}']))
    store.write_manifest(ModelName.parse("tiny"), Manifest.build(config, [weights]).raw)
    environment = {"HOME": str(folder), "OLLAMA_MODELS": str(folder / "models")}
    pool = RunnerPool(Settings(parallel=parallel))
    services = Services(Config.from_environment(environment), Models(store), pool)
    server = Server(server_settings(create_app(services), "127.0.0.1", port := free_port(), drain_seconds=5), services)
    running = asyncio.create_task(server._serve())
    await until(lambda: server.started or running.done())
    try:
        yield pool, port
    finally:
        server.should_exit = True
        await running


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "the", "raw": True, **fields}


async def test_who_leaves_while_it_waits_is_never_computed(tmp_path: Path) -> None:
    """CON-03 (c), with an engine."""
    async with (
        serving(tmp_path, parallel=1) as (pool, port),
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        await client.post("/api/generate", json={"model": "tiny", "options": LONG})
        first = asyncio.create_task(client.post("/api/generate", json=body(options={**LONG, "num_predict": 8000})))
        await until(lambda: pool.metrics().running == 1)
        others = [asyncio.create_task(client.post("/api/generate", json=body(prompt="never" * 50))) for _ in range(5)]
        await until(lambda: pool.metrics().waiting == 5)
        for other in others[:4]:
            other.cancel()
        await until(lambda: pool.metrics().waiting == 1)
        assert pool.metrics().counts.abandoned == 4
        first.cancel()
        reply = await others[4]
        assert json.loads(reply.text.splitlines()[-1])["done"]
        await until(lambda: pool.metrics().running == 0 and not pool.status()[0].requests)
        text = (await client.get("/metrics")).text
        # The prompts of those who left were not read: of five, one was.
        [counted] = [line for line in text.splitlines() if line.startswith("rsllm_prompt_tokens_total")]
        assert float(counted.split()[1]) < 2 * len("never" * 50)
        await asyncio.gather(first, *others, return_exceptions=True)


async def test_a_slow_reader_gets_the_same_text_and_others_do_not_wait(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, parallel=4) as (pool, port),
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        asked = json.dumps(body(options=LONG, logprobs=True, top_logprobs=20)).encode()
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
            slow.connect(("127.0.0.1", port))
            head = (
                f"POST /api/generate HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(asked)}"
            )
            slow.sendall(head.encode() + b"\r\n\r\n" + asked)
            await until(lambda: pool.metrics().running == 1)
            for _ in range(20):
                assert await asyncio.to_thread(slow.recv, 100)
                short = await client.post("/api/generate", json=body(stream=False, options={**LONG, "num_predict": 5}))
                assert short.json()["eval_count"] == 5
            assert pool.metrics().running == 1, "who is slow keeps its place"
            whole = await client.post("/api/generate", json=body(stream=False, options=LONG))
            reply = await asyncio.to_thread(rest_of, slow)
        events = [
            json.loads(line) for line in reply.split(b"\n") if line.startswith(b'{"model"') and line.endswith(b"}")
        ]
        text = "".join(event["response"] for event in events)
        assert events[-1]["done"] and events[-1]["eval_count"] == LONG["num_predict"]
        assert len(text) > 1000 and whole.json()["response"].endswith(text)
        await until(lambda: pool.metrics().running == 0)


def rest_of(client: socket.socket) -> bytes:
    """All that comes to the end, without the lengths of its chunks."""
    data = b""
    while part := client.recv(1 << 20):
        data += part
    return data.replace(b"\r\n", b"\n")
