"""Requests that want contexts of different lengths of one model that is loaded."""

from __future__ import annotations

from typing import Any

import httpx2

from tests.server.conftest import Bench


async def loaded(client: httpx2.AsyncClient, *warnings: str, **options: Any) -> tuple[int, int]:
    """Ask with these options; the process that answered, and its context."""
    body = {"model": "tiny", "prompt": "hi", "stream": False, "options": options}
    reply = await client.post("/api/generate", json=body)
    assert reply.status_code == 200
    assert reply.json().get("warnings", []) == list(warnings)
    (model,) = (await client.get("/api/ps")).json()["models"]
    return model["pid"], model["context_length"]


async def test_a_smaller_context_than_is_there_loads_nothing_anew(client: httpx2.AsyncClient, bench: Bench) -> None:
    pid, context = await loaded(client, num_ctx=2048)
    assert context == 2048
    for number in (1024, 512):
        said = f"num_ctx {number}: the model is loaded with a context of 2048 tokens, which is used"
        assert await loaded(client, said, num_ctx=number) == (pid, 2048)
    assert await loaded(client, num_ctx=2048, temperature=0) == (pid, 2048)
    larger, context = await loaded(client, num_ctx=4096)
    assert (larger != pid, context) == (True, 4096)
    said = "num_ctx 2048: the model is loaded with a context of 4096 tokens, which is used"
    assert await loaded(client, said, num_ctx=2048) == (larger, 4096)
    assert await loaded(client) == (larger, 4096)
