"""A server in a thread of the test's own process, for clients that block."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn


@contextlib.contextmanager
def serving_in_thread(make_app: Callable[[], Any]) -> Iterator[int]:
    """Serve what `make_app` makes, in a thread; the port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = int(listener.getsockname()[1])
    servers: list[uvicorn.Server] = []
    failures: list[BaseException] = []

    async def run() -> None:
        settings = uvicorn.Config(
            make_app(), host="127.0.0.1", port=port, log_config=None, lifespan="on", timeout_graceful_shutdown=2
        )
        server = uvicorn.Server(settings)
        servers.append(server)
        await server._serve()

    def target() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    try:
        deadline = time.monotonic() + 20
        while not (servers and servers[0].started):
            assert not failures, failures
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield port
    finally:
        for server in servers:
            server.should_exit = True
        thread.join(20)
    assert not failures, failures
