"""The application: routes, who may use them, and what becomes of errors."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.applications import Starlette
from starlette.convertors import CONVERTOR_TYPES, StringConvertor
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from rsllm.server import trace as tracing
from rsllm.server.access import Access, Rules
from rsllm.server.metrics import Figures
from rsllm.server.service import Services
from rsllm.server.spans import Spans
from rsllm.server.streaming import JsonResponse

__all__ = ["OLLAMA_VERSION", "create_app"]

OLLAMA_VERSION = "0.33.0"
"""What `/api/version` says: clients compare it with the features they want, so it names the routes' level, not ours."""

Handler = Callable[[Request], Awaitable[Response]]


class _Name(StringConvertor):
    """The rest of a path as the name of a model, whatever it is: that there is no such model is the handler's to say.

    Starlette's `path` does not take line breaks.
    """

    regex = "(?s:.*)"


CONVERTOR_TYPES["name"] = _Name()


def create_app(services: Services, *, rules: Rules | None = None, spans: Spans | None = None) -> Starlette:
    """The ASGI application. `services.pool` and `spans` are closed with it."""
    rules = rules or Rules(check_host=True, origins=services.config.origins, api_key=services.config.api_key)

    figures = Figures()
    services.pool.observer = figures

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with services.pool:
            yield
        if spans is not None:
            await asyncio.to_thread(spans.close)

    app = Starlette(
        routes=_routes(),
        middleware=[Middleware(Access, rules=rules, services=services, figures=figures, spans=spans)],
        exception_handlers={HTTPException: _http_error},
        lifespan=lifespan,
    )
    app.state.services = services
    app.state.figures = figures
    return app


def _routes() -> list[Route]:
    return [
        _route("GET", "/", _alive),
        _route("GET", "/healthz", "health:health"),
        _route("GET", "/readyz", "health:ready"),
        _route("GET", "/metrics", "health:metrics"),
        _route("GET", "/openapi.json", _openapi),
        _route("GET", "/api/version", _version),
        _route("POST", "/api/generate", "inference:generate"),
        _route("POST", "/api/chat", "inference:chat"),
        _route("POST", "/api/embed", "inference:embed"),
        _route("POST", "/api/embeddings", "inference:embeddings"),
        _route("GET", "/api/tags", "models:tags"),
        _route("GET", "/api/ps", "models:ps"),
        _route("POST", "/api/show", "models:show"),
        _route("POST", "/api/copy", "models:copy"),
        _route("DELETE", "/api/delete", "models:delete"),
        _route("POST", "/api/pull", "transfer:pull"),
        _route("POST", "/api/push", "transfer:push"),
        _route("POST", "/api/create", "transfer:create"),
        _route("HEAD", "/api/blobs/{digest}", "transfer:has_blob"),
        _route("POST", "/api/blobs/{digest}", "transfer:upload"),
        _route("GET", "/api/status", "elsewhere:status"),
        _route("POST", "/api/me", "elsewhere:account"),
        _route("POST", "/api/signout", "elsewhere:sign_out"),
        _route("DELETE", "/api/user/keys/{key}", "elsewhere:account"),
        _route("POST", "/api/experimental/web_search", "elsewhere:web_search"),
        _route("POST", "/api/experimental/web_fetch", "elsewhere:web_fetch"),
        _route("GET", "/api/experimental/model-recommendations", "elsewhere:recommendations"),
        _route("POST", "/v1/chat/completions", "dialects:chat_completions"),
        _route("POST", "/v1/completions", "dialects:completions_route"),
        _route("POST", "/v1/embeddings", "dialects:embeddings"),
        _route("POST", "/v1/responses", "dialects:responses_route"),
        _route("POST", "/v1/audio/transcriptions", "elsewhere:transcriptions"),
        _route("POST", "/v1/messages", "dialects:messages"),
        _route("POST", "/v1/messages/count_tokens", "dialects:count_tokens"),
        _route("GET", "/v1/models", "dialects:models"),
        _route("GET", "/v1/models/{model:name}", "dialects:model"),
    ]


def _route(method: str, path: str, handler: Handler | str) -> Route:
    """`handler` may be `module:function` of `routes`, imported with its first request: so a server listens sooner."""

    async def endpoint(request: Request) -> Response:
        if (trace := tracing.current()) is not None:
            trace.route = path
        try:
            return await (_found(handler) if isinstance(handler, str) else handler)(request)
        except ClientDisconnect:
            return Response(status_code=tracing.CLIENT_GONE)
        except Exception as error:
            return JsonResponse.of_error(error, hidden=request.app.state.services.hidden)

    return Route(path, endpoint, methods=[method], name=f"{method} {path}")


def _found(handler: str) -> Handler:
    module, _, function = handler.partition(":")
    found: Handler = getattr(importlib.import_module(f"rsllm.server.routes.{module}"), function)
    return found


async def _alive(request: Request) -> Response:
    return PlainTextResponse("Ollama is running")


async def _openapi(request: Request) -> Response:
    import rsllm
    from rsllm.server import openapi

    return JsonResponse(openapi.document(rsllm.__version__))


async def _version(request: Request) -> Response:
    import rsllm

    return JsonResponse({"version": OLLAMA_VERSION, "rsllm": rsllm.__version__})


async def _http_error(request: Request, error: Exception) -> Response:
    """What the router has to say: no such path, or not with this method."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    text = {404: "404 page not found", 405: "405 method not allowed"}.get(status, str(status))
    return PlainTextResponse(text, status, headers=getattr(error, "headers", None))
