"""What the functions that answer requests share: the services, models by name, options, durations."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from rsllm.config import Config
from rsllm.runner.pool import Lease, RunnerPool
from rsllm.server import options
from rsllm.server.models import Models, Served
from rsllm.server.options import Options
from rsllm.server.schemas import EmbedRequest, Inference
from rsllm.store.name import ModelName
from rsllm.store.progress import Progress
from rsllm.store.store import Store

__all__ = ["Clock", "Services", "find", "in_thread", "read_options", "use"]


# The registry is imported when it is needed: it brings cryptography along.


def _pull(store: Store, reference: ModelName | str, *, insecure: bool, typed: bool) -> AsyncIterator[Progress]:
    from rsllm.config import config
    from rsllm.registry.settings import RegistrySettings
    from rsllm.registry.sources import pull_reference

    settings = RegistrySettings.from_config(config(), user_typed=typed)
    return pull_reference(store, reference, insecure=insecure, settings=settings)


def _push(store: Store, name: ModelName, *, insecure: bool, typed: bool) -> AsyncIterator[Progress]:
    from rsllm.config import config
    from rsllm.registry.push import push
    from rsllm.registry.settings import RegistrySettings

    return push(store, name, insecure=insecure, settings=RegistrySettings.from_config(config(), user_typed=typed))


@dataclass
class Services:
    """What the routes use."""

    config: Config
    models: Models
    pool: RunnerPool
    pull: Callable[..., AsyncIterator[Progress]] = _pull
    push: Callable[..., AsyncIterator[Progress]] = _push
    active: int = 0
    """Requests that are being answered."""
    last_request: float = field(default_factory=time.monotonic)
    draining: bool = False
    """The server is on its way down: it finishes what it has, and takes nothing more."""

    @property
    def hidden(self) -> str:
        """A folder that no answer names."""
        return str(self.models.store.root)


class Clock:
    """Durations of a request, in nanoseconds."""

    def __init__(self) -> None:
        self._start = time.perf_counter_ns()
        self._loaded = self._start

    def loaded(self) -> None:
        """The model is there."""
        self._loaded = time.perf_counter_ns()

    def metrics(self) -> dict[str, int]:
        """What it took so far, and how much of that was waiting for the model."""
        now = time.perf_counter_ns()
        return {"total_duration": now - self._start, "load_duration": self._loaded - self._start}


async def find(services: Services, name: str) -> Served:
    """The model that a request names; raises `ModelNameError`, `ModelNotFoundError`, `ApiError`."""
    return await services.models.find(name, go_template=services.config.go_template)


def use(
    services: Services, served: Served, asked: Options, keep_alive: float | None
) -> AbstractAsyncContextManager[Lease]:
    """Hold the model; see `RunnerPool.use`."""
    options = replace(asked.runner, draft=served.draft)
    return services.pool.use(served.path, name=served.name.short, options=options, keep_alive=keep_alive)


def read_options(services: Services, served: Served, request: Inference | EmbedRequest) -> Options:
    """The options of a request over those of its model; raises `ApiError`, `OptionError`."""
    constraint = {"schema": request.schema, "logprobs": request.logprobs} if isinstance(request, Inference) else {}
    read = options.read(
        request.options,
        served.parameters,
        environment_context=services.config.context_length,
        training_context=served.facts.training_context,
        **constraint,
    )
    return replace(read, warnings=[*request.warnings, *read.warnings])


async def in_thread(iterator: Any) -> AsyncIterator[Any]:
    """What a blocking generator yields. Closing this closes it, as soon as it comes to its next item."""
    end = object()
    step: asyncio.Future[Any] | None = None
    try:
        while True:
            step = asyncio.ensure_future(asyncio.to_thread(next, iterator, end))
            item = await asyncio.shield(step)
            if item is end:
                return
            yield item
    finally:
        if step is not None and not step.done():
            await asyncio.wait({step})
        await asyncio.to_thread(iterator.close)
