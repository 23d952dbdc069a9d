"""`serve`: the server as a process.

It listens where OLLAMA_HOST says, on this machine only unless told otherwise, and beyond it only with a key or with
permission to do without. SIGINT and SIGTERM end it in order: no new connections, requests that run may finish for
`DRAIN_SECONDS`, then the runners are stopped. A server that a command started by itself (`idle_seconds`) ends when
nothing is loaded and nobody has asked for that long.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn

import rsllm
from rsllm.address import Address
from rsllm.config import Config, config
from rsllm.errors import OptionError, RsllmError
from rsllm.runner.pool import RunnerPool
from rsllm.server.access import Rules
from rsllm.server.app import create_app
from rsllm.server.connection import Connection
from rsllm.server.logs import logging_to
from rsllm.server.models import Models
from rsllm.server.service import Services
from rsllm.server.spans import spans_from
from rsllm.store.store import Store
from rsllm.system import raise_file_limit

__all__ = ["DRAIN_SECONDS", "Server", "announce", "check_address", "serve", "server_settings"]

log = logging.getLogger("rsllm.server")

DRAIN_SECONDS = 10
_POLL_SECONDS = 1.0
_TICKS_A_SECOND = 10  # of uvicorn's main loop


def serve(
    settings: Config | None = None,
    *,
    address: Address | None = None,
    allow_public: bool = False,
    idle_seconds: float | None = None,
    log_file: Path | None = None,
    warm: bool = False,
) -> None:
    """Serve until told to end; `warm` starts the process of a first model ahead.

    Raises `OptionError` where it may not listen there, `RsllmError` where it cannot.
    """
    settings = settings or config()
    address = address or Address.parse(settings.host)
    check_address(address, settings, allow_public=allow_public)
    raise_file_limit()  # each connection is one
    with logging_to(log_file, form=settings.log_format, detail=max(settings.log_detail, int(settings.debug))):
        store = Store.default()
        store.start(no_prune=settings.no_prune)
        services = Services(settings, Models(store), RunnerPool.from_config(settings, warm=warm))
        rules = Rules(address.is_loopback, settings.origins, settings.api_key)
        app = create_app(services, rules=rules, spans=spans_from(settings, rsllm.__version__))
        server = Server(server_settings(app, address.host, address.port), services, idle_seconds)
        announce(address, settings)
        try:
            server.run()
        except SystemExit:
            raise RsllmError(
                f"the server could not start: {server.reason or f'it cannot listen on {address}'}",
                hint="another server may listen there; OLLAMA_HOST chooses another address",
            ) from None


def check_address(address: Address, settings: Config, *, allow_public: bool = False) -> None:
    """Refuse to listen where everybody can reach a server that asks for no key."""
    if address.scheme == "https":
        raise OptionError(
            "the server itself speaks http only, but OLLAMA_HOST says https",
            name="OLLAMA_HOST",
            hint="put a proxy in front of it that speaks https",
        )
    if address.is_loopback or settings.api_key or settings.allow_public or allow_public:
        return
    raise OptionError(
        f"{address.host} can be reached from beyond this machine, and no API key is set",
        name="OLLAMA_HOST",
        hint="set RSLLM_API_KEY, or give --allow-public (RSLLM_ALLOW_PUBLIC=1) to serve everybody who can reach it",
    )


def server_settings(app: Any, host: str, port: int, *, drain_seconds: int = DRAIN_SECONDS) -> uvicorn.Config:
    """How uvicorn is to serve the application."""
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=drain_seconds,
        server_header=False,
        ws="none",
        http=Connection,
    )


class Server(uvicorn.Server):
    """Uvicorn, ending by itself when idle, and leaving Ctrl-C's traceback out."""

    def __init__(self, settings: uvicorn.Config, services: Services, idle_seconds: float | None = None) -> None:
        super().__init__(settings)
        self.reason: str | None = None
        self._services = services
        self._idle_seconds = idle_seconds

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        await super().startup(sockets)  # type: ignore[arg-type]
        if self.started:
            log.info("ready")
            if self._idle_seconds is not None:
                self._idle = asyncio.create_task(self._end_when_idle(self._idle_seconds))

    async def shutdown(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        self._services.draining = True
        await super().shutdown(sockets)  # type: ignore[arg-type]

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS_A_SECOND == 0:
            now, seconds = asyncio.get_running_loop().time(), self._services.config.client_seconds
            for connection in list(self.server_state.connections):
                if isinstance(connection, Connection):
                    connection.end_if_stalled(now, seconds)
        return await super().on_tick(counter)

    async def _end_when_idle(self, seconds: float) -> None:
        idle_since = time.monotonic()
        while not self.should_exit:
            await asyncio.sleep(min(_POLL_SECONDS, seconds))
            services = self._services
            if services.active or services.pool.status():
                idle_since = time.monotonic()
            idle_since = max(idle_since, services.last_request)
            if time.monotonic() - idle_since >= seconds:
                log.info("nothing has been asked for %g s and nothing is loaded: the end", seconds)
                self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        with super().capture_signals():
            yield
            # Or uvicorn would raise them again, and an end in order would look like a death.
            self._captured_signals.clear()


def announce(address: Address, settings: Config) -> None:
    """What the log begins with."""
    log.info("rsllm %s listens on %s, models in %s", rsllm.__version__, address, settings.models_dir)
    for text in settings.without_effect:
        log.warning("%s", text)
    if not address.is_loopback and not settings.api_key:
        log.warning("everybody who can reach %s may use, change and delete models: no API key is set", address)
