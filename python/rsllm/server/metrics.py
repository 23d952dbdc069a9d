"""What the server counts: requests, and for each model tokens, times and waiting.

Counting is part of every streamed token, so it is plain numbers and lists here; `exposition.py` puts them into the
words of Prometheus when somebody asks. All of it happens in the event loop.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from rsllm.runner.scheduler import QUEUE_EDGES
from rsllm.server.trace import Phase, Trace, current
from rsllm.streams import Stats

__all__ = ["Figures", "Histogram", "ModelCounts"]

# Upper edges in seconds. A person notices a first token after 0.1 s; reading speed is some 0.1 s a token.
FIRST_TOKEN_EDGES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
TOKEN_EDGES = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
REQUEST_EDGES = (0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Histogram:
    """Counts of values by upper edges, the last of them beyond all edges, and their sum."""

    def __init__(self, edges: tuple[float, ...]) -> None:
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.sum = 0.0

    def note(self, value: float, times: int = 1) -> None:
        """Count a value; one on an edge is below it.

        >>> histogram = Histogram((1.0, 2.0)); histogram.note(1.0); histogram.note(9.0, 2); histogram.counts
        [1, 0, 2]
        """
        self.counts[bisect_left(self.edges, value)] += times
        self.sum += value * times


@dataclass
class ModelCounts:
    """Of one model since the start. Times in seconds."""

    prompt_tokens: int = 0
    """Of prompts that have been read, those in the cache too."""
    cached_tokens: int = 0
    generated_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    queue: Histogram = field(default_factory=lambda: Histogram(QUEUE_EDGES))
    first_token: Histogram = field(default_factory=lambda: Histogram(FIRST_TOKEN_EDGES))
    between_tokens: Histogram = field(default_factory=lambda: Histogram(TOKEN_EDGES))


class Figures:
    """All counts, and the observer that the pool tells what happens."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str, str]] = Counter()
        """By route, model, status and outcome."""
        self.seconds: dict[str, Histogram] = {}
        """How long requests took, by route."""
        self.models: dict[str, ModelCounts] = {}

    def request(self, trace: Trace) -> None:
        """A request is over."""
        self.requests[trace.route, trace.model, str(trace.status), trace.outcome] += 1
        histogram = self.seconds.get(trace.route)
        if histogram is None:
            histogram = self.seconds[trace.route] = Histogram(REQUEST_EDGES)
        histogram.note(trace.total_seconds)

    # From the pool, in the task of the request.

    def asked(self, name: str) -> None:
        self._counts(name)
        if (trace := current()) is not None:
            trace.model = name

    def granted(self, name: str, seconds: float) -> None:
        if (trace := current()) is not None and trace.load is None:
            trace.load = _until_now("load", seconds)

    def placed(self, name: str, seconds: float) -> None:
        self._counts(name).queue.note(seconds)
        if (trace := current()) is not None and trace.queue is None:
            trace.queue = _until_now("queue", seconds)

    def computed(self, name: str, tokens: int) -> None:
        self._counts(name).prompt_tokens += tokens
        if (trace := current()) is not None:
            trace.prompt_tokens += tokens

    def begun(self, name: str, prompt_tokens: int) -> SequenceWatch:
        trace = current()
        if trace is not None and not trace.prompt_tokens:
            trace.prompt_tokens = prompt_tokens
        return SequenceWatch(self._counts(name), trace, prompt_tokens)

    def _counts(self, name: str) -> ModelCounts:
        counts = self.models.get(name)
        if counts is None:
            counts = self.models[name] = ModelCounts()
        return counts


class SequenceWatch:
    """Counts the pieces of one sequence."""

    __slots__ = ("_begun", "_counts", "_last", "_prompt_tokens", "_trace")

    def __init__(self, counts: ModelCounts, trace: Trace | None, prompt_tokens: int) -> None:
        self._counts = counts
        self._trace = trace
        self._prompt_tokens = prompt_tokens
        self._begun = time.perf_counter() if trace is None else trace.began
        self._last: float | None = None

    def piece(self, tokens: int) -> None:
        """A piece has come. One without tokens is text that was held back."""
        if not tokens:
            return
        now, counts, trace = time.perf_counter(), self._counts, self._trace
        counts.generated_tokens += tokens
        if self._last is None:
            counts.first_token.note(now - self._begun)
            counts.prompt_tokens += self._prompt_tokens
            if trace is not None and trace.first_token is None:
                trace.first_token = now
        else:
            counts.between_tokens.note((now - self._last) / tokens, tokens)
        self._last = now
        if trace is not None:
            trace.generated_tokens += tokens
            trace.last_token = now

    def ended(self, stats: Stats) -> None:
        """The engine's own figures."""
        counts = self._counts
        if self._last is None:
            counts.prompt_tokens += self._prompt_tokens
        counts.cached_tokens += stats.cached_tokens
        counts.prefill_seconds += stats.prefill_ns / 1e9
        counts.decode_seconds += stats.decode_ns / 1e9
        if self._trace is not None:
            self._trace.add(stats)


def _until_now(name: str, seconds: float) -> Phase:
    now = time.perf_counter()
    return Phase(name, now - seconds, now)
