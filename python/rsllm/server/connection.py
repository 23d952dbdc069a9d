"""Connections whose clients have stopped, ended.

Uvicorn waits for ever for the rest of a request, and for a client to take the rest of a reply. Both cost: a file
descriptor, and in the second case a model's place, since its answer cannot go on. So each connection notes when it last
got on, and the server looks at all of them once a second:

- the head of a request must be there within `HEAD_SECONDS` of the connection's or the last reply's end;
- of a body something must come every so often, and of a reply something must be taken (`RSLLM_CLIENT_TIMEOUT`).

A client that is late with its request is told so (408); what runs for one that does not read is cancelled. Nothing here
costs anything a token.
"""

from __future__ import annotations

import asyncio
import logging

from uvicorn.protocols.http.h11_impl import H11Protocol

from rsllm.server.streaming import encode

__all__ = ["HEAD_SECONDS", "Connection"]

log = logging.getLogger("rsllm.server")

HEAD_SECONDS = 30.0


class Connection(H11Protocol):
    """One connection, as uvicorn has it, and when it last got on. Times are the event loop's."""

    _since = 0.0
    """When it was made, or its last reply was over."""
    _heard = 0.0
    """When something last came."""
    _full_since: float | None = None
    """Since when the client has taken nothing, with as much waiting for it as may."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._since = self._heard = self.loop.time()
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._heard = self.loop.time()
        super().data_received(data)

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        self._full_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._full_since = None
        super().resume_writing()

    def end_if_stalled(self, now: float, seconds: float) -> None:
        """End the connection if its client has not got on for so long."""
        if self.transport is None or self.transport.is_closing():
            return
        if self._full_since is not None and now - self._full_since > seconds:
            log.warning("a client has not read its reply for %.0f s: it is given up", now - self._full_since)
            self.transport.abort()
        elif self._awaits_head():
            if now - self._since > min(HEAD_SECONDS, seconds):
                self._refuse(self._heard > self._since)
        elif self._awaits_body() and now - self._heard > seconds:
            log.warning("a client has not sent the rest of its request for %.0f s", now - self._heard)
            self._refuse(not self.cycle.response_started)

    def _awaits_head(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _awaits_body(self) -> bool:
        # Where reading is paused it is the server that lets the client wait.
        return self.cycle.more_body and not self.flow.read_paused and not self.cycle.response_complete

    def _refuse(self, tell: bool) -> None:
        if tell:
            body = encode({"error": "the request did not come to its end in time"})
            head = (
                "HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-type: application/json; charset=utf-8\r\n"
                f"content-length: {len(body)}\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()
