"""A scheduler of the runner with fake effects, and the moves that tests make with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rsllm.runner.plan import MemoryPlan
from rsllm.runner.policy import FOREVER, RunnerOptions
from rsllm.runner.scheduler import Entry, Scheduler, Settings, Spec, Ticket

MB = 10**6


@dataclass
class FakeEffects:
    """Notes what it is told to do; the tests say when it is done."""

    time: float = 0.0
    available: int | None = 10**12
    log: list[str] = field(default_factory=list)
    granted: list[Ticket] = field(default_factory=list)
    placed: list[Ticket] = field(default_factory=list)
    refused: dict[Ticket, BaseException] = field(default_factory=dict)
    planning: list[Entry] = field(default_factory=list)
    loading: list[Entry] = field(default_factory=list)
    stopping: list[Entry] = field(default_factory=list)
    alarm: float = FOREVER
    grown: dict[str, int] = field(default_factory=dict)

    def now(self) -> float:
        return self.time

    def available_bytes(self) -> int | None:
        return self.available

    def resident_bytes(self, entry: Entry) -> int:
        return self.grown.get(entry.spec.key, 0)

    def plan(self, entry: Entry) -> None:
        self.log.append(f"plan {entry.spec.key}")
        self.planning.append(entry)

    def load(self, entry: Entry) -> None:
        self.log.append(f"load {entry.spec.key}")
        self.loading.append(entry)

    def stop(self, entry: Entry) -> None:
        self.log.append(f"stop {entry.spec.key}: {entry.reason}")
        for group in (self.planning, self.loading):
            if entry in group:
                group.remove(entry)
        self.stopping.append(entry)

    def grant(self, ticket: Ticket) -> None:
        self.log.append(f"grant {ticket.spec.key}")
        self.granted.append(ticket)

    def place(self, ticket: Ticket) -> None:
        self.log.append(f"place {ticket.spec.key}")
        self.placed.append(ticket)

    def refuse(self, ticket: Ticket, error: BaseException) -> None:
        self.log.append(f"refuse {ticket.spec.key}: {type(error).__name__}")
        self.refused[ticket] = error

    def wake(self, at: float) -> None:
        self.alarm = min(self.alarm, at)


def spec(key: str, **options: Any) -> Spec:
    return Spec(key, f"{key}:latest", RunnerOptions(**options))


class World:
    """A scheduler, its effects, and the moves that tests make."""

    def __init__(self, **settings: Any) -> None:
        self.effects = FakeEffects()
        self.scheduler = Scheduler(self.effects, Settings(**settings))
        self.own = 10 * MB

    @property
    def log(self) -> list[str]:
        """What has happened since the last look."""
        self.scheduler.check()
        log, self.effects.log = self.effects.log, []
        return log

    def plan_all(self) -> None:
        while self.effects.planning:
            entry = self.effects.planning.pop(0)
            context = entry.spec.options.context or 4096
            self.scheduler.planned(entry, MemoryPlan(context, "r", 4096, 10 * MB, self.own, 0))

    def load_all(self) -> None:
        self.plan_all()
        while self.effects.loading:
            entry = self.effects.loading.pop(0)
            assert entry.plan is not None
            info = {"context": entry.plan.context, "training_context": 4096, "threads": 2, "kv_type": "f16"}
            self.scheduler.ready(entry, info)
            self.plan_all()

    def stop_all(self) -> None:
        while self.effects.stopping:
            self.scheduler.gone(self.effects.stopping.pop(0))

    def settle(self) -> None:
        while self.effects.planning or self.effects.loading or self.effects.stopping:
            self.load_all()
            self.stop_all()

    def use(self, key: str, keep_alive: float | None = None, **options: Any) -> Ticket:
        """A ticket whose model is ready."""
        ticket = self.scheduler.submit(spec(key, **options), keep_alive)
        self.settle()
        assert ticket in self.effects.granted
        return ticket

    def pass_time(self, seconds: float) -> None:
        """Let time pass, with the wakes that were asked for."""
        until = self.effects.time + seconds
        while self.effects.alarm <= until:
            self.effects.time, self.effects.alarm = max(self.effects.time, self.effects.alarm), FOREVER
            self.scheduler.tick()
        self.effects.time = until
