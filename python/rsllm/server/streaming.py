"""Replies: one JSON object, or lines of them as they come.

Nothing is sent before the first object is there, so what fails until then has its own status. What fails later is the
last line, `{"error": …}`. While a reply is being made the connection is watched, and a client that goes away ends the
work at once: the generator is closed, which gives back the model and cancels the sequence.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from rsllm.server.errors import answer

__all__ = ["EventResponse", "JsonResponse", "Wire", "encode", "timestamp"]

log = logging.getLogger("rsllm.server")

NDJSON = "application/x-ndjson"
JSON = "application/json; charset=utf-8"
# Made once: `json.dumps` makes one for each value where separators are given, which costs as much as the value.
_encoded = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")).encode


class JsonResponse(Response):
    """A value as JSON."""

    def __init__(self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(encode(value), status, dict(headers or {}))
        self.headers["content-type"] = JSON

    @classmethod
    def of_error(cls, error: BaseException, *, hidden: str | None = None) -> JsonResponse:
        """The answer to what went wrong."""
        told = answer(error, hidden=hidden)
        return cls(told.body, told.status, told.headers)


@dataclass(frozen=True)
class Wire:
    """How a stream and its errors look."""

    content_type: str = NDJSON
    line: Callable[[Any], bytes] = lambda event: encode(event) + b"\n"
    """An event as it is sent."""
    error: Callable[[int, dict[str, Any]], dict[str, Any]] = lambda status, body: body
    """The body of an error, of its status and the native one."""
    late: Callable[[dict[str, Any]], Iterable[Any]] = lambda body: [body]
    """The events of an error after others."""


class EventResponse(Response):
    """Objects as they come, a line each; or, where `stream` is false, the only one as the whole reply."""

    def __init__(
        self, events: AsyncIterator[Any], *, stream: bool, hidden: str | None = None, wire: Wire | None = None
    ) -> None:
        self._events = events
        self._stream = stream
        self._hidden = hidden
        self._wire = wire or Wire()
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.create_task(self._answer(scope, receive, send))
        watch = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                log.info("the client has gone; its request is cancelled")
        finally:
            watch.cancel()
            if not work.done():
                work.cancel()
            await asyncio.gather(work, watch, return_exceptions=True)
        if not work.cancelled():
            work.result()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            try:
                first = await anext(self._events)
            except Exception as error:
                told = answer(error, hidden=self._hidden)
                body = self._wire.error(told.status, told.body)
                await JsonResponse(body, told.status, told.headers)(scope, receive, send)
                return
            if not self._stream:
                await JsonResponse(first)(scope, receive, send)
                return
            headers = [(b"content-type", self._wire.content_type.encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send(self._part(first))
            await self._rest(send)
        finally:
            close = getattr(self._events, "aclose", None)
            if close is not None:
                await close()

    async def _rest(self, send: Send) -> None:
        try:
            async for event in self._events:
                await send(self._part(event))
        except Exception as error:
            for event in self._wire.late(answer(error, hidden=self._hidden).body):
                await send(self._part(event))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _part(self, event: Any) -> Message:
        return {"type": "http.response.body", "body": self._wire.line(event), "more_body": True}


def encode(value: Any) -> bytes:
    """JSON in UTF-8, with the five characters escaped that Ollama escapes."""
    text = _encoded(value)
    for character, escaped in _ESCAPES:
        if character in text:
            text = text.replace(character, escaped)
    return text.encode(errors="replace")


def timestamp(nanoseconds: int | None = None) -> str:
    """A time as RFC 3339 with nanoseconds, in UTC.

    >>> timestamp(1_700_000_000_123_456_789)
    '2023-11-14T22:13:20.123456789Z'
    """
    now = time.time_ns() if nanoseconds is None else nanoseconds
    seconds, rest = divmod(now, 10**9)
    return f"{_second(seconds)}.{rest:09d}Z"


@functools.lru_cache(4)
def _second(seconds: int) -> str:
    # Each line of a stream has the time, and thousands have the same second.
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


# Equal as JSON; what is put into a page cannot end its script there.
_ESCAPES = [(character, f"\\u{ord(character):04x}") for character in "<>&\u2028\u2029"]


async def _gone(receive: Receive) -> None:
    """Returns when the client has gone. The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
