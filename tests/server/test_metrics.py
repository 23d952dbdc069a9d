"""What the server counts, and how `/metrics` says it."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from rsllm.server.metrics import Figures, Histogram
from rsllm.server.trace import Trace
from rsllm.streams import Stats
from tests.server.conftest import Bench, asking

BODY = {"model": "tiny", "prompt": "hi", "stream": False}
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def samples(client: httpx2.AsyncClient) -> Samples:
    """Every sample of `/metrics`, by name and labels."""
    response = await client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    families = list(text_string_to_metric_families(response.text))
    assert all(family.documentation for family in families)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def of(found: Samples, name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


async def test_everything_is_there_after_an_answer(client: httpx2.AsyncClient) -> None:
    """OBS-01."""
    assert (await client.post("/api/generate", json=BODY)).status_code == 200
    found = await samples(client)
    tiny = {"model": "tiny:latest"}
    labels = {"route": "/api/generate", **tiny, "status": "200", "outcome": "ok"}
    assert of(found, "rsllm_requests_total", **labels) == 1
    assert of(found, "rsllm_prompt_tokens_total", **tiny) > 2
    assert of(found, "rsllm_generated_tokens_total", **tiny) == 4
    assert of(found, "rsllm_cached_tokens_total", **tiny) == 0
    assert of(found, "rsllm_prefill_seconds_total", **tiny) == pytest.approx(1e-9)
    assert of(found, "rsllm_time_to_first_token_seconds_count", **tiny) == 1
    assert 0 < of(found, "rsllm_time_to_first_token_seconds_sum", **tiny) < 60
    assert of(found, "rsllm_queue_seconds_count", **tiny) == 1
    assert of(found, "rsllm_wait_seconds_count") == 2
    assert of(found, "rsllm_models_loaded") == 1
    assert of(found, "rsllm_model_phase", **tiny, phase="ready") == 1
    assert of(found, "rsllm_model_requests_running", **tiny) == 0
    assert of(found, "rsllm_requests_waiting") == 0
    assert of(found, "rsllm_requests_active") == 1
    assert of(found, "rsllm_ready") == 1
    assert of(found, "rsllm_tasks") >= 1
    assert of(found, "rsllm_model_requests", **tiny) == 0
    assert of(found, "rsllm_loads_total") == 1
    assert of(found, "rsllm_runner_cpu_seconds_total", **tiny) > 0
    assert of(found, "rsllm_runner_memory_bytes", **tiny, kind="resident") > 1 << 20
    assert of(found, "rsllm_runner_memory_bytes", **tiny, kind="own") > 1 << 20
    pages = [of(found, "rsllm_kv_pages", **tiny, state=state) for state in ("used", "cached", "free")]
    assert pages == [0, 1, 4095]
    assert of(found, "rsllm_engine_batches_total", **tiny, sequences="1") == 3
    assert of(found, "rsllm_engine_batches_total", **tiny, sequences="any") == 2
    assert of(found, "rsllm_request_seconds_count", route="/api/generate") == 1
    assert ("process_cpu_seconds_total", frozenset()) in found
    assert not [name for name, _ in found if "device" in name or "gpu" in name], "there is none"


async def test_memory_of_devices_where_there_are_any(
    client: httpx2.AsyncClient, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.post("/api/generate", json=BODY)
    [figures] = await bench.pool.figures(5.0)
    engine = {**figures.engine, "device_bytes": {"cuda:0": 3_000_000}}

    async def told(seconds: float) -> list[Any]:
        return [replace(figures, engine=engine)]

    monkeypatch.setattr(bench.pool, "figures", told)
    found = await samples(client)
    assert of(found, "rsllm_runner_device_memory_bytes", model="tiny:latest", device="cuda:0") == 3_000_000


async def test_names_of_models_that_are_not_there_make_no_series(client: httpx2.AsyncClient) -> None:
    for name in ("one", "two"):
        assert (await client.post("/api/generate", json={"model": name, "prompt": "x"})).status_code == 404
    await client.get("/no/such/path")
    found = await samples(client)
    labels = {"route": "/api/generate", "model": "", "status": "404", "outcome": "error"}
    assert of(found, "rsllm_requests_total", **labels) == 2
    assert of(found, "rsllm_requests_total", route="", model="", status="404", outcome="error") == 1
    assert not [labels for _, labels in found if ("model", "one:latest") in labels]


async def test_failures_are_counted(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    bench.add("breaks", {"crash_after": 1, "delay": 0.05})
    bench.add("never", {"load_error": "no"})
    async with bench.pool, asking(bench) as client:
        late = await client.post("/api/generate", json={"model": "breaks", "prompt": "x"})
        assert late.status_code == 200
        assert "error" in late.text
        await client.post("/api/generate", json={"model": "never", "prompt": "x"})
        found = await samples(client)
    labels = {"route": "/api/generate", "model": "breaks:latest", "status": "200", "outcome": "error"}
    assert of(found, "rsllm_requests_total", **labels) == 1
    assert of(found, "rsllm_crashes_total") == 1
    assert of(found, "rsllm_load_failures_total") == 1
    assert of(found, "rsllm_requests_total", **{**labels, "model": "never:latest", "status": "500"}) == 1


async def test_a_runner_that_does_not_answer_is_left_out_in_time(client: httpx2.AsyncClient, bench: Bench) -> None:
    await client.post("/api/generate", json=BODY)
    (status,) = bench.pool.status()
    assert status.pid is not None
    os.kill(status.pid, signal.SIGSTOP)
    found = await samples(client)
    assert ("rsllm_runner_cpu_seconds_total", frozenset({("model", "tiny:latest")})) not in found
    assert of(found, "rsllm_model_phase", model="tiny:latest", phase="ready") == 1
    os.kill(status.pid, signal.SIGCONT)
    assert of(await samples(client), "rsllm_runner_cpu_seconds_total", model="tiny:latest") > 0


async def test_embeddings_count_their_tokens(client: httpx2.AsyncClient) -> None:
    assert (await client.post("/api/embed", json={"model": "tiny", "input": ["abc", "de"]})).status_code == 200
    found = await samples(client)
    assert of(found, "rsllm_prompt_tokens_total", model="tiny:latest") == 5
    assert of(found, "rsllm_generated_tokens_total", model="tiny:latest") == 0


async def test_open_metrics_where_that_is_asked_for(client: httpx2.AsyncClient) -> None:
    response = await client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert response.text.endswith("# EOF\n")


async def test_the_key_guards_the_counts(make_bench: Callable[..., Bench]) -> None:
    async with asking(make_bench(environment={"RSLLM_API_KEY": "secret"})) as client:
        assert (await client.get("/metrics")).status_code == 401


def test_pieces_of_a_sequence() -> None:
    figures = Figures()
    watch = figures.begun("m", 10)
    for tokens in (1, 2, 0, 3):
        watch.piece(tokens)
    counts = figures.models["m"]
    assert (counts.prompt_tokens, counts.generated_tokens) == (10, 6)
    assert sum(counts.first_token.counts) == 1
    assert sum(counts.between_tokens.counts) == 5, "each token but those of the first piece"
    watch.ended(Stats.from_core({"finish_reason": "stop", "cached_tokens": 4, "decode_ns": 2 * 10**9}))
    assert (counts.prompt_tokens, counts.cached_tokens, counts.decode_seconds) == (10, 4, 2.0)


async def test_several_answers_are_one_request(client: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "n": 3}
    with caplog.at_level(logging.INFO, logger="rsllm.server"):
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
    (line,) = [entry for entry in caplog.records if entry.getMessage().startswith("POST /v1/chat/completions")]
    fields = line.fields  # type: ignore[attr-defined]
    assert fields["generated_tokens"] == 12
    found = await samples(client)
    assert of(found, "rsllm_generated_tokens_total", model="tiny:latest") == 12
    assert of(found, "rsllm_prompt_tokens_total", model="tiny:latest") == 3 * fields["prompt_tokens"]


def test_a_request_of_two_sequences_says_what_both_took() -> None:
    trace = Trace("id", "POST", "/")
    first = {"finish_reason": "stop", "prompt_tokens": 10, "cached_tokens": 2, "prefill_ns": 5, "decode_ns": 7}
    trace.add(Stats.from_core({**first, "generated_tokens": 3}))
    trace.add(Stats.from_core({**first, "finish_reason": "length", "prompt_tokens": 13, "generated_tokens": 4}))
    assert trace.stats is not None
    stats = trace.stats
    assert (stats.prompt_tokens, stats.cached_tokens, stats.generated_tokens) == (10, 2, 7)
    assert (stats.prefill_ns, stats.decode_ns, stats.finish_reason) == (10, 14, "length")


def test_an_answer_without_a_token_has_read_its_prompt() -> None:
    figures = Figures()
    figures.begun("m", 10).ended(Stats.from_core({"finish_reason": "stop"}))
    figures.begun("m", 10)  # cancelled before anything came
    assert figures.models["m"].prompt_tokens == 10


def test_values_on_and_beyond_the_edges() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.0, 0.1, 0.5, 1.0, 2.0):
        histogram.note(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.sum == pytest.approx(3.6)


def test_what_a_trace_says() -> None:
    trace = Trace("id", "POST", "/api/chat", began=1.0)
    trace.ended, trace.status, trace.complete = 1.5, 200, True
    trace.model, trace.first_token, trace.prompt_tokens, trace.generated_tokens = "m", 1.1, 30, 20
    trace.stats = Stats.from_core(
        {"finish_reason": "length", "prompt_tokens": 30, "cached_tokens": 10, "generated_tokens": 20}
        | {"queue_ns": 10**6, "prefill_ns": 10**8, "decode_ns": 2 * 10**8}
    )
    assert trace.fields() == {
        "outcome": "ok",
        "total_ms": 500.0,
        "model": "m",
        "ttft_ms": 100.0,
        "prompt_tokens": 30,
        "generated_tokens": 20,
        "cached_tokens": 10,
        "prefill_ms": 100.0,
        "prefill_rate": 200.0,
        "decode_ms": 200.0,
        "decode_rate": 100.0,
        "finish": "length",
    }
    trace.complete = False
    assert trace.outcome == "gone"


def test_the_server_imports_prometheus_only_when_asked() -> None:
    code = "import sys, rsllm.server.main; assert 'prometheus_client' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
