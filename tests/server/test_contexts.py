"""Requests that want contexts of different lengths of one model that is loaded."""

from __future__ import annotations

from typing import Any

import httpx2

from tests.server.conftest import Bench


async def loaded(client: httpx2.AsyncClient, **options: Any) -> tuple[int, int]:
    """Ask with these options; the process that answered, and its context."""
    body = {"model": "tiny", "prompt": "hi", "stream": False, "options": options}
    assert (await client.post("/api/generate", json=body)).status_code == 200
    (model,) = (await client.get("/api/ps")).json()["models"]
    return model["pid"], model["context_length"]


async def test_a_smaller_context_than_is_there_loads_nothing_anew(client: httpx2.AsyncClient, bench: Bench) -> None:
    pid, context = await loaded(client, num_ctx=2048)
    assert context == 2048
    for options in ({"num_ctx": 1024}, {"num_ctx": 512, "temperature": 0}, {"num_ctx": 2048}):
        assert await loaded(client, **options) == (pid, 2048)
    larger, context = await loaded(client, num_ctx=4096)
    assert (larger != pid, context) == (True, 4096)
    assert await loaded(client, num_ctx=2048) == (larger, 4096)
    assert await loaded(client) == (larger, 4096)
