"""The client against answers made up for it, ours and Ollama's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from rsllm import errors
from rsllm.address import Address
from rsllm.client import Client, error_from

Handler = Callable[[httpx2.Request], httpx2.Response]


def client(handler: Handler, **arguments: Any) -> Client:
    return Client(Address.parse("http://127.0.0.1:1"), transport=httpx2.MockTransport(handler), **arguments)


def answering(status: int, body: Any) -> Handler:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return lambda request: httpx2.Response(status, content=content)


def test_lines_become_objects() -> None:
    content = b'{"response":"a"}\n\n{"response":"\\u00e9","done":true}\n'
    with client(answering(200, content)) as asked:
        assert list(asked.generate({"model": "m"})) == [{"response": "a"}, {"response": "é", "done": True}]


def test_an_error_in_a_line_is_raised_after_what_came_before() -> None:
    """STO-09."""
    content = b'{"response":"a"}\n{"error":"it broke","kind":"RunnerCrashedError","hint":"again"}\n'
    with client(answering(200, content)) as asked:
        events = asked.generate({"model": "m"})
        assert next(events) == {"response": "a"}
        with pytest.raises(errors.RunnerCrashedError, match="it broke") as raised:
            next(events)
    assert raised.value.hint == "again"


@pytest.mark.parametrize(
    ("status", "body", "kind", "text"),
    [
        (404, {"error": "model 'x' not found"}, errors.ModelNotFoundError, "model 'x' not found"),
        (503, {"error": "busy"}, errors.QueueFullError, "busy"),
        (400, {"error": "bad"}, errors.ServerError, "bad"),
        (400, {"error": "bad", "kind": "OptionError"}, errors.OptionError, "bad"),
        (500, {"error": "x", "kind": "NoSuchError"}, errors.ServerError, "x"),
        (500, {"error": "x", "kind": "annotations"}, errors.ServerError, "x"),
        (502, b"<html>", errors.ServerError, "status 502: <html>"),
        (403, b"", errors.ServerError, "status 403"),
        (500, [], errors.ServerError, "status 500"),
    ],
)
def test_errors_are_those_of_the_package_again(status: int, body: Any, kind: type, text: str) -> None:
    with client(answering(status, body)) as asked, pytest.raises(kind) as raised:
        asked.tags()
    assert type(raised.value) is kind
    assert text in str(raised.value)


@pytest.mark.parametrize("content", [b"<html>", b"[]", b'"x"', b"\xff\xfe"])
def test_what_is_no_json_object_is_an_error(content: bytes) -> None:
    with client(answering(200, content)) as asked:
        with pytest.raises(errors.ServerError):
            asked.tags()
        with pytest.raises(errors.ServerError):
            list(asked.chat({}))


def test_a_connection_that_breaks_is_an_error() -> None:
    def broken() -> Iterator[bytes]:
        yield b'{"response":"a"}\n'
        raise httpx2.RemoteProtocolError("peer closed connection")

    with client(lambda request: httpx2.Response(200, content=broken())) as asked:
        events = asked.generate({})
        assert next(events) == {"response": "a"}
        with pytest.raises(errors.ServerUnreachableError, match="broke: peer closed connection"):
            next(events)


def test_nobody_there_is_said_or_changed() -> None:
    tries: list[str] = []

    def handler(request: httpx2.Request) -> httpx2.Response:
        tries.append("asked")
        if "started" not in tries:
            raise httpx2.ConnectError("refused")
        return httpx2.Response(200, json={"models": [{"name": "a"}]})

    with client(handler, start=lambda: tries.append("started")) as asked:
        assert not asked.is_up()
        assert tries == ["asked"]
        assert asked.tags() == [{"name": "a"}]
        assert tries == ["asked", "asked", "started", "asked"]
        assert asked.is_up()
    tries.clear()
    with client(handler) as asked, pytest.raises(errors.ServerUnreachableError, match="could not connect"):
        asked.ps()


def test_the_key_and_the_path_are_sent() -> None:
    seen: list[httpx2.Request] = []

    def handler(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(200, json={"version": "1"})

    address = Address.parse("http://box:5/ollama")
    with Client(address, api_key="k", transport=httpx2.MockTransport(handler)) as asked:
        assert asked.version() == "1"
    assert str(seen[0].url) == "http://box:5/ollama/api/version"
    assert seen[0].headers["authorization"] == "Bearer k"


def test_blobs() -> None:
    def handler(request: httpx2.Request) -> httpx2.Response:
        if request.method == "HEAD":
            return httpx2.Response(404)
        assert request.read() == b"abc"
        return httpx2.Response(201)

    with client(handler) as asked:
        assert not asked.has_blob("sha256:00")
        asked.upload("sha256:00", iter([b"a", b"bc"]))


def test_an_error_without_a_text_has_one() -> None:
    assert str(error_from({}, 500)) == "the server answered with status 500"
