"""`/api/pull`, `/api/push`, `/api/create`, and the blobs that create needs."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from rsllm.errors import GgufError, ModelNotFoundError, TemplateError
from rsllm.refs import is_demo
from rsllm.refs.sources import is_source
from rsllm.server import options
from rsllm.server.errors import ApiError
from rsllm.server.routes.common import model_name, paced, progress_response, read_body, services_of
from rsllm.server.schemas import TransferRequest
from rsllm.server.service import Services, in_thread
from rsllm.store.digest import Digest
from rsllm.store.name import ModelName
from rsllm.store.progress import Progress
from rsllm.typed import HEADER, is_typed

__all__ = ["create", "has_blob", "pull", "push", "upload"]

# Pieces of an upload that may wait for the disk.
_AHEAD = 16
_WAIT_SECONDS = 0.005


async def pull(request: Request) -> Response:
    """`POST /api/pull`: a name, or what `rsllm.registry.sources` knows beside names."""
    asked = TransferRequest.read(await read_body(request))
    reference = asked.model if is_source(asked.model) else model_name(asked.model)
    services = services_of(request)
    events = services.pull(services.models.store, reference, insecure=asked.insecure, typed=_typed(request, asked))
    return progress_response(request, events, stream=asked.stream)


async def push(request: Request) -> Response:
    """`POST /api/push`."""
    asked = TransferRequest.read(await read_body(request))
    name = model_name(asked.model)
    services = services_of(request)
    events = services.push(services.models.store, name, insecure=asked.insecure, typed=_typed(request, asked))
    return progress_response(request, events, stream=asked.stream)


def _typed(request: Request, asked: TransferRequest) -> bool:
    """Whether the user of this server typed the name at a command line."""
    return is_typed(request.headers.get(HEADER), request.url.path, asked.model)


async def create(request: Request) -> Response:
    """`POST /api/create`; a model that it starts from is pulled where it is missing."""
    from rsllm.store import create as creating

    body = await read_body(request)
    members = body.members()
    stream = body.flag("stream", True)
    name = model_name(body.text("model", "name"))
    asked = creating.CreateRequest.from_dict(members)
    # What a model cannot be run with is refused now, and not when somebody runs it.
    given = {
        name: [value] if name == "stop" and isinstance(value, str) else value
        for name, value in asked.parameters.items()
    }
    options.read(given, {})
    await asyncio.to_thread(_check_template, asked.template)
    events = _create(services_of(request), name, asked)
    return progress_response(request, events, stream=stream)


def _check_template(source: str) -> None:
    """Raise `TemplateError` for a TEMPLATE that no request could use."""
    from rsllm.chat.go.template import GoTemplate

    try:
        GoTemplate(source)
    except TemplateError as error:
        raise TemplateError(f"template error: {error}", line=error.line, hint=error.hint) from None


async def has_blob(request: Request) -> Response:
    """`HEAD /api/blobs/<digest>`."""
    digest = Digest.parse(request.path_params["digest"])
    there = await asyncio.to_thread(services_of(request).models.store.has_blob, digest)
    return Response(status_code=200 if there else 404)


async def upload(request: Request) -> Response:
    """`POST /api/blobs/<digest>`: the bytes, written as they come, kept if they are what the digest says."""
    digest = Digest.parse(request.path_params["digest"])
    store = services_of(request).models.store
    if await asyncio.to_thread(store.has_blob, digest):
        return Response(status_code=200)
    pieces = _Pieces()
    writing = asyncio.create_task(asyncio.to_thread(store.add_blob, pieces, digest))
    try:
        async for chunk in paced(request):
            if not await pieces.put(chunk, writing):
                break
        await pieces.put(None, writing)
    except BaseException:
        pieces.fail()
        with contextlib.suppress(Exception):
            await asyncio.shield(writing)
        raise
    await writing
    return Response(status_code=201)


class _Pieces(Iterator[bytes]):
    """Bytes from the event loop to the thread that writes them."""

    def __init__(self) -> None:
        self._queue: queue.Queue[bytes | None] = queue.Queue(_AHEAD)
        self._failed = threading.Event()

    async def put(self, piece: bytes | None, writing: asyncio.Future[Any]) -> bool:
        """Add a piece, `None` at the end; waits where the disk is slow. False if nobody writes any more."""
        while not writing.done():
            try:
                self._queue.put_nowait(piece)
                return True
            except queue.Full:
                await asyncio.sleep(_WAIT_SECONDS)
        return False

    def fail(self) -> None:
        """There will be no more."""
        self._failed.set()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)

    def __next__(self) -> bytes:
        piece = self._queue.get()
        if self._failed.is_set():
            raise ClientDisconnect
        if piece is None:
            raise StopIteration
        return piece


async def _create(services: Services, name: ModelName, asked: Any) -> AsyncIterator[Progress]:
    from rsllm.store.create import create

    if asked.from_:
        source = ModelName.parse(asked.from_)
        try:
            await asyncio.to_thread(services.models.store.find, source)
        except ModelNotFoundError:
            reference = asked.from_ if is_demo(asked.from_) else source
            async for event in services.pull(services.models.store, reference, insecure=False, typed=False):
                if event.status != "success":  # that is for the end of it all
                    yield event
    try:
        async for event in in_thread(create(services.models.store, name, asked)):
            yield event
    except GgufError as error:  # what was sent is no model: not a failure of this server
        raise ApiError(400, str(error), hint=error.hint) from error
