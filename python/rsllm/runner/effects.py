"""What the scheduler wants done, done with processes and tasks of one event loop."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from rsllm.errors import RsllmError
from rsllm.runner.child import Child
from rsllm.runner.plan import MemoryPlan
from rsllm.runner.process import Limits, RunnerProcess, State
from rsllm.runner.scheduler import Entry, Phase, Scheduler, Ticket

__all__ = ["ModelFigures", "ModelStatus", "ProcessEffects"]

_log = logging.getLogger("rsllm.runner")


@dataclass(frozen=True)
class ModelStatus:
    """One model, as `ps` and the metrics show it."""

    name: str
    path: str
    phase: Phase
    pid: int | None
    plan: MemoryPlan | None
    info: dict[str, Any]
    requests: int
    """That hold it."""
    running: int
    queued: int
    expires_in: float
    """Seconds until it goes if nobody uses it; infinite for never."""
    own_bytes: int
    """Memory of its own that its process has now."""


@dataclass(frozen=True)
class ModelFigures:
    """What a loaded model's own process says of itself."""

    name: str
    engine: dict[str, Any]
    """`Engine.metrics()`."""
    process: dict[str, Any]
    """`rsllm.system.process_figures()`."""


class ProcessEffects:
    """What the scheduler wants done, done with processes and tasks."""

    scheduler: Scheduler

    def __init__(self, limits: Limits, command: tuple[str, ...], available_bytes: Callable[[], int | None]) -> None:
        self.available_bytes = available_bytes
        self._limits = limits
        self._command = command
        self._processes: dict[Entry, RunnerProcess] = {}
        self._answers: dict[Ticket, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._alarm: asyncio.TimerHandle | None = None
        self._spare: Child | None = None

    def prepare(self) -> None:
        """Start a process before anybody asks for a model; the first one that is loaded gets it."""

        async def start() -> None:
            child = Child("spare")
            await child.spawn(self._command, self._limits.memory_bytes)
            self._spare = child

        self._do(start())

    def _take_spare(self) -> Child | None:
        """The process that was started ahead, if it still lives."""
        spare, self._spare = self._spare, None
        if spare is not None and spare.pid is None:
            self._do(_reaped(spare))
            return None
        return spare

    async def answer(self, ticket: Ticket) -> None:
        """Wait until the ticket's wish is granted; raises where it is refused."""
        try:
            await self._answer(ticket)
        finally:
            self._answers.pop(ticket, None)

    def process(self, entry: Entry) -> RunnerProcess:
        return self._processes[entry]

    def status(self, entry: Entry) -> ModelStatus:
        process = self._processes.get(entry)
        return ModelStatus(
            name=entry.spec.name,
            path=entry.spec.key,
            phase=entry.phase,
            pid=process.pid if process is not None else None,
            plan=entry.plan,
            info=entry.info,
            requests=len(entry.holders),
            running=len(entry.running),
            queued=len(entry.queue),
            expires_in=max(0.0, (self.now() + entry.keep_alive if entry.holders else entry.expires_at) - self.now()),
            own_bytes=self.resident_bytes(entry),
        )

    async def figures(self, entry: Entry, timeout: float) -> ModelFigures | None:
        try:
            async with asyncio.timeout(timeout):
                said = await self._processes[entry].stats()
            return ModelFigures(entry.spec.name, dict(said["metrics"]), dict(said["process"]))
        except (RsllmError, TimeoutError, KeyError, TypeError, ValueError):
            return None

    async def finish(self) -> None:
        """Wait until everything has been stopped."""
        if self._alarm is not None:
            self._alarm.cancel()
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        if self._spare is not None:
            await _reaped(self._spare)
            self._spare = None
        await asyncio.gather(*(process.stop() for process in self._processes.values()))
        self._processes.clear()

    # Effects.

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def resident_bytes(self, entry: Entry) -> int:
        process = self._processes.get(entry)
        return process.anonymous_bytes() if process is not None else 0

    def plan(self, entry: Entry) -> None:
        process = RunnerProcess(
            entry.spec.name,
            entry.spec.key,
            entry.spec.options.given(),
            limits=self._limits,
            command=self._command,
            on_exit=lambda process: self._ended(entry, process),
            spare=self._take_spare,
        )
        self._processes[entry] = process
        self._do(self._plan(entry, process))

    def load(self, entry: Entry) -> None:
        _log.debug("%s is loaded, with %s", entry.spec.name, entry.plan)
        self._do(self._load(entry, self._processes[entry]))

    def stop(self, entry: Entry) -> None:
        _log.debug("%s is stopped", entry.spec.name)
        self._do(self._stop(entry, self._processes[entry]))

    def grant(self, ticket: Ticket) -> None:
        self._settle(ticket, None)

    def place(self, ticket: Ticket) -> None:
        self._settle(ticket, None)

    def refuse(self, ticket: Ticket, error: BaseException) -> None:
        self._settle(ticket, copy.copy(error))

    def wake(self, at: float) -> None:
        if self._alarm is not None and self._alarm.when() <= at and not self._alarm.cancelled():
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = asyncio.get_running_loop().call_at(at, self._ring)

    # How.

    async def _plan(self, entry: Entry, process: RunnerProcess) -> None:
        try:
            plan = await process.plan()
        except Exception as error:
            await self._fail(entry, process, error)
        else:
            self.scheduler.planned(entry, plan)

    async def _load(self, entry: Entry, process: RunnerProcess) -> None:
        options = entry.spec.options.given()
        if entry.plan is not None:
            options["context"] = entry.plan.context  # or free memory, which changes, might decide otherwise now
        try:
            info = await process.ensure_ready(options)
        except Exception as error:
            await self._fail(entry, process, error)
        else:
            reason = {} if entry.plan is None else {"context_reason": entry.plan.context_reason}
            self.scheduler.ready(entry, {**info, **reason})

    async def _fail(self, entry: Entry, process: RunnerProcess, error: Exception) -> None:
        await process.stop()
        self._processes.pop(entry, None)
        self.scheduler.failed(entry, error)

    async def _stop(self, entry: Entry, process: RunnerProcess) -> None:
        await process.stop()
        self._processes.pop(entry, None)
        self.scheduler.gone(entry)

    def _ended(self, entry: Entry, process: RunnerProcess) -> None:
        """A process has ended. One that was asked to, or never got ready, is somebody's task already."""
        if process.state is State.FAILED and entry.phase is Phase.READY:
            self._processes.pop(entry, None)
            self.scheduler.gone(entry, process.last_error)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _ring(self) -> None:
        self._alarm = None
        self.scheduler.tick()

    def _answer(self, ticket: Ticket) -> asyncio.Future[None]:
        if ticket not in self._answers:
            future = self._answers[ticket] = asyncio.get_running_loop().create_future()
            # A caller that is cancelled in the same moment does not fetch it.
            future.add_done_callback(lambda future: future.cancelled() or future.exception())
        return self._answers[ticket]

    def _settle(self, ticket: Ticket, error: BaseException | None) -> None:
        future = self._answer(ticket)
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


async def _reaped(child: Child) -> None:
    child.kill()
    await child.reap()
