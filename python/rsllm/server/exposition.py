"""`/metrics`: the counts of this server as Prometheus reads them.

The figures lie elsewhere (`metrics.py`, the pool, the runners' own processes); here they get names, help and labels,
and prometheus_client, which is imported with the first request for them, writes them down. Its registry is one of our
own, so that nothing another library registers shows up. Every name begins with `rsllm_`, but for those of the server's
own process (`process_…`), which have theirs everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rsllm.runner.pool import ModelFigures, ModelStatus, PoolMetrics
from rsllm.runner.scheduler import QUEUE_EDGES
from rsllm.server.metrics import Figures, Histogram

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["Snapshot", "exposition"]

_COUNTS = {
    "refused": "Requests refused because the queue was full.",
    "abandoned": "Requests given up by their clients while they waited.",
    "loads": "Models loaded.",
    "load_failures": "Models that could not be loaded.",
    "crashes": "Runners that ended by themselves.",
    "evictions": "Models unloaded to make room for another one.",
    "reloads": "Models loaded anew, with other options.",
    "expirations": "Models unloaded because nobody had used them for long enough.",
}
_ENGINE_COUNTS = {
    "steps": "Steps of the engine.",
    "preempted": "Sequences that had to give their pages to others and began anew.",
    "drafted_tokens": "Tokens guessed ahead.",
    "accepted_tokens": "Guessed tokens that came true.",
}


@dataclass(frozen=True)
class Snapshot:
    """Everything that is shown, as it is at one moment."""

    version: str
    figures: Figures
    pool: PoolMetrics
    models: Sequence[ModelStatus]
    runners: Sequence[ModelFigures]
    active: int
    """Requests that are being answered."""
    ready: bool
    tasks: int
    """Of the event loop."""


def exposition(snapshot: Snapshot, accept: str) -> tuple[bytes, str]:
    """The text, and its content type: Prometheus' own format, or OpenMetrics where `accept` prefers that."""
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.registry import Collector

    class Ours(Collector):
        def collect(self) -> Iterable[Metric]:
            return _families(snapshot)

    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(Ours())
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def _families(snapshot: Snapshot) -> Iterator[Metric]:
    yield _gauge("rsllm_build_info", "The version of rsllm.", ["version"], {(snapshot.version,): 1})
    yield _gauge("rsllm_ready", "Whether the server takes requests.", [], {(): int(snapshot.ready)})
    yield _gauge("rsllm_tasks", "Tasks of the server's event loop.", [], {(): snapshot.tasks})
    yield from _requests(snapshot)
    yield from _tokens(snapshot)
    yield from _pool(snapshot)
    yield from _runners(snapshot)


def _requests(snapshot: Snapshot) -> Iterator[Metric]:
    labels = ["route", "model", "status", "outcome"]
    yield _counter("rsllm_requests", "Requests answered.", labels, snapshot.figures.requests)
    yield _gauge("rsllm_requests_active", "Requests that are being answered.", [], {(): snapshot.active})
    by_route = {(route,): histogram for route, histogram in snapshot.figures.seconds.items()}
    yield _histogram("rsllm_request_seconds", "From a request to the end of its reply.", ["route"], by_route)


def _tokens(snapshot: Snapshot) -> Iterator[Metric]:
    models = snapshot.figures.models
    for name, unit, text in (
        ("prompt_tokens", "", "Tokens of prompts, those in the cache too."),
        ("cached_tokens", "", "Tokens of prompts that were in the cache."),
        ("generated_tokens", "", "Tokens generated."),
        ("prefill_seconds", "seconds", "Time spent on prompts."),
        ("decode_seconds", "seconds", "Time spent on generating."),
    ):
        values = {(model,): getattr(counts, name) for model, counts in models.items()}
        yield _counter(f"rsllm_{name}", text, ["model"], values, unit)
    for attribute, name, text in (
        ("queue", "rsllm_queue_seconds", "Waiting for a place among the requests that run."),
        ("first_token", "rsllm_time_to_first_token_seconds", "From a request to its first token."),
        ("between_tokens", "rsllm_inter_token_seconds", "From one token of an answer to the next."),
    ):
        histograms = {(model,): getattr(counts, attribute) for model, counts in models.items()}
        yield _histogram(name, text, ["model"], histograms)


def _pool(snapshot: Snapshot) -> Iterator[Metric]:
    pool = snapshot.pool
    yield _gauge("rsllm_requests_waiting", "Requests that wait, for a model or for a place.", [], {(): pool.waiting})
    yield _gauge("rsllm_models_loaded", "Models that are loaded.", [], {(): pool.loaded})
    waits = Histogram(QUEUE_EDGES)
    waits.counts, waits.sum = list(pool.counts.queue_histogram), pool.counts.queue_seconds
    yield _histogram("rsllm_wait_seconds", "Waiting for models and for places.", [], {(): waits})
    for name, text in _COUNTS.items():
        yield _counter(f"rsllm_{name}", text, [], {(): getattr(pool.counts, name)})
    for attribute, name, text in (
        ("requests", "rsllm_model_requests", "Requests that hold a model."),
        ("running", "rsllm_model_requests_running", "Those of them that it computes."),
        ("queued", "rsllm_model_requests_queued", "Those of them that wait for a place."),
    ):
        values = {(status.name,): getattr(status, attribute) for status in snapshot.models}
        yield _gauge(name, text, ["model"], values)
    phases = {(status.name, status.phase.value): 1 for status in snapshot.models}
    yield _gauge("rsllm_model_phase", "Where a model is: the phase that it is in.", ["model", "phase"], phases)


def _runners(snapshot: Snapshot) -> Iterator[Metric]:
    engines = {(runner.name,): runner.engine for runner in snapshot.runners}
    processes = {(runner.name,): runner.process for runner in snapshot.runners}
    pages = {}
    for (name,), engine in engines.items():
        pages[name, "free"], pages[name, "cached"] = engine["pages_free"], engine["pages_cached"]
        pages[name, "used"] = engine["pages"] - engine["pages_free"] - engine["pages_cached"]
    text = "Pages of the KV cache: used by what runs, kept for prompts to come, or free."
    yield _gauge("rsllm_kv_pages", text, ["model", "state"], pages)
    for name, text in _ENGINE_COUNTS.items():
        values = {labels: engine[name] for labels, engine in engines.items() if name in engine}
        yield _counter(f"rsllm_engine_{name}", text, ["model"], values)
    sizes = {
        (*labels, "any" if most is None else str(most)): steps
        for labels, engine in engines.items()
        for most, steps in engine.get("batch_sizes", ())
    }
    text = "Steps of the engine, by how many sequences they advanced at most."
    yield _counter("rsllm_engine_batches", text, ["model", "sequences"], sizes)
    cpu = {labels: process["cpu_seconds"] for labels, process in processes.items() if "cpu_seconds" in process}
    yield _counter("rsllm_runner_cpu_seconds", "Processor time of a model's process.", ["model"], cpu, "seconds")
    memory = {
        (*labels, kind): process[f"{kind}_bytes"]
        for labels, process in processes.items()
        for kind in ("resident", "own")
        if f"{kind}_bytes" in process
    }
    text = "Memory of a model's process: resident, with the pages of mapped files, and of its own, without."
    yield _gauge("rsllm_runner_memory_bytes", text, ["model", "kind"], memory)
    on_devices = {
        (*labels, str(device)): taken
        for labels, engine in engines.items()
        for device, taken in (engine.get("device_bytes") or {}).items()
    }
    if on_devices:
        text = "Memory that a model takes of a device which has its own."
        yield _gauge("rsllm_runner_device_memory_bytes", text, ["model", "device"], on_devices)


Values = Mapping[Any, float]


def _counter(name: str, text: str, labels: list[str], values: Values, unit: str = "") -> Metric:
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily(name, text, labels=labels, unit=unit)
    for key, value in sorted(values.items()):
        family.add_metric(key, value)
    return family


def _gauge(name: str, text: str, labels: list[str], values: Values) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in sorted(values.items()):
        family.add_metric(key, value)
    return family


def _histogram(name: str, text: str, labels: list[str], values: Mapping[Any, Histogram]) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(name, text, labels=labels)
    for key, histogram in sorted(values.items(), key=lambda item: item[0]):
        below, buckets = 0, []
        for edge, count in zip([*map(str, histogram.edges), "+Inf"], histogram.counts, strict=True):
            below += count
            buckets.append((edge, below))
        family.add_metric(key, buckets, histogram.sum)
    return family
