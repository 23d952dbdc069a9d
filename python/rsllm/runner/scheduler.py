"""The state of all models: events in, effects out.

Nothing here waits, asks the time or starts a process. The pool (or a test) calls a method for what has happened, and
the scheduler calls `Effects` for what is to happen now. An effect must not call back before it has returned.

A *ticket* is one caller's wish to use one model. It waits in one queue, first come first served, until its model is
ready; from then on it *holds* the model, which stays as long as somebody holds it. To compute something it takes one of
the model's *places*, for as many tokens as it may need; these have a queue of their own in each model. So a request can
tokenise its prompt before its size is known, and tokenising never waits behind somebody's long answer.

A model goes when its keep-alive is over, when another one needs its room, when a request needs it with other options,
or when somebody says so; always once it is idle. While the head of the queue waits for room, those behind it may use
what is loaded, but load nothing, and a model that must make room takes nobody new: nobody waits for ever.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from rsllm.errors import EngineClosedError, MemoryPlanError, QueueFullError
from rsllm.runner import policy
from rsllm.runner.plan import MemoryPlan, mebibytes
from rsllm.runner.policy import FOREVER, Memory, RunnerOptions, Running, Target

__all__ = ["Effects", "Entry", "Metrics", "Phase", "Scheduler", "Settings", "Spec", "Ticket"]

# How long memory may take to come back after a model's end before a refusal is believed. Ollama waits as long.
RETURN_SECONDS = 5.0
RETURN_POLL_SECONDS = 0.1
# Upper edges of the histogram of queue times, in seconds.
QUEUE_EDGES = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)


@dataclass(frozen=True)
class Settings:
    """The rules that the environment sets."""

    max_loaded: int = policy.MODELS_A_DEVICE
    parallel: int | None = None
    """Requests that run at once in a model; `None`: as many as it has pages for."""
    max_queue: int = policy.DEFAULT_MAX_QUEUE
    keep_alive: float = policy.KEEP_ALIVE_SECONDS


@dataclass(frozen=True)
class Spec:
    """Which model, how loaded. Whatever their names, models with one `key` (the file's real path) share a runner."""

    key: str
    name: str
    options: RunnerOptions = field(default_factory=RunnerOptions)


class Phase(Enum):
    """Where a model is. What has left has no phase, and no entry."""

    PLANNING = "planning"
    WAITING = "waiting"
    """Planned, and waiting for room."""
    LOADING = "loading"
    READY = "ready"
    LEAVING = "leaving"


@dataclass(eq=False)
class Ticket:
    """One caller's use of one model."""

    spec: Spec
    keep_alive: float
    queued_at: float
    entry: Entry | None = None
    tokens: int | None = None
    """Of the place it has or waits for."""
    placed: bool = False
    over: bool = False


@dataclass(eq=False)
class Entry:
    """One model that is loaded, or on its way in or out."""

    spec: Spec
    phase: Phase
    keep_alive: float
    last_used: float
    plan: MemoryPlan | None = None
    info: dict[str, Any] = field(default_factory=dict)
    holders: set[Ticket] = field(default_factory=set)
    running: dict[Ticket, int] = field(default_factory=dict)
    queue: deque[Ticket] = field(default_factory=deque)
    has_room: bool = False
    """It has begun to load, and its process is not gone: it counts among the loaded."""
    draining: str | None = None
    """Why it takes nobody new."""
    reason: str = ""
    """Why it leaves."""

    @property
    def expires_at(self) -> float:
        """When it goes if nobody uses it until then; meaningless while somebody does."""
        return policy.expiry(self.last_used, self.keep_alive)

    @property
    def idle(self) -> bool:
        return self.phase is Phase.READY and not self.holders

    @property
    def capacity(self) -> int:
        """Tokens of KV that its sequences share."""
        return int(self.info.get("kv_tokens") or self.info.get("context") or 0)


@dataclass
class Metrics:
    """Counts since the start. Times in seconds."""

    requests: int = 0
    refused: int = 0
    """By a full queue."""
    abandoned: int = 0
    """Given up by their callers while they waited."""
    loads: int = 0
    load_failures: int = 0
    crashes: int = 0
    evictions: int = 0
    reloads: int = 0
    expirations: int = 0
    queue_seconds: float = 0.0
    queued: int = 0
    queue_histogram: list[int] = field(default_factory=lambda: [0] * (len(QUEUE_EDGES) + 1))

    def note_queue(self, seconds: float) -> None:
        self.queue_seconds += seconds
        self.queued += 1
        self.queue_histogram[sum(seconds > edge for edge in QUEUE_EDGES)] += 1


class Effects(Protocol):
    """What the scheduler has done. Keys are those of `Spec`; an entry is told apart from a later one with its key."""

    def now(self) -> float:
        """Seconds of a clock that never goes back."""
        ...

    def available_bytes(self) -> int | None:
        """Free memory, by the system's account."""
        ...

    def resident_bytes(self, entry: Entry) -> int:
        """Memory that the model's process has taken for itself."""
        ...

    def plan(self, entry: Entry) -> None:
        """Find out what the model takes; ends in `planned` or `failed`."""
        ...

    def load(self, entry: Entry) -> None:
        """Load it with the plan's context; ends in `ready` or `failed`."""
        ...

    def stop(self, entry: Entry) -> None:
        """End its process; ends in `gone`."""
        ...

    def grant(self, ticket: Ticket) -> None:
        """The ticket's model is ready and stays as long as the ticket holds it."""
        ...

    def place(self, ticket: Ticket) -> None:
        """The ticket may compute."""
        ...

    def refuse(self, ticket: Ticket, error: BaseException) -> None:
        """The ticket gets nothing; it is over."""
        ...

    def wake(self, at: float) -> None:
        """Call `tick` at this time, or soon after."""
        ...


class Scheduler:
    """Who uses which model, who waits, and what comes and goes."""

    def __init__(self, effects: Effects, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.metrics = Metrics()
        self.entries: dict[str, Entry] = {}
        self._effects = effects
        self._queue: deque[Ticket] = deque()
        self.closed = False
        self._last_gone = -FOREVER

    # Events from callers.

    def submit(self, spec: Spec, keep_alive: float | None = None) -> Ticket:
        """A caller wants a model: `grant` or `refuse` follows, perhaps before this returns."""
        keep = self.settings.keep_alive if keep_alive is None else keep_alive
        ticket = Ticket(spec, keep, self._effects.now())
        self.metrics.requests += 1
        if self.closed:
            self._refuse(ticket, EngineClosedError("the pool is closed"))
            return ticket
        self._queue.append(ticket)
        self._advance()
        if ticket in self._queue and self._is_refused():
            self._queue.remove(ticket)
            self._refuse_full(ticket)
        return ticket

    def want_place(self, ticket: Ticket, tokens: int) -> None:
        """A holder wants to compute with so many tokens: `place` or `refuse` follows, perhaps before this returns."""
        entry = ticket.entry
        assert entry is not None and not ticket.over and ticket.tokens is None, "a holder without a place"
        if entry.phase is not Phase.READY:
            self._effects.refuse(ticket, self._stopped(entry))
            return
        ticket.tokens, ticket.queued_at = tokens, self._effects.now()
        entry.queue.append(ticket)
        self._fill(entry)
        if not ticket.placed and self._is_refused():
            entry.queue.remove(ticket)
            ticket.tokens = None
            self._refuse_full(ticket)

    def leave_place(self, ticket: Ticket) -> None:
        """The ticket has computed what it wanted, or no longer wants it. It still holds its model."""
        entry = ticket.entry
        if entry is None or ticket.tokens is None:
            return
        if not ticket.placed:
            entry.queue.remove(ticket)
            self.metrics.abandoned += 1
        entry.running.pop(ticket, None)
        ticket.tokens, ticket.placed = None, False
        self._fill(entry)

    def release(self, ticket: Ticket) -> None:
        """The caller needs its model no more, or gives up waiting. Releasing twice does nothing."""
        if ticket.over:
            return
        ticket.over = True
        entry = ticket.entry
        if entry is None:
            self._queue.remove(ticket)
            self.metrics.abandoned += 1
            self._abort_unwanted()
        else:
            self.leave_place(ticket)
            entry.holders.discard(ticket)
            entry.keep_alive, entry.last_used = ticket.keep_alive, self._effects.now()
        self._advance()

    def unload(self, key: str) -> bool:
        """The model shall go as soon as it is idle. False if it is not loaded."""
        entry = self.entries.get(key)
        if entry is None or entry.phase is Phase.LEAVING:
            return False
        entry.keep_alive = 0.0
        for ticket in entry.holders:  # or their ends would set it anew
            ticket.keep_alive = 0.0
        self._advance()
        return True

    def close(self) -> None:
        """Refuse who waits and stop every model, busy or not."""
        self.closed = True
        error = EngineClosedError("the pool is closed")
        while self._queue:
            self._refuse(self._queue.popleft(), error)
        for entry in list(self.entries.values()):
            while entry.queue:
                self._refuse(entry.queue.popleft(), error)
            if entry.phase is not Phase.LEAVING:
                self._stop(entry, "closed")

    # Events from models.

    def planned(self, entry: Entry, plan: MemoryPlan | None) -> None:
        """What the model takes is known."""
        if entry.phase is Phase.PLANNING:
            entry.plan, entry.phase = plan, Phase.WAITING
            self._advance()

    def ready(self, entry: Entry, info: dict[str, Any]) -> None:
        """The model is loaded."""
        if entry.phase is not Phase.LOADING:
            return
        entry.info, entry.phase = info, Phase.READY
        entry.last_used = self._effects.now()
        self.metrics.loads += 1
        self._advance()

    def failed(self, entry: Entry, error: BaseException) -> None:
        """Planning or loading has failed, and the model's process is gone. Who waits for just that gets the error."""
        if self.entries.get(entry.spec.key) is not entry:
            return
        was_wanted = entry.phase is not Phase.LEAVING
        entry.phase = Phase.LEAVING
        del self.entries[entry.spec.key]
        self._last_gone = self._effects.now()
        if was_wanted:
            self.metrics.load_failures += 1
            for ticket in [ticket for ticket in self._queue if ticket.spec.key == entry.spec.key]:
                if ticket.spec.options == entry.spec.options:
                    self._queue.remove(ticket)
                    self._refuse(ticket, error)
        self._advance()

    def gone(self, entry: Entry, error: BaseException | None = None) -> None:
        """The model's process has ended: asked to, or, with an error, by itself. Its holders hear that from it."""
        if self.entries.get(entry.spec.key) is not entry:
            return
        del self.entries[entry.spec.key]
        self._last_gone = self._effects.now()
        self.metrics.crashes += error is not None
        entry.phase = Phase.LEAVING
        while entry.queue:
            self._refuse(entry.queue.popleft(), error or self._stopped(entry))
        self._advance()

    def tick(self) -> None:
        """The time of a `wake` has come."""
        self._advance()

    # What is, for whoever wants to know.

    @property
    def waiting(self) -> int:
        """Requests that count against the queue's limit."""
        # One for each model that is being loaded waits for that and not for somebody else.
        started = {ticket.spec.key for ticket in self._queue if ticket.spec.key in self.entries}
        loading = sum(self.entries[key].phase in (Phase.PLANNING, Phase.WAITING, Phase.LOADING) for key in started)
        return len(self._queue) - loading + sum(len(entry.queue) for entry in self.entries.values())

    def check(self) -> None:
        """The invariants, for tests."""
        for key, entry in self.entries.items():
            assert entry.spec.key == key
            assert not entry.holders or entry.phase in (Phase.READY, Phase.LEAVING)
            assert set(entry.running) <= entry.holders
            assert set(entry.queue) <= entry.holders
            assert all(ticket.placed for ticket in entry.running)
            assert not any(ticket.placed or ticket.over for ticket in entry.queue)
            if self.settings.parallel is not None:
                assert len(entry.running) <= self.settings.parallel
            # Whoever could compute does.
            assert not entry.queue or entry.running
        assert not any(ticket.over or ticket.entry for ticket in self._queue)
        loaded = sum(entry.has_room for entry in self.entries.values())
        assert loaded <= self.settings.max_loaded or self.closed

    # One round of decisions.

    def _advance(self) -> None:
        if self.closed:
            return
        for entry in self.entries.values():
            entry.draining = None
        blocked = False
        for ticket in list(self._queue):
            if ticket.over or ticket.entry is not None:
                continue
            blocked = self._serve(ticket, blocked) or blocked
        now = self._effects.now()
        for entry in list(self.entries.values()):
            if not entry.idle:
                continue
            if entry.draining is not None:
                self._stop(entry, entry.draining)
            elif entry.expires_at <= now:
                self._stop(entry, "expired")
            elif entry.expires_at < FOREVER:
                self._effects.wake(entry.expires_at)

    def _serve(self, ticket: Ticket, blocked: bool) -> bool:
        """Do what can be done for the ticket. True if no model may be loaded for those behind it."""
        key = ticket.spec.key
        entry = self.entries.get(key)
        if entry is None:
            if not blocked:
                entry = Entry(ticket.spec, Phase.PLANNING, ticket.keep_alive, self._effects.now())
                self.entries[key] = entry
                self._effects.plan(entry)
            return True  # one after the other, so that many requests for many models do not start many processes
        if entry.phase is Phase.PLANNING:
            return True
        if entry.phase is Phase.WAITING:
            return blocked or self._make_room(entry)
        if entry.phase is not Phase.READY or entry.draining is not None:
            return False
        reason = policy.reload_reason(entry.spec.options, entry.info, ticket.spec.options)
        if reason is not None:
            entry.draining = f"reload: {reason}"
            return False
        self._queue.remove(ticket)
        ticket.entry = entry
        entry.holders.add(ticket)
        entry.keep_alive, entry.last_used = ticket.keep_alive, self._effects.now()
        self.metrics.note_queue(self._effects.now() - ticket.queued_at)
        self._effects.grant(ticket)
        return False

    def _make_room(self, entry: Entry) -> bool:
        """Load a planned model if there is room, or see to it that there will be. True while it waits."""
        others = [self._running(other) for other in self.entries.values() if other.has_room]
        memory = Memory(self._effects.available_bytes(), self.settings.max_loaded)
        decision = policy.admit(Target(entry.spec.key, entry.plan), others, memory)
        if isinstance(decision, policy.Load):
            entry.phase, entry.has_room = Phase.LOADING, True
            self._effects.load(entry)
            return False
        if isinstance(decision, policy.Wait):
            for key in [*decision.stop, *decision.drain]:
                self.entries[key].draining = "evicted"
            return True
        if self._effects.now() < self._last_gone + RETURN_SECONDS:
            self._effects.wake(self._effects.now() + RETURN_POLL_SECONDS)
            return True
        self._refuse_memory(entry, decision)
        return False

    def _running(self, entry: Entry) -> Running:
        return Running(
            key=entry.spec.key,
            plan=entry.plan,
            resident_bytes=self._effects.resident_bytes(entry),
            busy=bool(entry.holders) or entry.phase is Phase.LOADING,
            leaving=entry.phase is Phase.LEAVING,
            keep_alive=entry.keep_alive,
            last_used=entry.last_used,
        )

    def _fill(self, entry: Entry) -> None:
        """Give places to who waits for one, in order."""
        while entry.queue and entry.phase is Phase.READY:
            ticket = entry.queue[0]
            assert ticket.tokens is not None, "in the queue for a place"
            if not policy.may_start(
                list(entry.running.values()), ticket.tokens, entry.capacity, self.settings.parallel
            ):
                return
            entry.queue.popleft()
            entry.running[ticket] = ticket.tokens
            ticket.placed = True
            self.metrics.note_queue(self._effects.now() - ticket.queued_at)
            self._effects.place(ticket)

    def _stop(self, entry: Entry, reason: str) -> None:
        entry.phase, entry.reason = Phase.LEAVING, reason
        self.metrics.evictions += reason == "evicted"
        self.metrics.expirations += reason == "expired"
        self.metrics.reloads += reason.startswith("reload")
        self._effects.stop(entry)

    def _abort_unwanted(self) -> None:
        """Stop loading what nobody waits for any more."""
        wanted = {ticket.spec.key for ticket in self._queue}
        for entry in list(self.entries.values()):
            unready = entry.phase in (Phase.PLANNING, Phase.WAITING, Phase.LOADING)
            if unready and entry.spec.key not in wanted:
                self._stop(entry, "unwanted")

    def _is_refused(self) -> bool:
        """Whether the request that has just come is one too many."""
        return not policy.may_wait(self.waiting - 1, self.settings.max_queue) and self.waiting > 0

    def _refuse_full(self, ticket: Ticket) -> None:
        self.metrics.refused += 1
        limit = self.settings.max_queue
        error = QueueFullError(
            f"{limit} requests wait already, as many as may", waiting=self.waiting, limit=limit, hint="try again later"
        )
        if ticket.entry is None:
            ticket.over = True
        self._effects.refuse(ticket, error)

    def _refuse_memory(self, entry: Entry, refusal: policy.Refuse) -> None:
        error = MemoryPlanError(
            f"{entry.spec.name} needs {mebibytes(refusal.needed_bytes)} of memory beside its weights, "
            f"and {mebibytes(refusal.available_bytes)} can be had",
            needed_bytes=refusal.needed_bytes,
            available_bytes=refusal.available_bytes,
            hint="ask for a smaller context (num_ctx) or a smaller KV type",
        )
        for ticket in [ticket for ticket in self._queue if ticket.spec == entry.spec]:
            self._queue.remove(ticket)
            self._refuse(ticket, error)
        self.metrics.load_failures += 1
        self._stop(entry, "too large")

    @staticmethod
    def _stopped(entry: Entry) -> EngineClosedError:
        return EngineClosedError(f"the runner of {entry.spec.name} has stopped")

    def _refuse(self, ticket: Ticket, error: BaseException) -> None:
        ticket.tokens = None
        if ticket.entry is None:
            ticket.over = True
        self._effects.refuse(ticket, error)
