"""Requests as spans of OpenTelemetry."""

from __future__ import annotations

import importlib
import itertools
import logging
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rsllm.config import Config
from rsllm.server import spans as module
from rsllm.server.app import create_app
from rsllm.server.spans import Spans, spans_from
from tests.server.conftest import Bench, asking

BODY = {"model": "tiny", "prompt": "a secret plan", "stream": False}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def told(bench: Bench) -> InMemorySpanExporter:
    """What becomes of the requests of the bench."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    bench.app = create_app(bench.services, spans=Spans(provider))
    return exporter


def by_name(told: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in told.get_finished_spans()}


async def test_a_request_is_a_span_with_its_parts(bench: Bench, told: InMemorySpanExporter) -> None:
    async with asking(bench) as client:
        response = await client.post("/api/generate", json=BODY, headers={"traceparent": PARENT, "x-request-id": "me"})
    spans = by_name(told)
    assert response.status_code == 200
    assert spans.keys() == {"POST /api/generate", "load", "queue", "prefill", "decode"}
    request = spans["POST /api/generate"]
    assert request.parent is not None and request.context is not None and request.attributes is not None
    assert f"{request.parent.span_id:016x}" == PARENT.split("-")[2]
    assert f"{request.context.trace_id:032x}" == PARENT.split("-")[1]
    assert dict(request.attributes) == {
        "http.request.method": "POST",
        "url.path": "/api/generate",
        "http.route": "/api/generate",
        "http.response.status_code": 200,
        "rsllm.request_id": "me",
        "rsllm.outcome": "ok",
        "rsllm.cached_tokens": 0,
        "gen_ai.request.model": "tiny:latest",
        "gen_ai.usage.input_tokens": response.json()["prompt_eval_count"],
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.response.finish_reasons": ("stop",),
    }
    assert "secret" not in "".join(span.to_json() for span in spans.values())
    order = [spans[name] for name in ("load", "queue", "prefill", "decode")]
    for span in order:
        assert span.parent is not None and span.parent.span_id == request.context.span_id
        assert request.start_time <= span.start_time <= span.end_time <= request.end_time  # type: ignore[operator]
    for before, after in itertools.pairwise(order):
        assert before.end_time <= after.start_time + 1_000_000  # type: ignore[operator]


async def test_failures_are_told_as_such_and_mistakes_of_clients_are_not(
    bench: Bench, told: InMemorySpanExporter
) -> None:
    bench.add("never", {"load_error": "no"})
    async with asking(bench) as client:
        await client.post("/api/generate", json={"model": "never", "prompt": "x"})
        await client.get("/api/nosuch")
        await client.get("/healthz")
    failed, missing = told.get_finished_spans()
    assert (failed.name, failed.status.is_ok, failed.status.description) == ("POST /api/generate", False, "ModelError")
    assert (missing.name, missing.status.is_unset) == ("GET", True)


async def test_a_reply_that_ends_in_an_error_is_a_failure(bench: Bench, told: InMemorySpanExporter) -> None:
    bench.add("breaks", {"crash_after": 1, "delay": 0.05})
    async with asking(bench) as client:
        await client.post("/api/generate", json={"model": "breaks", "prompt": "x"})
    assert not by_name(told)["POST /api/generate"].status.is_ok


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "x"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, False),
    ],
)
def test_the_variables_decide(environment: dict[str, str], wanted: bool) -> None:
    assert Config.from_environment({"HOME": "/h", **environment}).telemetry is wanted


async def test_where_spans_go_is_open_telemetrys_business(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the exporter that the extra brings replaced, since tests do not need it."""
    exporter = InMemorySpanExporter()
    fake = SimpleNamespace(OTLPSpanExporter=lambda: exporter)
    monkeypatch.setattr(module.importlib, "import_module", lambda name: fake)
    bench = make_bench(environment={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"})
    spans = spans_from(bench.config, "1.2.3")
    assert spans is not None
    bench.app = create_app(bench.services, spans=spans)
    async with asking(bench) as client:
        await client.get("/api/version")
    spans.close()
    (span,) = exporter.get_finished_spans()
    assert (span.resource.attributes["service.name"], span.resource.attributes["service.version"]) == ("rsllm", "1.2.3")


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with caplog.at_level(logging.WARNING):
        assert spans_from(Config.from_environment({"HOME": "/h", "OTEL_TRACES_EXPORTER": "otlp"}), "1") is None
    assert "pip install 'rsllm[otel]'" in caplog.text


def test_nothing_is_imported_unless_it_is_asked_for() -> None:
    code = (
        "import sys; from rsllm.config import Config; from rsllm.server.main import spans_from\n"
        "assert spans_from(Config.from_environment({'HOME': '/h'}), '1') is None\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


async def test_a_parent_that_is_none_is_no_reason_to_fail(bench: Bench, told: InMemorySpanExporter) -> None:
    async with asking(bench) as client:
        response = await client.get("/api/version", headers={"traceparent": "nonsense"})
    assert response.status_code == 200
    assert by_name(told)["GET /api/version"].parent is None
