"""Requests as spans of OpenTelemetry, for those who have installed `rsllm[otel]` and say where spans are to go.

OpenTelemetry's own variables decide: with OTEL_EXPORTER_OTLP_ENDPOINT (or that of traces, or OTEL_TRACES_EXPORTER)
set, each request becomes a span with the children `load`, `queue`, `prefill` and `decode`, below the span of the client
where it sends a `traceparent`. They are made from the finished trace, so they cost nothing while tokens flow. No
attribute holds what a request says. Without these variables nothing of OpenTelemetry is imported.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rsllm.config import Config
from rsllm.server.trace import Trace

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

__all__ = ["Spans", "spans_from"]

log = logging.getLogger("rsllm.server")

# What is still to be sent at the end has so long.
_END_SECONDS = 3.0
_EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"


def spans_from(settings: Config, version: str) -> Spans | None:
    """Where requests are told, if the environment asks for it; a warning where it does and nothing is installed."""
    if not settings.telemetry:
        return None
    try:
        exporter = importlib.import_module(_EXPORTER).OTLPSpanExporter()
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        log.warning("OpenTelemetry is asked for, but is not installed: pip install 'rsllm[otel]' (%s)", error)
        return None
    found = Resource.create()  # with OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
    name = str(found.attributes.get("service.name", ""))
    ours = {"service.version": version, **({"service.name": "rsllm"} if name.startswith("unknown_service") else {})}
    provider = TracerProvider(resource=found.merge(Resource(ours)))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    log.info("requests are told to OpenTelemetry")
    return Spans(provider)


class Spans:
    """Turns finished requests into spans of a provider."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("rsllm")
        self._propagator = TraceContextTextMapPropagator()

    def record(self, trace: Trace, headers: Mapping[str, str]) -> None:
        """A request that is over, with the headers that it came with."""
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        carried = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        span = self._tracer.start_span(
            f"{trace.method} {trace.route}".rstrip(),
            context=self._propagator.extract(carried),
            kind=SpanKind.SERVER,
            start_time=trace.began_ns,
            attributes=_attributes(trace),
        )
        inside = set_span_in_context(span)
        for name, begin, end in _children(trace):
            child = self._tracer.start_span(name, context=inside, start_time=_ns(trace, begin))
            child.end(_ns(trace, max(begin, end)))
        if trace.status >= 500 or (trace.error and trace.status < 400):
            span.set_status(Status(StatusCode.ERROR, trace.error))
        span.end(_ns(trace, trace.ended))

    def close(self) -> None:
        """Send what is left, for a moment: who should get it may be gone."""
        thread = threading.Thread(target=self._shut_down, name="rsllm-spans", daemon=True)
        thread.start()
        thread.join(_END_SECONDS)

    def _shut_down(self) -> None:
        with contextlib.suppress(Exception):
            self._provider.shutdown()


def _attributes(trace: Trace) -> dict[str, Any]:
    found: dict[str, Any] = {
        "http.request.method": trace.method,
        "url.path": trace.path,
        "http.response.status_code": trace.status,
        "rsllm.request_id": trace.id,
        "rsllm.outcome": trace.outcome,
    }
    if trace.route:
        found["http.route"] = trace.route
    if trace.error:
        found["error.type"] = trace.error
    if trace.model:
        found["gen_ai.request.model"] = trace.model
    if trace.prompt_tokens:
        found["gen_ai.usage.input_tokens"] = trace.prompt_tokens
    if trace.generated_tokens:
        found["gen_ai.usage.output_tokens"] = trace.generated_tokens
    if trace.stats is not None:
        found["rsllm.cached_tokens"] = trace.stats.cached_tokens
        found["gen_ai.response.finish_reasons"] = [trace.stats.finish_reason]
    return found


def _children(trace: Trace) -> Iterator[tuple[str, float, float]]:
    """Name, begin and end of the parts of a request. The engine's own queue counts as waiting."""
    if trace.load is not None:
        yield "load", trace.load.begin, trace.load.end
    if trace.queue is None:
        return
    waited = trace.queue.end + (trace.stats.queue_ns / 1e9 if trace.stats is not None else 0.0)
    yield "queue", trace.queue.begin, waited
    if trace.first_token is not None:
        yield "prefill", waited, trace.first_token
        yield "decode", trace.first_token, trace.last_token or trace.first_token


def _ns(trace: Trace, moment: float) -> int:
    """A moment of the trace since 1970."""
    return trace.began_ns + int((moment - trace.began) * 1e9)
