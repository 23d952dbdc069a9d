"""What Ollama passes on to a service of its own, and what no model here can do: answered, so that clients know.

There is no cloud behind this server. Clients that ask whether there is are told so; what would need it is a 403 in
Ollama's words.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from rsllm.server.dialects import openai
from rsllm.server.errors import ApiError, answer
from rsllm.server.routes.common import services_of
from rsllm.server.streaming import JsonResponse

__all__ = ["account", "recommendations", "sign_out", "status", "transcriptions", "web_fetch", "web_search"]


async def status(request: Request) -> Response:
    """`GET /api/status`."""
    return JsonResponse({"cloud": {"disabled": True, "source": "none"}})


async def account(request: Request) -> Response:
    """`POST /api/me` and `DELETE /api/user/keys/<key>`."""
    raise _disabled("the account")


async def sign_out(request: Request) -> Response:
    """`POST /api/signout`."""
    raise ApiError(401, "you are not currently signed in")


async def web_search(request: Request) -> Response:
    """`POST /api/experimental/web_search`."""
    raise _disabled("web search")


async def web_fetch(request: Request) -> Response:
    """`POST /api/experimental/web_fetch`."""
    raise _disabled("web fetch")


async def recommendations(request: Request) -> Response:
    """`GET /api/experimental/model-recommendations`."""
    return JsonResponse({"recommendations": []})


async def transcriptions(request: Request) -> Response:
    """`POST /v1/audio/transcriptions`; what is sent is not read."""
    told = answer(ApiError(400, "audio is not supported: no model can hear yet"), hidden=services_of(request).hidden)
    return JsonResponse(openai.error_reply(told.status, told.body), told.status, {"connection": "close"})


def _disabled(what: str) -> ApiError:
    return ApiError(403, f"ollama cloud is disabled: {what} is unavailable")
