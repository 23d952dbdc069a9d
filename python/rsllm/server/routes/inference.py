"""`/api/generate`, `/api/chat`, `/api/embed`, `/api/embeddings`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from rsllm.errors import ModelNameError, ModelNotFoundError
from rsllm.server import generation
from rsllm.server.embedding import Embeddings
from rsllm.server.embedding import embed as embed_texts
from rsllm.server.errors import ApiError
from rsllm.server.reading import Final, Piece
from rsllm.server.routes.common import read_body, services_of
from rsllm.server.schemas import ChatRequest, EmbedRequest, GenerateRequest, Inference
from rsllm.server.service import Services
from rsllm.server.streaming import EventResponse, JsonResponse, timestamp

__all__ = ["chat", "chat_events", "embed", "embed_reply", "embeddings", "generate", "generate_events"]

Event = dict[str, Any]
_Shape = Callable[[Piece], Event]


async def generate(request: Request) -> Response:
    """`POST /api/generate`."""
    asked = GenerateRequest.read(await read_body(request))
    return _response(request, asked, generate_events)


async def chat(request: Request) -> Response:
    """`POST /api/chat`."""
    asked = ChatRequest.read(await read_body(request))
    return _response(request, asked, chat_events)


def generate_events(services: Services, asked: GenerateRequest, *, stream: bool) -> AsyncIterator[Event]:
    """The objects of `/api/generate`: as they come, or one."""
    return _events(asked, generation.generate(services, asked), _generated, stream=stream)


def chat_events(services: Services, asked: ChatRequest, *, stream: bool) -> AsyncIterator[Event]:
    """The objects of `/api/chat`: as they come, or one."""
    return _events(asked, generation.chat(services, asked), _message, stream=stream)


async def embed(request: Request) -> Response:
    """`POST /api/embed`."""
    return JsonResponse(await embed_reply(request, EmbedRequest.read(await read_body(request))))


async def embed_reply(request: Request, asked: EmbedRequest) -> Event:
    """The object of `/api/embed`."""
    if not asked.model:
        raise ApiError(404, "model '' not found")
    result = await _embeddings(request, asked)
    reply = {"model": asked.model, "embeddings": result.vectors, **result.metrics}
    return reply | ({"warnings": result.warnings} if result.warnings else {})


async def embeddings(request: Request) -> Response:
    """`POST /api/embeddings`, the older one: one text, one vector, not normalised."""
    asked = EmbedRequest.read_legacy(await read_body(request))
    if not asked.model:
        raise ApiError(400, "model is required")
    result = await _embeddings(request, asked)
    reply: Event = {"embedding": result.vectors[0] if result.vectors else []}
    return JsonResponse(reply | ({"warnings": result.warnings} if result.warnings else {}))


async def _embeddings(request: Request, asked: EmbedRequest) -> Embeddings:
    try:
        return await embed_texts(services_of(request), asked)
    except ModelNotFoundError as error:
        raise ApiError(404, f'model "{asked.model}" not found, try pulling it first', hint=error.hint) from None
    except ModelNameError as error:
        raise ApiError(400, f"invalid model name: {asked.model[:200]!r}", hint=error.hint) from None


def _response(request: Request, asked: Any, events: Callable[..., AsyncIterator[Event]]) -> EventResponse:
    """The answer as lines or whole; what only loads or unloads is one object in any case."""
    stream = asked.stream and not asked.is_empty and not asked.render_only
    services = services_of(request)
    return EventResponse(events(services, asked, stream=stream), stream=stream, hidden=services.hidden)


def _events(
    asked: Inference, events: AsyncIterator[Piece | Final], shape: _Shape, *, stream: bool
) -> AsyncIterator[Event]:
    return _lines(asked, events, shape) if stream else _whole(asked, events, shape)


async def _lines(asked: Inference, events: AsyncIterator[Piece | Final], shape: _Shape) -> AsyncIterator[Event]:
    try:
        async for event in events:
            head = {"model": asked.model, "created_at": timestamp()}
            if isinstance(event, Final):
                yield {**head, **shape(Piece()), **_end(event)}
            else:
                logprobs = {} if event.logprobs is None else {"logprobs": event.logprobs}
                yield {**head, **shape(event), "done": False, **logprobs}
    finally:
        await events.aclose()  # type: ignore[attr-defined]


async def _whole(asked: Inference, events: AsyncIterator[Piece | Final], shape: _Shape) -> AsyncIterator[Event]:
    pieces: list[Piece] = []
    try:
        async for event in events:
            if isinstance(event, Piece):
                pieces.append(event)
                continue
            whole = Piece(
                "".join(piece.text for piece in pieces),
                "".join(piece.thinking for piece in pieces),
                tuple(call for piece in pieces for call in piece.calls),
            )
            logprobs = [entry for piece in pieces for entry in piece.logprobs or ()]
            found = {"logprobs": logprobs} if asked.logprobs is not None else {}
            yield {"model": asked.model, "created_at": timestamp(), **shape(whole), **_end(event), **found}
    finally:
        await events.aclose()  # type: ignore[attr-defined]


def _generated(piece: Piece) -> Event:
    found: Event = {"response": piece.text}
    return found | ({"thinking": piece.thinking} if piece.thinking else {})


def _message(piece: Piece) -> Event:
    message: Event = {"role": "assistant", "content": piece.text}
    if piece.thinking:
        message["thinking"] = piece.thinking
    if piece.calls:
        message["tool_calls"] = [call.as_dict() for call in piece.calls]
    return {"message": message}


def _end(final: Final) -> Event:
    end: Event = {"done": True}
    if final.reason:
        end["done_reason"] = final.reason
    if final.rendered is not None:
        end["_debug_info"] = {"rendered_template": final.rendered}
    if final.context is not None:
        end["context"] = final.context
    end |= final.metrics
    if final.warnings:
        end["warnings"] = final.warnings
    return end
