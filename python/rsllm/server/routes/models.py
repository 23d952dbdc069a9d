"""`/api/tags`, `/api/show`, `/api/ps`, `/api/copy`, `/api/delete`."""

from __future__ import annotations

import asyncio
import math
import time
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from rsllm.errors import ModelNotFoundError, RsllmError
from rsllm.runner.pool import ModelStatus
from rsllm.runner.scheduler import Phase
from rsllm.server import listing
from rsllm.server.errors import ApiError
from rsllm.server.routes.common import parsed, read_body, services_of
from rsllm.server.streaming import JsonResponse

__all__ = ["copy", "delete", "ps", "show", "tags"]

# What Ollama shows for a model that is never to go: the largest duration, from now.
_FOREVER_SECONDS = (2**63 - 1) / 1e9


async def tags(request: Request) -> Response:
    """`GET /api/tags`: the models of the store, the newest first; a damaged one has an `error`."""
    services = services_of(request)
    setting = services.config.go_template
    listed = await asyncio.to_thread(listing.tags_in_full, services.models.store, setting=setting)
    return JsonResponse({"models": listed})


async def show(request: Request) -> Response:
    """`POST /api/show`: all that is known of a model."""
    body = await read_body(request)
    name = body.text("model", "name").strip()
    verbose, system, options = body.flag("verbose", False), body.text("system"), body.mapping("options")
    if not name:
        raise ApiError(400, "model is required")
    services = services_of(request)
    asked: dict[str, Any] = {
        "verbose": verbose,
        "system": system,
        "options": options,
        "setting": services.config.go_template,
    }
    reply = await asyncio.to_thread(lambda: listing.show(services.models.stored(name), **asked))
    if request.headers.get("user-agent", "").startswith("GitHubCopilotChat/"):
        reply["model_info"]["general.basename"] = name
    return JsonResponse(reply)


async def ps(request: Request) -> Response:
    """`GET /api/ps`: the models that are loaded, the one that stays longest first."""
    services = services_of(request)
    statuses = [status for status in services.pool.status() if status.phase is not Phase.LEAVING]
    statuses.sort(key=lambda status: -status.expires_in)
    listed = await asyncio.to_thread(listing.by_name, services.models.store)
    return JsonResponse({"models": [_running(status, listed.get(status.name, {})) for status in statuses]})


async def copy(request: Request) -> Response:
    """`POST /api/copy`: another name for a model."""
    body = await read_body(request)
    source, destination = body.text("source"), body.text("destination")
    names = parsed("source", source), parsed("destination", destination)
    try:
        await asyncio.to_thread(services_of(request).models.store.copy, *names)
    except ModelNotFoundError:
        raise ApiError(404, f'model "{source}" not found') from None
    return Response(status_code=200)


async def delete(request: Request) -> Response:
    """`DELETE /api/delete`: the name, and the blobs that nothing else needs; a loaded one goes when it is idle."""
    services = services_of(request)
    text = (await read_body(request)).text("model", "name")
    name = parsed("name", text)
    path = None
    try:
        path = await services.models.path(text)
    except ModelNotFoundError:
        raise ApiError(404, f"model '{text}' not found") from None
    except (RsllmError, OSError):  # a damaged one can be removed
        path = None
    removed = await asyncio.to_thread(services.models.store.delete, name)
    if path is not None and any(path.endswith(digest.file_name) for digest in removed):
        services.pool.unload(path)
    return Response(status_code=200)


def _running(status: ModelStatus, listed: dict[str, Any]) -> dict[str, Any]:
    plan = status.plan
    seconds = min(status.expires_in, _FOREVER_SECONDS) if status.expires_in < math.inf else _FOREVER_SECONDS
    expires_at = datetime.fromtimestamp(time.time() + seconds, UTC).astimezone()
    return {
        "name": status.name,
        "model": status.name,
        "size": plan.total_bytes if plan is not None else status.own_bytes,
        "digest": listed.get("digest", ""),
        "details": listed.get("details", {}),
        "expires_at": expires_at.isoformat(),
        "size_vram": 0,
        "context_length": int(status.info.get("context") or (plan.context if plan is not None else 0)),
        # Ours: why it is so long, and what is going on.
        "context_reason": str(status.info.get("context_reason") or (plan.context_reason if plan is not None else "")),
        "phase": status.phase.value,
        "requests": status.requests,
        "running": status.running,
        "queued": status.queued,
        "pid": status.pid,
    }
