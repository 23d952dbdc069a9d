"""`/healthz`, `/readyz`, `/metrics`: for those who watch the server, and not for its users."""

from __future__ import annotations

import asyncio
import importlib

from starlette.requests import Request
from starlette.responses import Response

from rsllm.server.exposition import Snapshot, exposition
from rsllm.server.routes.common import services_of
from rsllm.server.service import Services
from rsllm.server.streaming import JsonResponse

__all__ = ["health", "metrics", "ready"]

# A runner that does not say within this what it takes is left out.
_RUNNER_SECONDS = 1.0


async def health(request: Request) -> Response:
    """`GET /healthz`: the process lives, and its event loop turns."""
    return JsonResponse({"status": "ok"})


async def ready(request: Request) -> Response:
    """`GET /readyz`: whether requests are taken; 503 with the reason where they are not."""
    reason = unready(services_of(request))
    if reason is None:
        return JsonResponse({"status": "ready"})
    return JsonResponse({"status": "not ready", "reason": reason}, 503, {"retry-after": "1"})


async def metrics(request: Request) -> Response:
    """`GET /metrics`: all counts, in the text format of Prometheus."""
    import rsllm

    services = services_of(request)
    await asyncio.to_thread(importlib.import_module, "prometheus_client")
    runners = await services.pool.figures(_RUNNER_SECONDS)
    snapshot = Snapshot(
        version=rsllm.__version__,
        figures=request.app.state.figures,
        pool=services.pool.metrics(),
        models=services.pool.status(),
        runners=runners,
        active=services.active,
        ready=unready(services) is None,
        tasks=len(asyncio.all_tasks()),
    )
    text, content_type = exposition(snapshot, request.headers.get("accept", ""))
    return Response(text, headers={"content-type": content_type})


def unready(services: Services) -> str | None:
    """Why no request is taken now; `None`: they are."""
    if services.draining:
        return "the server is shutting down"
    if services.pool.closed:
        return "the server has shut down"
    if services.pool.is_full:
        return "as many requests wait as may"
    return None
