"""One request as it is followed: who it is, when what happened to it, and what it took.

`Access` makes a trace for each request and closes it; what happens in between (the pool, the routes, the table of
errors) adds to the one of its own context. It becomes the line of the log, the counts of `/metrics`, and the spans of
OpenTelemetry. No trace ever holds what a request says.
"""

from __future__ import annotations

import contextvars
import time
from dataclasses import dataclass, field, replace
from typing import Any

from rsllm.streams import Stats

__all__ = ["CLIENT_GONE", "Phase", "Trace", "current", "follow", "leave", "request_id"]

request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="-")

CLIENT_GONE = 499
"""The status of a reply that nobody was there to get, as nginx counts it."""

_current: contextvars.ContextVar[Trace | None] = contextvars.ContextVar("trace", default=None)


@dataclass(frozen=True)
class Phase:
    """A part of a request's time, as seconds of `time.perf_counter`."""

    name: str
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.begin


@dataclass
class Trace:
    """What is known of one request."""

    id: str
    method: str
    path: str
    route: str = ""
    """The pattern that the path matched; empty where there is none."""
    model: str = ""
    """The short name of the model; empty until one is asked for that is there."""
    status: int = 0
    """Of HTTP; 0 while nothing has been sent."""
    error: str = ""
    """The class of what went wrong."""
    complete: bool = False
    """The reply was sent to its end."""
    began: float = field(default_factory=time.perf_counter)
    began_ns: int = field(default_factory=time.time_ns)
    """The same moment since 1970."""
    ended: float = 0.0
    first_token: float | None = None
    """When the first piece of the answer came from the runner."""
    last_token: float | None = None
    load: Phase | None = None
    """Waiting for the model, which may have had to be loaded."""
    queue: Phase | None = None
    """Waiting for a place among the requests that run."""
    prompt_tokens: int = 0
    generated_tokens: int = 0
    stats: Stats | None = None
    """The engine's own figures, of an answer that came to its end; set by `add`."""

    @property
    def total_seconds(self) -> float:
        """From the head of the request to the end of the reply."""
        return self.ended - self.began

    @property
    def outcome(self) -> str:
        """`ok`, `error`, or `gone` where the client did not wait."""
        if not self.complete or self.status == CLIENT_GONE:
            return "gone"
        return "error" if self.error or self.status >= 400 else "ok"

    def add(self, stats: Stats) -> None:
        """A sequence has come to its end. A request may have several: one after the other where an answer goes on
        under a constraint, or side by side where several answers are asked for. The prompt is that of the first."""
        first = self.stats
        if first is not None:
            stats = replace(
                first,
                finish_reason=stats.finish_reason,
                generated_tokens=first.generated_tokens + stats.generated_tokens,
                prefill_ns=first.prefill_ns + stats.prefill_ns,
                decode_ns=first.decode_ns + stats.decode_ns,
            )
        self.stats = stats

    def fields(self) -> dict[str, Any]:
        """The line of the log, as names and values: times in milliseconds, rates in tokens a second."""
        found: dict[str, Any] = {"outcome": self.outcome, "total_ms": _ms(self.total_seconds)}
        if self.error:
            found["error"] = self.error
        if self.model:
            found["model"] = self.model
        if self.load is not None:
            found["load_ms"] = _ms(self.load.seconds)
        if self.queue is not None:
            found["queue_ms"] = _ms(self.queue.seconds + (self.stats.queue_ns / 1e9 if self.stats else 0.0))
        if self.first_token is not None:
            found["ttft_ms"] = _ms(self.first_token - self.began)
        if self.prompt_tokens:
            found["prompt_tokens"] = self.prompt_tokens
        if self.generated_tokens:
            found["generated_tokens"] = self.generated_tokens
        if self.stats is not None:
            found |= _engine_fields(self.stats)
        return found


def current() -> Trace | None:
    """The trace of the request that this code runs for."""
    return _current.get()


def follow(trace: Trace) -> contextvars.Token[Trace | None]:
    """Make a trace the one of this context; the token is for `leave`."""
    request_id.set(trace.id)
    return _current.set(trace)


def leave(token: contextvars.Token[Trace | None]) -> None:
    """End what `follow` began."""
    _current.reset(token)
    request_id.set("-")


def _engine_fields(stats: Stats) -> dict[str, Any]:
    fresh = stats.prompt_tokens - stats.cached_tokens
    return {
        "cached_tokens": stats.cached_tokens,
        "prefill_ms": _ms(stats.prefill_ns / 1e9),
        "prefill_rate": _rate(fresh, stats.prefill_ns),
        "decode_ms": _ms(stats.decode_ns / 1e9),
        "decode_rate": _rate(stats.generated_tokens, stats.decode_ns),
        "finish": stats.finish_reason,
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 1)


def _rate(tokens: int, nanoseconds: int) -> float:
    return round(tokens / nanoseconds * 1e9, 1) if nanoseconds > 0 else 0.0
