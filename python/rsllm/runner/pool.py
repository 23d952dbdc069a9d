"""All runners of a server: who asks for a model gets it, loaded if need be, and keeps it until done.

The pool is the asyncio side of the scheduler: it turns what callers want and what processes do into events, and
carries out the effects. All of it happens in one event loop, so there are no locks.

>>> async def main():
...     async with RunnerPool() as pool, pool.use("model.gguf", keep_alive=60) as model:
...         ids = await model.tokenize([("The capital of France is", True)], add_special=True)
...         answer = await model.generate(ids, validate({"max_tokens": 1, "temperature": 0}))
...         return [str(token) async for token in answer]
>>> asyncio.run(main())
[' Paris']
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self, TypeVar

from rsllm.config import Config
from rsllm.errors import EngineClosedError
from rsllm.runner import policy
from rsllm.runner.child import RunnerGeneration
from rsllm.runner.deadline import Deadline
from rsllm.runner.effects import ModelFigures, ModelStatus, ProcessEffects
from rsllm.runner.policy import RunnerOptions
from rsllm.runner.process import WORKER_COMMAND, Limits
from rsllm.runner.scheduler import Metrics, Phase, Scheduler, Settings, Spec, Ticket
from rsllm.runner.watch import Observer
from rsllm.streams import Stats, Token
from rsllm.system import memory

__all__ = ["Lease", "LeaseGeneration", "ModelFigures", "ModelStatus", "PoolMetrics", "RunnerPool"]

T = TypeVar("T")

# Tokens that an answer without a limit is taken to have when places are counted. The engine copes with longer ones.
_EXPECTED_TOKENS = 256
_log = logging.getLogger("rsllm.runner")


@dataclass(frozen=True)
class PoolMetrics:
    """Counts since the start, and what is going on now."""

    counts: Metrics
    loaded: int
    running: int
    waiting: int


class RunnerPool:
    """Models by path, each in a process of its own. Use it in one event loop; close it, or use it as a context."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        limits: Limits | None = None,
        defaults: RunnerOptions | None = None,
        command: Sequence[str] = WORKER_COMMAND,
        available_bytes: Callable[[], int | None] = lambda: memory().get("available"),
        warm: bool = False,
        request_seconds: float | None = None,
    ) -> None:
        self.observer: Observer | None = None
        """Told of each request from now on."""
        self._request_seconds = request_seconds
        self._defaults = defaults or RunnerOptions()
        self._warm = warm
        self._effects = ProcessEffects(limits or Limits(), tuple(command), available_bytes)
        self._scheduler = Scheduler(self._effects, settings)
        self._effects.scheduler = self._scheduler

    @classmethod
    def from_config(cls, config: Config, **arguments: Any) -> RunnerPool:
        """A pool by the rules of the environment.

        OLLAMA_CONTEXT_LENGTH is not among them: it yields to a model's own parameter and to what the model was trained
        for, which the caller knows; see `policy.context_size`.
        """
        parallel, warning = policy.parallel_within_limit(config.num_parallel)
        if warning is not None:
            _log.warning(warning)
        settings = Settings(
            max_loaded=policy.max_loaded_models(config.max_loaded_models),
            parallel=parallel,
            max_queue=config.max_queue,
            keep_alive=config.keep_alive_seconds,
        )
        defaults = RunnerOptions(kv_type=config.kv_type, isa=config.isa, max_sequences=parallel)
        limits = Limits(load_seconds=config.load_timeout_seconds, memory_bytes=config.runner_memory_bytes)
        given = {"defaults": defaults, "limits": limits, "request_seconds": config.request_seconds}
        return cls(settings, **{**given, **arguments})

    @contextlib.asynccontextmanager
    async def use(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        options: RunnerOptions | None = None,
        keep_alive: float | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[Lease]:
        """Hold a model for as long as the block lasts; it is loaded first if need be.

        `keep_alive` (seconds, see `policy.parse_keep_alive`) counts from the end of the block, `timeout` (the pool's
        own unless given) from now until the end of all that is done with the lease. Raises `QueueFullError`,
        `MemoryPlanError`, `RequestTimeoutError`, and what loading raises: the core's own errors, `RunnerCrashedError`,
        `RunnerTimeoutError`.
        """
        deadline, observer = Deadline(self._request_seconds if timeout is None else timeout), self.observer
        spec = self._spec(path, name, options)
        if observer is not None:
            observer.asked(spec.name)
        begun = self._effects.now()
        ticket = self._scheduler.submit(spec, keep_alive)
        try:
            await deadline.wait(self._effects.answer(ticket))
            if observer is not None:
                observer.granted(spec.name, self._effects.now() - begun)
            lease = Lease(self._scheduler, self._effects, ticket, deadline, observer)
            try:
                yield lease
            finally:
                lease.close()
        finally:
            self._scheduler.release(ticket)

    async def load(self, path: str | os.PathLike[str], **arguments: Any) -> dict[str, Any]:
        """Load a model for later, and what `Engine.info()` says of it. Arguments as those of `use`."""
        async with self.use(path, **arguments) as lease:
            return lease.info

    def unload(self, path: str | os.PathLike[str]) -> bool:
        """Let a model go as soon as nobody uses it. False if it is not loaded."""
        return self._scheduler.unload(_key(path))

    def status(self) -> list[ModelStatus]:
        """The models there are, by name."""
        entries = sorted(self._scheduler.entries.values(), key=lambda entry: (entry.spec.name, entry.spec.key))
        return [self._effects.status(entry) for entry in entries]

    def metrics(self) -> PoolMetrics:
        """Counts and what is going on, as it is now."""
        entries = self._scheduler.entries.values()
        return PoolMetrics(
            counts=copy.deepcopy(self._scheduler.metrics),
            loaded=sum(entry.phase is Phase.READY for entry in entries),
            running=sum(len(entry.running) for entry in entries),
            waiting=self._scheduler.waiting,
        )

    async def figures(self, timeout: float) -> list[ModelFigures]:
        """Of each loaded model, by name; without those whose processes do not answer within `timeout` seconds."""
        ready = [entry for entry in self._scheduler.entries.values() if entry.phase is Phase.READY]
        found = await asyncio.gather(*(self._effects.figures(entry, timeout) for entry in ready))
        return sorted((figures for figures in found if figures is not None), key=lambda figures: figures.name)

    @property
    def closed(self) -> bool:
        """Whether nothing is taken any more."""
        return self._scheduler.closed

    @property
    def is_full(self) -> bool:
        """Whether one more request that would have to wait is refused."""
        return not policy.may_wait(self._scheduler.waiting, self._scheduler.settings.max_queue)

    async def close(self) -> None:
        """Refuse who waits, end who runs, stop all processes. Returns when they are gone."""
        self._scheduler.close()
        await self._effects.finish()

    async def __aenter__(self) -> Self:
        if self._warm:
            self._effects.prepare()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _spec(self, path: str | os.PathLike[str], name: str | None, options: RunnerOptions | None) -> Spec:
        asked = (options or RunnerOptions()).given()
        key = _key(path)
        return Spec(key, name or os.path.basename(key), replace(self._defaults, **asked))


class Lease:
    """A model that is ready, and stays for as long as this is held."""

    def __init__(
        self,
        scheduler: Scheduler,
        effects: ProcessEffects,
        ticket: Ticket,
        deadline: Deadline,
        observer: Observer | None = None,
    ) -> None:
        entry = ticket.entry
        assert entry is not None, "granted"
        self.info = entry.info
        self.plan = entry.plan
        self._runner = effects.process(entry)
        self._scheduler = scheduler
        self._effects = effects
        self._ticket = ticket
        self._deadline = deadline
        self._observer = observer
        self._generation: LeaseGeneration | None = None
        self._keeps_place = False

    @property
    def special_tokens(self) -> dict[str, Any]:
        """`Engine.special_tokens()` of the model."""
        return self._runner.special_tokens

    async def tokenize(self, parts: list[tuple[str, bool]], *, add_special: bool = False) -> list[int]:
        """Ids of a text whose parts are trusted (control tokens count) or not. Takes no place."""
        return await self._deadline.wait(self._runner.tokenize(parts, add_special=add_special))

    async def detokenize(self, ids: list[int], *, render_special: bool = True) -> str:
        """The text of token ids. Takes no place."""
        return await self._deadline.wait(self._runner.detokenize(ids, render_special=render_special))

    async def logits(self, ids: list[int]) -> bytearray:
        """float32 (n, vocab_size), one row a position."""
        async with self._place(len(ids)):
            return await self._deadline.wait(self._runner.logits(ids))

    async def embed(self, inputs: list[list[int]], options: dict[str, Any]) -> bytearray:
        """float32, one row an input."""
        async with self._place(sum(map(len, inputs))):
            return await self._deadline.wait(self._runner.embed(inputs, options))

    async def generate(self, ids: list[int], options: dict[str, Any]) -> LeaseGeneration:
        """Start a sequence, as soon as there is a place for it; one at a time for each lease.

        `options` are complete, as `rsllm.options.validate` returns them. Raises `QueueFullError`,
        `RequestTimeoutError`; what the engine has against it comes with the first piece.
        """
        if not self._keeps_place:
            await self._take_place(self._expected(ids, options))
        try:
            watch = self._observer.begun(self._ticket.spec.name, len(ids)) if self._observer is not None else None
            running = await self._deadline.wait(self._runner.generate(ids, options, watch))
        except BaseException:
            self._leave_place()
            raise
        self._generation = LeaseGeneration(running, self._deadline, self._leave_place)
        return self._generation

    @contextlib.asynccontextmanager
    async def keep_place(self, ids: list[int], options: dict[str, Any]) -> AsyncIterator[None]:
        """Hold one place for all sequences of the block, one after the other, so that nobody gets in between.

        `ids` and `options` are those of the sequence that needs most. Raises what `generate` raises.
        """
        await self._take_place(self._expected(ids, options))
        self._keeps_place = True
        try:
            yield
        finally:
            self._keeps_place = False
            self._leave_place()

    def close(self) -> None:
        """Cancel what still runs. Leaving the block of `use` does this."""
        if self._generation is not None:
            self._generation.cancel()

    def _expected(self, ids: list[int], options: dict[str, Any]) -> int:
        """Tokens that a sequence will come to have, as far as that is known."""
        limit = options.get("max_tokens")
        tokens = len(ids) + (_EXPECTED_TOKENS if limit is None else limit)
        return max(len(ids), min(tokens, int(self.info.get("context") or 0)))

    def _leave_place(self) -> None:
        if not self._keeps_place:
            self._scheduler.leave_place(self._ticket)

    @contextlib.asynccontextmanager
    async def _place(self, tokens: int) -> AsyncIterator[None]:
        await self._take_place(tokens)
        try:
            yield
            if self._observer is not None:
                self._observer.computed(self._ticket.spec.name, tokens)
        finally:
            self._scheduler.leave_place(self._ticket)

    async def _take_place(self, tokens: int) -> None:
        if self._ticket.over:
            raise EngineClosedError("the model was given back")
        if self._ticket.tokens is not None:
            raise RuntimeError("a lease computes one thing at a time")
        begun = self._effects.now()
        self._scheduler.want_place(self._ticket, tokens)
        try:
            await self._deadline.wait(self._effects.answer(self._ticket))
            if self._observer is not None:
                self._observer.placed(self._ticket.spec.name, self._effects.now() - begun)
        except BaseException:
            self._scheduler.leave_place(self._ticket)
            raise


class LeaseGeneration(AsyncIterator[Token]):
    """One running sequence of a lease. Its end, closing it or leaving the lease frees the place it has."""

    def __init__(self, running: RunnerGeneration, deadline: Deadline, leave: Callable[[], None]) -> None:
        self._running = running
        self._deadline = deadline
        self._leave: Callable[[], None] | None = leave

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Token:
        try:
            return await self._deadline.wait(anext(self._running))
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Stop the sequence. After the end this does nothing."""
        self._running.cancel()
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()

    async def aclose(self) -> None:
        """As `cancel`."""
        self.cancel()

    @property
    def stats(self) -> Stats | None:
        """Counts and durations, once the sequence has come to its end."""
        return self._running.stats


def _key(path: str | os.PathLike[str]) -> str:
    """Models are told apart by their file, whatever it is called."""
    text = os.fspath(path)
    return os.path.realpath(text) if os.path.exists(text) else text
