"""Who may ask, how bodies are read, and the small routes."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from rsllm.address import Address
from rsllm.config import Config
from rsllm.errors import OptionError, QueueFullError
from rsllm.server.access import Rules
from rsllm.server.body import Body
from rsllm.server.errors import STATUSES, ApiError, answer
from rsllm.server.main import check_address
from rsllm.server.streaming import encode
from tests.server.conftest import Bench, asking

ORIGIN = "http://evil.example"


async def test_the_sign_of_life(client: httpx2.AsyncClient) -> None:
    response = await client.get("/")
    assert (response.status_code, response.text) == (200, "Ollama is running")
    assert (await client.head("/")).text == ""
    version = (await client.get("/api/version")).json()
    assert version["version"] >= "0.33"


async def test_paths_and_methods_that_are_not_there(client: httpx2.AsyncClient) -> None:
    response = await client.get("/api/nosuch")
    assert (response.status_code, response.text) == (404, "404 page not found")
    response = await client.get("/api/generate")
    assert (response.status_code, response.text) == (405, "405 method not allowed")
    assert (await client.get("/api/tags/")).status_code == 307


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost:11434", True),
        ("127.0.0.1:11434", True),
        ("[::1]:11434", True),
        ("192.168.1.5:11434", True),
        ("0.0.0.0", True),
        ("host.docker.internal:11434", True),
        ("box.local", True),
        ("app.localhost", True),
        ("", True),
        ("attacker.example:11434", False),
        ("localhost.attacker.example", False),
        ("8.8.8.8", False),
        ("127.0.0.1.attacker.example", False),
    ],
)
async def test_only_names_of_this_machine_reach_a_server_on_it(
    client: httpx2.AsyncClient, host: str, allowed: bool
) -> None:
    """CVE-2024-28224."""
    response = await client.get("/api/tags", headers={"host": host})
    assert response.status_code == (200 if allowed else 403)
    assert allowed or "is not a name of this machine" in response.json()["error"]


def test_a_public_server_checks_no_names() -> None:
    assert Rules(check_host=False).allows_host("anything.example")


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://localhost", True),
        ("https://localhost:3000", True),
        ("http://127.0.0.1:8080", True),
        ("app://obsidian.md", True),
        ("vscode-webview://abc", True),
        ("tauri://localhost", True),
        (ORIGIN, False),
        ("chrome-extension://abc", False),
        ("http://localhost.evil.example", False),
        ("null", False),
    ],
)
async def test_origins(client: httpx2.AsyncClient, origin: str, allowed: bool) -> None:
    """HTTP-18, CVE-2024-28224."""
    response = await client.post("/api/show", json={"model": "tiny"}, headers={"origin": origin})
    assert (response.status_code != 403) is allowed
    if allowed:
        assert response.headers["access-control-allow-origin"] == origin
        assert "Origin" in response.headers["vary"]
    else:
        assert "access-control-allow-origin" not in response.headers
        assert "OLLAMA_ORIGINS" in response.json()["hint"]


async def test_preflight(client: httpx2.AsyncClient) -> None:
    """HTTP-18."""
    asked = {"origin": "http://localhost:3000", "access-control-request-method": "POST"}
    response = await client.options("/api/chat", headers=asked)
    assert response.status_code == 204
    assert "POST" in response.headers["access-control-allow-methods"]
    assert "Authorization" in response.headers["access-control-allow-headers"]
    assert response.headers["access-control-max-age"] == "43200"
    assert (await client.options("/api/chat", headers={**asked, "origin": ORIGIN})).status_code == 403


async def test_origins_of_the_environment(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(environment={"OLLAMA_ORIGINS": "chrome-extension://*, http://one.example"})
    async with asking(bench) as client:
        for origin, status in (("chrome-extension://x", 200), ("http://one.example", 200), (ORIGIN, 403)):
            assert (await client.get("/api/tags", headers={"origin": origin})).status_code == status
    everybody = make_bench(environment={"OLLAMA_ORIGINS": "*"})
    async with asking(everybody) as client:
        response = await client.get("/api/tags", headers={"origin": ORIGIN})
        assert (response.status_code, response.headers["access-control-allow-origin"]) == (200, "*")


async def test_a_page_of_the_server_itself_needs_no_permission(client: httpx2.AsyncClient) -> None:
    headers = {"origin": "http://box.local:11434", "host": "box.local:11434"}
    response = await client.get("/api/tags", headers=headers)
    assert response.status_code == 200
    assert "access-control-allow-origin" not in response.headers


async def test_the_key(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(environment={"RSLLM_API_KEY": "secret"})
    async with asking(bench) as client:
        assert (await client.get("/")).status_code == 200
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}, {"x-api-key": ""}):
            response = await client.get("/api/tags", headers=headers)
            assert response.status_code == 401
            assert "RSLLM_API_KEY" in response.json()["hint"]
        for headers in (
            {"authorization": "Bearer secret"},
            {"authorization": "bearer secret"},
            {"x-api-key": "secret"},
        ):
            assert (await client.get("/api/tags", headers=headers)).status_code == 200


async def test_the_key_of_other_protocols(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(environment={"RSLLM_API_KEY": "secret"})
    async with asking(bench) as client:
        said = (await client.post("/v1/chat/completions", json={})).json()["error"]
        assert said["message"] == "the API key is missing or wrong" and said["hint"]
        told = (await client.post("/v1/messages", json={})).json()
        assert (told["type"], told["error"]["type"]) == ("error", "authentication_error")
    await bench.pool.close()


def test_a_public_address_needs_a_key_or_permission() -> None:
    """CVE-2025-63389."""
    home = {"HOME": "/h"}
    public = Address.parse("0.0.0.0")
    with pytest.raises(OptionError, match="no API key is set"):
        check_address(public, Config.from_environment(home))
    check_address(public, Config.from_environment(home), allow_public=True)
    check_address(public, Config.from_environment({**home, "RSLLM_ALLOW_PUBLIC": "1"}))
    check_address(public, Config.from_environment({**home, "RSLLM_API_KEY": "k"}))
    check_address(Address.parse("[::1]:5"), Config.from_environment(home))
    with pytest.raises(OptionError, match="speaks http only"):
        check_address(Address.parse("https://localhost"), Config.from_environment(home))


async def test_requests_have_ids_and_are_logged_without_what_they_say(
    client: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        body = {"model": "tiny", "prompt": "a secret plan", "stream": False}
        response = await client.post("/api/generate", json=body, headers={"x-request-id": "mine-1"})
        odd = await client.get("/", headers={"x-request-id": "no\tid"})
    assert response.headers["x-request-id"] == "mine-1"
    assert len(odd.headers["x-request-id"]) == 12
    assert "POST /api/generate 200" in caplog.text
    assert "secret plan" not in caplog.text
    assert "abab" not in caplog.text


# Bodies.


async def test_the_content_type_does_not_matter(client: httpx2.AsyncClient) -> None:
    body = b'{"MODEL": "tiny", "Prompt": "hi", "stream": false, "x": 1} trailing'
    headers = {"content-type": "application/x-www-form-urlencoded"}
    response = await client.post("/api/generate", content=body, headers=headers)
    assert response.status_code == 200
    assert response.json()["warnings"] == ["unknown field 'x'"]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "missing request body"),
        (b" \n", "missing request body"),
        (b"{", "the body is not JSON"),
        (b"[]", "the body is a list, not an object"),
        (b'"x"', "the body is a text, not an object"),
        (b'{"model": "\xc4\xe3"}', "the body is not UTF-8: byte 11 is 0xc4"),
        (b'{"model": "\xc0\xaf"}', "the body is not UTF-8"),
        (b'{"model": NaN}', "NaN is not a number"),
        (b'{"model":' + b"[" * 100_000, "the body is not JSON"),
        (b'{"model":' + b"[" * 500 + b"]" * 500 + b"}", "nested deeper"),
        (b'{"model":' + b"9" * 5000 + b"}", "the body is not JSON"),
        (b'{"model": 5}', "field 'model' must be a text, not a number"),
        (b'{"model": "tiny", "prompt": "hi", "keep_alive": {}}', "keep_alive"),
    ],
)
async def test_bodies_that_are_wrong(client: httpx2.AsyncClient, body: bytes, text: str) -> None:
    """HTTP-06."""
    response = await client.post("/api/generate", content=body)
    assert response.status_code == 400, response.text
    assert text in response.json()["error"]


async def test_half_a_pair_is_no_reason_to_fail(client: httpx2.AsyncClient) -> None:
    """HTTP-06."""
    body = b'{"model": "tiny", "prompt": "a\\ud83db \\ud83d\\ude00", "stream": false, "_debug_render_only": true}'
    reply = (await client.post("/api/generate", content=body)).json()
    assert "a\ufffdb \U0001f600" in reply["_debug_info"]["rendered_template"]


async def test_a_body_that_is_too_large_is_413(make_bench: Callable[..., Bench]) -> None:
    """SEC-02."""
    bench = make_bench(environment={"RSLLM_MAX_BODY": "1000"})
    bench.add()

    async def endless() -> Any:
        while True:
            yield b"\n" * 100
            await asyncio.sleep(0)

    async with asking(bench) as client:
        for content in (b"\n" * 1001, endless()):
            response = await client.post("/api/generate", content=content)
            assert response.status_code == 413
            assert "RSLLM_MAX_BODY" in response.json()["hint"]


def test_the_exact_name_of_a_field_comes_first() -> None:
    assert Body({"Model": "a", "model": "b"}).text("model") == "b"
    assert Body({"name": "a", "MODEL": None}).text("model", "name") == "a"
    assert Body({"MODEL": "x"}).unknown() == ["unknown field 'MODEL'"]


# Errors.


def test_every_status_is_of_a_class_and_folders_are_hidden() -> None:
    assert set(STATUSES.values()) <= {400, 401, 404, 502, 503, 504, 507}
    told = answer(OSError(28, "No space left on device", "/home/u/.ollama/x"))
    assert (told.status, told.body["error"]) == (500, "No space left on device")
    assert answer(RuntimeError("/secret")).body == {"error": "internal error: RuntimeError"}
    assert answer(ApiError(418, "x: /store/blobs/y"), hidden="/store").body == {"error": "x: blobs/y"}
    assert answer(QueueFullError("x")).headers == {"retry-after": "1"}


def test_what_could_end_a_script_is_escaped() -> None:
    assert encode({"a": "</script>&\u2028é"}) == b'{"a":"\\u003c/script\\u003e\\u0026\\u2028\xc3\xa9"}'
    assert json.loads(encode("<>")) == "<>"


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("POST", "/api/me", 403, "ollama cloud is disabled: the account is unavailable"),
        ("DELETE", "/api/user/keys/abc", 403, "ollama cloud is disabled: the account is unavailable"),
        ("POST", "/api/signout", 401, "you are not currently signed in"),
        ("POST", "/api/experimental/web_search", 403, "ollama cloud is disabled: web search is unavailable"),
        ("POST", "/api/experimental/web_fetch", 403, "ollama cloud is disabled: web fetch is unavailable"),
    ],
)
async def test_there_is_no_cloud(client: httpx2.AsyncClient, method: str, path: str, status: int, text: str) -> None:
    response = await client.request(method, path, json={"query": "x"})
    assert (response.status_code, response.json()["error"]) == (status, text)


async def test_who_asks_whether_there_is_a_cloud_is_told(client: httpx2.AsyncClient) -> None:
    assert (await client.get("/api/status")).json() == {"cloud": {"disabled": True, "source": "none"}}
    assert (await client.get("/api/experimental/model-recommendations")).json() == {"recommendations": []}


async def test_no_model_can_hear(client: httpx2.AsyncClient) -> None:
    response = await client.post("/v1/audio/transcriptions", files={"file": b"RIFF"}, data={"model": "tiny"})
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")
