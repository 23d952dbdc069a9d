"""`/v1`: OpenAI's and Anthropic's protocols, translated to the native routes and back.

A handler reads the body, lets the dialect translate it, asks the native service, and lets the dialect translate what
comes. Errors take the dialect's shape whatever their origin.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from rsllm.server import listing
from rsllm.server.body import Body
from rsllm.server.dialects import anthropic, completions, openai, responses
from rsllm.server.dialects.common import Event, Translated
from rsllm.server.dialects.several import SeveralStream, merged_replies, numbered
from rsllm.server.errors import ApiError, answer
from rsllm.server.routes import inference
from rsllm.server.routes.common import read_body, services_of
from rsllm.server.routes.several import interleaved
from rsllm.server.schemas import ChatRequest, EmbedRequest, GenerateRequest
from rsllm.server.streaming import EventResponse, JsonResponse, Wire

__all__ = [
    "chat_completions",
    "completions_route",
    "count_tokens",
    "embeddings",
    "messages",
    "model",
    "models",
    "responses_route",
]

Json = dict[str, Any]
EVENT_STREAM = "text/event-stream"


class _Stream(Protocol):
    def feed(self, chunk: Mapping[str, Any]) -> Iterator[Event]: ...


@dataclass(frozen=True)
class _Dialect:
    """A protocol's way with one native route."""

    request: Callable[[Mapping[str, Any]], Translated]
    reply: Callable[[Mapping[str, Any], Translated], Json]
    stream: Callable[[Translated], _Stream]
    error: Callable[[int, Mapping[str, Any]], Json]
    read: Callable[[Body], Any]
    events: Callable[..., AsyncIterator[Json]]


_CHAT = _Dialect(
    openai.chat_request, openai.chat_reply, openai.ChatStream, openai.error_reply,
    ChatRequest.read, inference.chat_events,
)  # fmt: skip
_COMPLETION = _Dialect(
    completions.completion_request, completions.completion_reply, completions.CompletionStream, openai.error_reply,
    GenerateRequest.read, inference.generate_events,
)  # fmt: skip
_RESPONSE = _Dialect(
    responses.response_request, responses.response_reply, responses.ResponseStream, openai.error_reply,
    ChatRequest.read, inference.chat_events,
)  # fmt: skip
_MESSAGE = _Dialect(
    anthropic.message_request, anthropic.message_reply, anthropic.MessageStream, anthropic.error_reply,
    ChatRequest.read, inference.chat_events,
)  # fmt: skip
_COUNT = replace(_MESSAGE, request=anthropic.count_request, reply=anthropic.count_reply)


async def chat_completions(request: Request) -> Response:
    """`POST /v1/chat/completions`."""
    return await _answer(request, _CHAT)


async def completions_route(request: Request) -> Response:
    """`POST /v1/completions`."""
    return await _answer(request, _COMPLETION)


async def responses_route(request: Request) -> Response:
    """`POST /v1/responses`."""
    return await _answer(request, _RESPONSE)


async def messages(request: Request) -> Response:
    """`POST /v1/messages`."""
    return await _answer(request, _MESSAGE)


async def count_tokens(request: Request) -> Response:
    """`POST /v1/messages/count_tokens`: how long a prompt would be, whether it fits or not."""
    return await _answer(request, _COUNT)


async def embeddings(request: Request) -> Response:
    """`POST /v1/embeddings`."""
    try:
        asked = completions.embeddings_request((await read_body(request)).members())
        native = await inference.embed_reply(request, EmbedRequest.read(Body(asked.native)))
        return JsonResponse(completions.embeddings_reply(native, asked))
    except Exception as error:
        return _refusal(request, openai.error_reply, error)


async def models(request: Request) -> Response:
    """`GET /v1/models`."""
    store = services_of(request).models.store
    return JsonResponse(completions.models_reply({"models": await asyncio.to_thread(listing.tags, store)}))


async def model(request: Request) -> Response:
    """`GET /v1/models/{model}`; names may have slashes, written as such or as `%2F`."""
    asked = request.path_params["model"]
    services = services_of(request)
    try:
        name = services.models.stored(asked).name.short
        listed = await asyncio.to_thread(listing.by_name, services.models.store)
        if name not in listed:
            raise ApiError(404, f"model '{asked[:200]}' not found")
        return JsonResponse(completions.model_reply(listed[name], asked))
    except Exception as error:
        return _refusal(request, openai.error_reply, error)


async def _answer(request: Request, dialect: _Dialect) -> Response:
    services = services_of(request)
    try:
        asked = dialect.request((await read_body(request)).members())
        native = [_native(dialect, asked, index) for index in range(asked.answers)]
    except Exception as error:
        return _refusal(request, dialect.error, error)
    stream = asked.stream and not all(one.is_empty for one in native)
    chunks = [dialect.events(services, one, stream=stream) for one in native]
    if len(chunks) > 1:
        events, late = _several(chunks, dialect, asked, stream)
    else:
        translator = dialect.stream(asked)
        translate = translator.feed if stream else lambda whole: [dialect.reply(whole, asked)]
        events, late = _translated(chunks[0], translate), translator.feed
    wire = Wire(EVENT_STREAM, Event.encode, dialect.error, late)
    return EventResponse(events, stream=stream, hidden=services.hidden, wire=wire)


def _native(dialect: _Dialect, asked: Translated, index: int) -> Any:
    """The native request, or one of several."""
    native = dialect.read(Body(numbered(asked, index)))
    unsaid = asked.unsaid(index)
    return replace(native, **unsaid) if unsaid else native


async def _translated(chunks: AsyncIterator[Json], translate: Callable[[Json], Any]) -> AsyncIterator[Any]:
    try:
        async for chunk in chunks:
            for event in translate(chunk):
                yield event
    finally:
        await chunks.aclose()  # type: ignore[attr-defined]


def _several(
    chunks: list[AsyncIterator[Json]], dialect: _Dialect, asked: Translated, stream: bool
) -> tuple[AsyncIterator[Any], Callable[[Json], Any]]:
    """The events of several answers, or the one reply that holds them all; and the events of a late error."""
    translator = SeveralStream(asked, dialect.stream)

    async def events() -> AsyncIterator[Any]:
        pairs = interleaved(chunks)
        whole: dict[int, Json] = {}
        try:
            async for index, chunk in pairs:
                if stream:
                    for event in translator.feed(index, chunk):
                        yield event
                else:
                    whole[index] = dialect.reply(chunk, asked)
        finally:
            await pairs.aclose()  # type: ignore[attr-defined]
        if not stream:
            yield merged_replies([whole[index] for index in sorted(whole)], asked)

    return events(), dialect.stream(asked).feed


def _refusal(request: Request, shape: Callable[[int, Mapping[str, Any]], Json], error: Exception) -> Response:
    told = answer(error, hidden=services_of(request).hidden)
    return JsonResponse(shape(told.status, told.body), told.status, told.headers)
