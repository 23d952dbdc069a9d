"""How bodies come: compressed, too large, or a byte at a time."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import logging
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import pytest

from rsllm.server import encodings
from rsllm.server.routes import common
from tests.server.conftest import Bench, asking
from tests.server.test_connection import HEAD, impatient
from tests.server.test_serving import until

BODY = json.dumps({"model": "tiny", "prompt": "hi", "stream": False}).encode()


def zstd(data: bytes) -> bytes:
    try:
        from compression.zstd import compress
    except ImportError:
        from backports.zstd import compress
    return compress(data)


PACKED: dict[str, Callable[[bytes], bytes]] = {"zstd": zstd, "gzip": gzip.compress, "deflate": zlib.compress}


async def post(client: httpx2.AsyncClient, data: bytes, encoding: str, path: str = "/api/generate") -> httpx2.Response:
    return await client.post(path, content=data, headers={"content-encoding": encoding})


@pytest.mark.parametrize("encoding", PACKED)
async def test_a_compressed_body(client: httpx2.AsyncClient, encoding: str) -> None:
    assert (await post(client, PACKED[encoding](BODY), encoding.upper())).json()["response"] == "abababab"
    chat = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}).encode()
    reply = await post(client, PACKED[encoding](chat), encoding, "/v1/chat/completions")
    assert reply.json()["choices"][0]["message"]["content"] == "abababab"


@pytest.mark.parametrize("encoding", PACKED)
async def test_a_small_body_that_holds_a_huge_one(client: httpx2.AsyncClient, encoding: str) -> None:
    """CVE-2024-12886, the other way round."""
    bomb = PACKED[encoding](b'{"model": "' + bytes(encodings.INFLATED_BYTES * 4) + b'"}')
    assert len(bomb) < 1 << 19
    response = await post(client, bomb, encoding)
    assert response.status_code == 413
    assert "20,971,520 bytes once it is decompressed" in response.json()["error"]


@pytest.mark.parametrize("encoding", PACKED)
async def test_a_damaged_body(client: httpx2.AsyncClient, encoding: str) -> None:
    whole = PACKED[encoding](BODY)
    for data, reason in [
        (whole[:-5], "cut short"),
        (b"\x00" + whole, "is not what its encoding"),
        (whole + b"x", "is not what its encoding"),
        (BODY, "is not what its encoding"),
    ]:
        response = await post(client, data, encoding)
        assert response.status_code == 400 and reason in response.json()["error"], (data, response.text)
    assert (await post(client, b"", encoding)).status_code == 400


async def test_a_limit_that_is_smaller_holds_for_what_a_body_holds(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(environment={"RSLLM_MAX_BODY": "1000"})
    bench.add()
    async with asking(bench) as client:
        assert (await post(client, gzip.compress(BODY), "gzip")).status_code == 200
        assert (await post(client, gzip.compress(BODY + b" " * 1000), "gzip")).status_code == 413
        assert (await post(client, bytes(1001), "gzip")).status_code == 413
    await bench.pool.close()


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize("encoding", ["br", "gzip, gzip", "nonsense"])
async def test_an_encoding_that_is_not_read(client: httpx2.AsyncClient, path: str, encoding: str) -> None:
    response = await post(client, b"\x0b\x02\x80", encoding, path)
    assert response.status_code == 415
    assert f"bodies in the encoding '{encoding}' are not read" in response.text


async def trickle(port: int, head: bytes, body: bytes, pause: float) -> bytes:
    """All that comes back for a body that is sent a byte at a time, and does not end where the server's patience does.
    Where a byte comes behind the reply, the reply is lost on its way."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    reply = bytearray()

    async def read() -> None:
        with contextlib.suppress(ConnectionError):
            while part := await reader.read(1000):
                reply.extend(part)

    writer.write(head)
    reading = asyncio.create_task(read())
    for byte in body:
        if reading.done():
            break
        writer.write(bytes([byte]))
        await asyncio.sleep(pause)
    else:
        assert reply or len(body) < 500, "it could be sent to its end"
    try:
        await asyncio.wait_for(reading, 10)
        return bytes(reply)
    finally:
        writer.close()


async def test_a_body_that_trickles_is_ended_in_time(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(common, "BODY_SECONDS", 1.0)
    async with impatient(make_bench) as (bench, port, server):
        with caplog.at_level(logging.INFO):
            reply = await trickle(port, HEAD % 10_000, b" " * 1000, 0.05)
        assert "POST /api/generate 408" in caplog.text, "it got on all the time, and still had to end"
        assert not reply or b"did not come to its end within 1 s" in reply
        await until(lambda: not bench.services.active and not server.server_state.connections)
        monkeypatch.setattr(common, "BODY_SECONDS", 60.0)  # bytes take their time where the machine is busy
        assert (await trickle(port, HEAD % len(BODY), BODY, 0.001)).startswith(b"HTTP/1.1 200 ")


async def test_the_time_of_a_request_holds_for_its_body(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(environment={"RSLLM_REQUEST_TIMEOUT": "200ms"})
    bench.add()

    async def slow() -> AsyncIterator[bytes]:
        for byte in BODY:
            yield bytes([byte])
            await asyncio.sleep(0.02)

    async with asking(bench) as client:
        response = await client.post("/api/generate", content=slow())
        assert (response.status_code, response.json()["error"]) == (
            408,
            "the body did not come to its end within 0.2 s",
        )
    await bench.pool.close()


async def test_an_upload_that_trickles_is_given_up(
    make_bench: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    digest = "sha256:" + "0" * 64
    head = f"POST /api/blobs/{digest} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n".encode()
    async with impatient(make_bench) as (bench, port, _):
        with caplog.at_level(logging.INFO):
            reply = await trickle(port, head, bytes(1000), 0.05)
            await until(lambda: " 408" in caplog.text)
        assert not reply or b"less than 1,024 bytes a second" in reply
        await until(lambda: not bench.services.active)
        assert not list((bench.store.root / "blobs").glob("*partial*"))


async def test_an_upload_at_a_fair_pace_may_take_its_time(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    import hashlib

    monkeypatch.setattr(common, "BODY_SECONDS", 0.5)
    data = bytes(40_000)
    bench = make_bench(environment={"RSLLM_CLIENT_TIMEOUT": "1"})

    async def pieces() -> Any:
        for at in range(0, len(data), 1000):
            yield data[at : at + 1000]
            await asyncio.sleep(0.05)

    async with asking(bench) as client:
        path = f"/api/blobs/sha256:{hashlib.sha256(data).hexdigest()}"
        assert (await client.post(path, content=pieces())).status_code == 201
    await bench.pool.close()
