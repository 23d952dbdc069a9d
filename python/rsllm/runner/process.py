"""One child process seen from the parent.

States::

    Stopped ──► Starting ──► Ready ──► Stopping ──► Stopped
                   │           │
                   └───────────┴──► Failed            (left by the next `ensure_ready`, as Stopped is)

One task, the *supervisor*, is the only writer of the state: it starts the child, reads its frames, notices its end and
says so to everybody who waits. Callers ask (`ensure_ready`, `generate`, `call`, `stop`) and await; none of them changes
the state. When the child ends unasked, everybody with an open request gets a `RunnerCrashedError` with the exit status
and the last lines of its log.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rsllm.errors import (
    EngineClosedError,
    ProtocolError,
    RunnerCrashedError,
    RunnerTimeoutError,
)
from rsllm.runner.child import Child, RunnerGeneration, Waiting
from rsllm.runner.pieces import pack_options
from rsllm.runner.plan import MemoryPlan
from rsllm.runner.protocol import (
    PROTOCOL_VERSION,
    Call,
    Generate,
    Hello,
    Load,
    Plan,
    Planned,
    Ready,
)
from rsllm.runner.watch import Watch
from rsllm.system import anonymous_bytes, signal_name

__all__ = ["Limits", "RunnerGeneration", "RunnerProcess", "State", "exit_status"]

log = logging.getLogger("rsllm.runner")

# Not from the working folder (-P): what lies there is not ours.
WORKER_COMMAND = (sys.executable, "-P", "-m", "rsllm.runner.worker")

_HINTS = {
    "SIGKILL": "the system may have killed it for want of memory: use a smaller context or model",
    "SIGBUS": "the model file was cut short, or its disk failed, while it was in use",
}


class State(enum.Enum):
    """Where a runner is between not being there and answering."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    FAILED = "failed"


@dataclass(frozen=True)
class Limits:
    """How long what may take, in seconds, and how much memory a child may have."""

    load_seconds: float | None = 300.0
    """Without a sign of progress; Ollama's OLLAMA_LOAD_TIMEOUT. `None` waits for ever."""
    stop_seconds: float = 5.0
    """From the request to stop to the kill. A step of the engine may have to end first."""
    ping_seconds: float = 10.0
    """How often a child with open requests is asked whether it still listens."""
    silence_seconds: float = 60.0
    """A child that has not said anything for so long, pings included, is killed. Long, since a machine may swap."""
    memory_bytes: int | None = None
    """Most memory of its own (mapped weights do not count) that the child may take."""


class RunnerProcess:
    """A model in a child process. All methods are for one event loop."""

    def __init__(
        self,
        name: str,
        path: str | os.PathLike[str],
        options: Mapping[str, Any] | None = None,
        *,
        limits: Limits | None = None,
        command: Sequence[str] = WORKER_COMMAND,
        on_exit: Callable[[RunnerProcess], None] | None = None,
        spare: Callable[[], Child | None] = lambda: None,
    ) -> None:
        self.name = name
        self.path = os.fspath(path)
        self.options: Mapping[str, Any] = dict(options or {})
        self.info: dict[str, Any] = {}
        self.special_tokens: dict[str, Any] = {}
        self.last_error: BaseException | None = None
        self._limits = limits or Limits()
        self._command = tuple(command)
        self._on_exit = on_exit
        self._spare = spare
        self._state = State.STOPPED
        self._child: Child | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._ids = itertools.count(1)

    @property
    def state(self) -> State:
        """The state now; it may be another one after any `await`."""
        return self._state

    @property
    def pid(self) -> int | None:
        """The child's process id, while there is one."""
        return self._child.pid if self._child is not None else None

    @property
    def last_lines(self) -> tuple[str, ...]:
        """What the child wrote last."""
        return tuple(self._child.lines) if self._child is not None else ()

    def anonymous_bytes(self) -> int:
        """Memory of the child that is no copy of a file; 0 where it is not running or the system does not tell."""
        return (anonymous_bytes(self.pid) if self.pid is not None else None) or 0

    # What callers ask for.

    async def plan(self) -> MemoryPlan | None:
        """What the model would take, asked of the child before it loads anything; it is started for that if need be.

        `None` from a core that makes no plans. Raises what `ensure_ready` raises.
        """
        child = await self._started()
        return await asyncio.shield(child.planned)

    async def ensure_ready(self, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """`Engine.info()` of the loaded model, which is loaded now if it is not.

        `options` replace those given at first, for a child that has only planned yet. Raises what went wrong while
        loading: the core's own error, `RunnerCrashedError`, `RunnerTimeoutError`, `ProtocolError`.
        """
        child = await self._started()
        if options is not None and not child.wanted.is_set():
            self.options = dict(options)
        child.wanted.set()
        await asyncio.shield(child.ready)
        return self.info

    async def stop(self) -> None:
        """End the child: in order if it listens, by force after `stop_seconds`. Returns when it is gone."""
        if self._supervisor is not None and self._child is not None:
            self._child.stop.set()
            await asyncio.shield(self._supervisor)

    def kill(self) -> None:
        """End the child at once, by force; those who wait for it get a `RunnerCrashedError`."""
        if self._child is not None:
            self._child.kill()

    async def generate(self, ids: list[int], options: dict[str, Any], watch: Watch | None = None) -> RunnerGeneration:
        """Start a sequence; `options` are complete, as `rsllm.options.validate` returns them."""
        child = self._ready_child()
        generation = RunnerGeneration(child, next(self._ids), watch)
        child.generations[generation.id] = generation
        try:
            await child.send(Generate(generation.id, ids, pack_options(options)))
        except BaseException:
            generation.cancel()
            raise
        return generation

    async def tokenize(self, parts: list[tuple[str, bool]], *, add_special: bool = False) -> list[int]:
        """Ids of a text whose parts are trusted (control tokens count) or not."""
        ids = await self._call("tokenize", parts=[list(part) for part in parts], add_special=add_special)
        return [int(id) for id in ids[0]]

    async def detokenize(self, ids: list[int], *, render_special: bool = True) -> str:
        """The text of token ids."""
        return str((await self._call("detokenize", ids=ids, render_special=render_special))[0])

    async def logits(self, ids: list[int]) -> bytearray:
        """float32 (n, vocab_size), one row a position."""
        return (await self._call("logits", ids=ids))[1]

    async def embed(self, inputs: list[list[int]], options: dict[str, Any]) -> bytearray:
        """float32, one row an input."""
        return (await self._call("embed", inputs=inputs, options=options))[1]

    async def stats(self) -> dict[str, Any]:
        """`info` and `metrics` of the engine, and `process`, what the child takes of the machine, as they are now."""
        value = (await self._call("stats"))[0]
        return value if isinstance(value, dict) else {}

    async def ping(self) -> float:
        """Seconds until the child answered."""
        begin = time.monotonic()
        await self._call("ping")
        return time.monotonic() - begin

    async def _call(self, method: str, **arguments: Any) -> tuple[Any, bytearray]:
        child = self._ready_child()
        call = Waiting(asyncio.get_running_loop().create_future())
        id = next(self._ids)
        child.calls[id] = call
        try:
            await child.send(Call(id, method, arguments))
            return await call.answer, call.data
        finally:
            child.calls.pop(id, None)

    def _ready_child(self) -> Child:
        if self._child is None or self._state is not State.READY:
            raise EngineClosedError(f"the runner of {self.name} is {self._state.value}")
        return self._child

    async def _started(self) -> Child:
        """A child that is starting or ready; the decision whether to start one is made here and nowhere else."""
        while self._supervisor is not None and self._child is not None and self._child.stop.is_set():
            if self._supervisor.done():
                break
            await asyncio.shield(self._supervisor)
        if self._supervisor is None or self._supervisor.done():
            self._child = self._spare() or Child(self.name)
            self._child.name = self.name
            self._supervisor = asyncio.create_task(self._supervise(self._child), name=f"runner {self.name}")
        assert self._child is not None, "set with the supervisor"
        return self._child

    # The supervisor: the only one that writes the state.

    async def _supervise(self, child: Child) -> None:
        self._state, self.last_error = State.STARTING, None
        stopping = asyncio.create_task(child.stop.wait())
        running = asyncio.create_task(self._run(child))
        error: BaseException | None = None
        try:
            await asyncio.wait({stopping, running}, return_when=asyncio.FIRST_COMPLETED)
            if stopping.done() and not running.done():
                was_ready = self._state is State.READY
                self._state = State.STOPPING
                await child.end(self._limits.stop_seconds if was_ready else 0)
                running.cancel()
            await asyncio.wait({running})
            error = None if running.cancelled() else running.exception()
        except asyncio.CancelledError:  # the event loop ends
            child.stop.set()
            raise
        finally:
            stopping.cancel()
            running.cancel()
            self._conclude(child, await child.reap(), error)

    def _conclude(self, child: Child, code: int | None, error: BaseException | None) -> None:
        if child.stop.is_set():
            self._state = State.STOPPED
            child.fail_all(EngineClosedError(f"the runner of {self.name} was stopped"))
        else:
            self._state = State.FAILED
            self.last_error = self._failure(child, code, error)
            log.warning("[%s] %s", self.name, self.last_error)
            child.fail_all(self.last_error)
        if self._on_exit is not None:
            self._on_exit(self)

    async def _run(self, child: Child) -> None:
        """From the start to the end of the connection. Returns when the child closes it."""
        limit = self._limits.load_seconds
        if not child.spawned:
            await child.spawn(self._command, self._limits.memory_bytes)
        hello = await child.receive(limit, Hello)
        if hello.protocol != PROTOCOL_VERSION:
            raise ProtocolError(
                f"the runner speaks protocol {hello.protocol}, this side {PROTOCOL_VERSION}", model=self.name
            )
        await child.send(Plan(self.path, dict(self.options)))
        planned = await child.receive(limit, Planned)
        mapped = self.options.get("mmap", True) is not False
        plan = None if planned.plan is None else MemoryPlan.from_core(planned.plan, mapped=mapped)
        child.planned.set_result(plan)
        await child.wanted.wait()
        await child.send(Load(self.path, dict(self.options)))
        ready = await child.receive(limit, Ready)
        self.info, self.special_tokens = ready.info, ready.special_tokens
        self._state = State.READY
        child.ready.set_result(None)
        watchdog = asyncio.create_task(self._watch(child))
        try:
            while (message := await child.read()) is not None:
                child.dispatch(message)
        finally:
            watchdog.cancel()

    async def _watch(self, child: Child) -> None:
        """Kill a child that has open requests and no longer reads what it is sent."""
        while True:
            asleep = time.monotonic()
            await asyncio.sleep(self._limits.ping_seconds)
            now = time.monotonic()
            # While this process was stopped itself, nobody could have been heard.
            child.heard = min(now, child.heard + max(0.0, now - asleep - self._limits.ping_seconds))
            if not (child.generations or child.calls):
                child.heard = now
                continue
            silence = now - child.heard
            if silence > self._limits.silence_seconds:
                child.verdict = RunnerTimeoutError(
                    f"the runner of {self.name} has not answered for {silence:.0f} s and was killed", model=self.name
                )
                child.kill()
                return
            child.post(Call(next(self._ids), "ping", {}))

    def _failure(self, child: Child, code: int | None, error: BaseException | None) -> BaseException:
        """Why the child is no more, or never was."""
        if child.verdict is not None:
            return child.verdict
        if isinstance(error, TimeoutError):
            return RunnerTimeoutError(
                f"timed out waiting for the runner of {self.name} to start: no progress for "
                f"{self._limits.load_seconds:g} s{_quoted(child.lines)}",
                model=self.name,
            )
        if error is not None and not isinstance(error, (EOFError, ConnectionError)):
            return error
        status = exit_status(code)
        phase = "stopped unexpectedly" if child.ready.done() else "ended while it was starting"
        return RunnerCrashedError(
            f"the runner of {self.name} {phase}: {status}{_quoted(child.lines)}",
            model=self.name,
            status=status,
            exit_code=code,
            last_lines=tuple(child.lines),
            hint=_HINTS.get(status.removeprefix("signal ")),
        )


def exit_status(code: int | None) -> str:
    """An exit code in words: `exit code 3`, `signal SIGKILL`."""
    if code is None:
        return "it could not be started"
    return f"exit code {code}" if code >= 0 else f"signal {signal_name(-code)}"


def _quoted(lines: Sequence[str]) -> str:
    """The last line, for the end of a message."""
    return f" ({lines[-1]})" if lines else ""
