"""What the handlers share: the services, bodies within their limit, progress as lines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request

from rsllm.errors import ModelNameError
from rsllm.server.body import Body
from rsllm.server.encodings import INFLATED_BYTES, inflated, is_known
from rsllm.server.errors import ApiError
from rsllm.server.service import Services
from rsllm.server.streaming import EventResponse
from rsllm.store.name import ModelName
from rsllm.store.progress import Progress

__all__ = ["BODY_SECONDS", "SLOWEST_RATE", "model_name", "paced", "progress_response", "read_body", "services_of"]

BODY_SECONDS = 300.0
"""How long a body that is read as a whole may take, however steadily it comes; less where RSLLM_REQUEST_TIMEOUT is."""
SLOWEST_RATE = 1024
"""Bytes a second, of an upload; less than that for as long as RSLLM_CLIENT_TIMEOUT, and it is given up."""

# Beyond it parsing takes long enough to be felt by others.
_INLINE_BYTES = 1 << 18


def services_of(request: Request) -> Services:
    """What the application was made with."""
    services: Services = request.app.state.services
    return services


async def read_body(request: Request) -> Body:
    """The body, parsed. 413 where it is larger than RSLLM_MAX_BODY, 415 where it is in an encoding that is not read,
    408 where it takes longer than it may."""
    settings = services_of(request).config
    seconds = min(BODY_SECONDS, settings.request_seconds or BODY_SECONDS)
    encoding = request.headers.get("content-encoding", "").strip().lower() or "identity"
    if encoding != "identity" and not is_known(encoding):
        raise ApiError(415, f"bodies in the encoding {encoding[:60]!r} are not read", hint="send it uncompressed")
    try:
        async with asyncio.timeout(seconds):
            data = await _received(request, settings.max_body_bytes)
    except TimeoutError:
        raise ApiError(408, f"the body did not come to its end within {seconds:g} s") from None
    if encoding == "identity" and len(data) < _INLINE_BYTES:
        return Body.parse(data)
    return await asyncio.to_thread(_parsed, data, encoding, settings.max_body_bytes)


async def _received(request: Request, limit: int) -> bytes:
    too_large = ApiError(
        413, f"the body is larger than {limit:,} bytes", hint="RSLLM_MAX_BODY sets how much the server reads"
    )
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise too_large
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > limit:
            raise too_large
    return bytes(data)


def _parsed(data: bytes, encoding: str, limit: int) -> Body:
    if encoding != "identity":
        data = inflated(data, encoding, min(limit, INFLATED_BYTES))
    return Body.parse(data)


async def paced(request: Request) -> AsyncIterator[bytes]:
    """The pieces of a body that may take as long as it likes, but must get on: 408 where hardly anything comes."""
    seconds = services_of(request).config.client_seconds
    begun, count = time.monotonic(), 0
    async for chunk in request.stream():
        yield chunk
        count += len(chunk)
        now = time.monotonic()
        if now - begun < seconds:
            continue
        if count < SLOWEST_RATE * (now - begun):
            raise ApiError(408, f"the body comes at less than {SLOWEST_RATE:,} bytes a second")
        begun, count = now, 0


def model_name(text: str, *, required: str = "model is required") -> ModelName:
    """A name; 400 where it is missing or none."""
    if not text.strip():
        raise ApiError(400, required)
    return ModelName.parse(text)


async def whole(events: AsyncIterator[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    """The last event alone."""
    last: dict[str, Any] = {}
    async for event in events:
        last = event
    yield last


def progress_response(request: Request, events: AsyncIterator[Progress], *, stream: bool) -> EventResponse:
    """Progress as lines, or its last word as one object."""

    async def lines() -> AsyncIterator[dict[str, Any]]:
        try:
            async for event in events:
                yield event.as_dict()
        finally:
            close = getattr(events, "aclose", None)
            if close is not None:
                await close()

    hidden = services_of(request).hidden
    return EventResponse(lines() if stream else whole(lines()), stream=stream, hidden=hidden)


def invalid(kind: str, text: str) -> ApiError:
    """A name that is none, as copy and delete say it."""
    return ApiError(400, f'{kind} "{text[:200]}" is invalid')


def parsed(kind: str, text: str) -> ModelName:
    """A name; otherwise `invalid`."""
    try:
        return ModelName.parse(text)
    except ModelNameError as error:
        raise invalid(kind, text) from error
