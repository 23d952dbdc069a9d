"""The decisions about loaded models, as pure functions: figures in, a decision out.

Which model must go for another one (`evict`), whether there is room (`admit`), how long one stays (`parse_keep_alive`,
`expiry`), how long its context is (`context_size`), whether it must be loaded anew (`reload_reason`), and how many
requests may run and wait (`may_start`, `may_wait`). Names and defaults are Ollama's; where it does something in
silence, the decision here carries its reason.

Memory is counted so: a model's own memory (KV cache and scratch) must fit; its weights are mapped from the file and
should. The free memory that the system reports counts mapped weights as free, because it could drop them, and knows
nothing of KV cache that a loaded model has not touched yet. Both are taken off here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rsllm.durations import DurationError, parse_duration
from rsllm.errors import OptionError
from rsllm.runner.plan import MemoryPlan

__all__ = [
    "DEFAULT_MAX_QUEUE",
    "FOREVER",
    "KEEP_ALIVE_SECONDS",
    "Admission",
    "ContextSize",
    "Load",
    "Memory",
    "Refuse",
    "RunnerOptions",
    "Running",
    "Target",
    "Wait",
    "admit",
    "context_size",
    "evict",
    "expiry",
    "max_loaded_models",
    "may_start",
    "may_wait",
    "parallel_within_limit",
    "parse_keep_alive",
    "reload_reason",
]

FOREVER = math.inf
KEEP_ALIVE_SECONDS = 300.0
DEFAULT_MAX_QUEUE = 512
MODELS_A_DEVICE = 3
# Where a context is not asked for, this much is had unless the model or the memory forbids it.
# Sequences of a step of the engine; a row of logits each has its place.
MOST_SEQUENCES = 64
USEFUL_CONTEXT = 4096
SMALLEST_CONTEXT = 4
PAGE_TOKENS = 64
# A duration is a signed 64-bit count of nanoseconds; what is longer lasts for ever.
_LONGEST_SECONDS = (2**63 - 1) / 1e9


# How long a model stays.


def parse_keep_alive(value: Any, default: float = KEEP_ALIVE_SECONDS) -> float:
    """Seconds that a model stays after its last request; `FOREVER` where it is not to go.

    Numbers are seconds, texts are durations as Go writes them (`10m`, `1h30m`), and anything negative is for ever, also
    as the text `-1`. `None` is the default. Raises `OptionError` for anything else.

    >>> parse_keep_alive("1h30m"), parse_keep_alive(42.5), parse_keep_alive(-1), parse_keep_alive(None)
    (5400.0, 42.5, inf, 300.0)
    """
    if value is None:
        return default
    if isinstance(value, str):
        seconds = _duration(value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value):
        seconds = math.inf if abs(value) > _LONGEST_SECONDS else float(value)
    else:
        raise OptionError(
            f"keep_alive must be a number of seconds or a duration such as '5m', not {value!r:.60}", name="keep_alive"
        )
    return FOREVER if seconds < 0 or seconds > _LONGEST_SECONDS else seconds


def _duration(text: str) -> float:
    try:
        return parse_duration(text)
    except DurationError as error:
        try:
            negative = float(text) < 0
        except ValueError:
            negative = False
        if negative:  # clients write -1 as a text; there is only one thing they can mean
            return -1.0
        raise OptionError(
            f"keep_alive: {error}"[:200], name="keep_alive", hint="write seconds as a number, or a unit: '5m', '30s'"
        ) from None


def expiry(finished_at: float, keep_alive: float) -> float:
    """When an idle model goes; the clock is the caller's."""
    return finished_at + keep_alive


# What must go for another model.


@dataclass(frozen=True, slots=True)
class Memory:
    """What the machine has."""

    available_bytes: int | None
    """Free by the system's own account; `None` where it does not tell, and then memory never decides."""
    max_loaded: int
    """Models that may be loaded at once."""


@dataclass(frozen=True, slots=True)
class Target:
    """A model that is to be loaded. `plan` is `None` where the core makes none; then memory does not decide."""

    key: str
    plan: MemoryPlan | None


@dataclass(frozen=True, slots=True)
class Running:
    """A model that is loaded, or being loaded."""

    key: str
    plan: MemoryPlan | None
    resident_bytes: int = 0
    """Memory of its own that it has already: the rest of its plan is still to come."""
    busy: bool = False
    """It has requests, or is being loaded: it can only go once it is idle."""
    leaving: bool = False
    """It is on its way out; its place and its memory come back by themselves."""
    keep_alive: float = KEEP_ALIVE_SECONDS
    last_used: float = 0.0

    @property
    def claimed_bytes(self) -> int:
        """Bytes that the system calls free and that are this model's all the same."""
        if self.plan is None:
            return 0
        shared = self.plan.total_bytes - self.plan.own_bytes
        return max(0, self.plan.own_bytes - self.resident_bytes) + shared

    @property
    def returned_bytes(self) -> int:
        """Bytes that there are more of for others when it is gone."""
        return self.claimed_bytes + self.resident_bytes


def evict(target: Target, running: Iterable[Running], memory: Memory) -> list[str]:
    """The models that must go so that `target` can be loaded, in the order in which they should.

    Idle ones first; among them, and then among the busy ones, the shortest keep-alive goes first, and of equals the one
    that was used longest ago. No more go than are needed; models that are leaving anyway count as gone. Where even
    without all of them there is no room, all are returned, and `admit` says whether that is enough.
    """
    models = list(running)
    staying = [model for model in models if not model.leaving]
    staying.sort(key=lambda model: (model.busy, model.keep_alive, model.last_used, model.key))
    count = len(staying)
    leaving = [model for model in models if model.leaving]
    room = _room(models, memory) + sum(model.returned_bytes for model in leaving)
    needed = target.plan.total_bytes if target.plan is not None else 0
    gone: list[str] = []
    for model in staying:
        if count - len(gone) < memory.max_loaded and needed <= room:
            break
        gone.append(model.key)
        room += model.returned_bytes
    return gone


@dataclass(frozen=True, slots=True)
class Load:
    """There is room: load it now."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Not yet. `stop` can go at once, `drain` as soon as they are idle; with neither, models are leaving already."""

    stop: list[str] = field(default_factory=list)
    drain: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Refuse:
    """It does not fit, even alone."""

    needed_bytes: int
    available_bytes: int


Admission = Load | Wait | Refuse


def admit(target: Target, running: Sequence[Running], memory: Memory) -> Admission:
    """Whether a model may be loaded now, and if not, what has to happen first.

    With nothing else left, weights need not fit, since they are mapped: a model larger than memory runs, slowly. Its
    own memory must.
    """
    room = _room(running, memory)
    most = room + sum(model.returned_bytes for model in running)
    if target.plan is not None and target.plan.own_bytes > most:
        return Refuse(target.plan.own_bytes, int(most))
    if not running:
        return Load()
    gone = evict(target, running, memory)
    busy = {model.key for model in running if model.busy}
    if gone:
        return Wait([key for key in gone if key not in busy], [key for key in gone if key in busy])
    needed = target.plan.total_bytes if target.plan is not None else 0
    return Load() if len(running) < memory.max_loaded and needed <= room else Wait()


def _room(running: Iterable[Running], memory: Memory) -> float:
    if memory.available_bytes is None:
        return math.inf
    return memory.available_bytes - sum(model.claimed_bytes for model in running)


def max_loaded_models(setting: int, devices: int = 0) -> int:
    """OLLAMA_MAX_LOADED_MODELS, where 0 means three for each device, and three on the processor."""
    return setting if setting > 0 else MODELS_A_DEVICE * max(1, devices)


# The context.


@dataclass(frozen=True, slots=True)
class ContextSize:
    """A context and where it comes from; `None` leaves it to the plan, which knows the memory."""

    tokens: int | None
    reason: str


def context_size(
    request: int | None = None,
    parameter: int | None = None,
    environment: int | None = None,
    training_context: int | None = None,
) -> ContextSize:
    """The context: the request's, else the model's own parameter, else OLLAMA_CONTEXT_LENGTH, else the plan's.

    Never beyond what the model was trained for, nor below four tokens; where that changes a number, the reason says so.
    Raises `OptionError` for one that is not positive.

    >>> context_size(request=131072, training_context=8192)
    ContextSize(tokens=8192, reason='num_ctx of the request, lowered from 131072: the model was trained for 8192')
    """
    sources = (
        (request, "num_ctx of the request"),
        (parameter, "num_ctx of the model"),
        (environment or None, "OLLAMA_CONTEXT_LENGTH"),
    )
    for wanted, source in sources:
        if wanted is None:
            continue
        if isinstance(wanted, bool) or wanted < 1:
            raise OptionError(f"{source} must be a positive whole number, not {wanted!r}", name="num_ctx")
        if training_context is not None and wanted > training_context:
            reason = f"{source}, lowered from {wanted}: the model was trained for {training_context}"
            return ContextSize(training_context, reason)
        if wanted < SMALLEST_CONTEXT:
            return ContextSize(SMALLEST_CONTEXT, f"{source}, raised from {wanted}: less cannot be used")
        return ContextSize(wanted, source)
    return ContextSize(None, "what the model and the memory allow")


# Loading anew.


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """Options that a loaded model cannot change. `None`: not asked for, anything will do."""

    context: int | None = None
    threads: int | None = None
    kv_type: str | None = None
    isa: str | None = None
    mmap: bool | None = None
    draft: str | None = None
    """The file of a model that guesses for this one."""
    max_sequences: int | None = None
    """Sequences in one batch. A server's own setting, so never a reason to load anew."""

    def given(self) -> dict[str, Any]:
        """Those that were asked for, as keyword arguments of the core."""
        everything = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: value for name, value in everything.items() if value is not None}


def reload_reason(loaded: RunnerOptions, info: Mapping[str, Any], wanted: RunnerOptions) -> str | None:
    """Why a model must be loaded anew for a request; `None`: it need not.

    `loaded` is what was asked for when it was loaded, `info` what came of that (`Engine.info()`). Only what a request
    asks for counts, and what was asked for before and not had would not be had now either. A context that is large
    enough will do. Who asks for none is not to suffer from somebody else's small one.
    """
    actual = {**info, "mmap": loaded.mmap is not False, "draft": loaded.draft}
    for name in ("threads", "kv_type", "isa", "mmap", "draft"):
        asked = getattr(wanted, name)
        if asked is not None and asked not in (getattr(loaded, name), actual.get(name)):
            return f"{name} {asked} instead of {actual.get(name)}"
    context = int(info.get("context", 0))
    if wanted.context is not None:
        enough = wanted.context <= max(context, loaded.context or 0)
        return None if enough else f"context {wanted.context} instead of {context}"
    if loaded.context is not None and context < min(USEFUL_CONTEXT, int(info.get("training_context", 0))):
        return f"context {context} was asked for by another request"
    return None


# Requests.


def may_start(running: Sequence[int], wanted: int, capacity: int, parallel: int | None) -> bool:
    """Whether a request of `wanted` tokens may start beside those running, given the tokens of each.

    With OLLAMA_NUM_PARALLEL that many run. Without it as many as there are pages for in `capacity` tokens; one alone
    always may, since the engine itself says what is too long for it.
    """
    if not running:
        return True
    if parallel is not None:
        return len(running) < parallel
    return sum(map(_pages, running)) + _pages(wanted) <= capacity // PAGE_TOKENS


def parallel_within_limit(wanted: int | None) -> tuple[int | None, str | None]:
    """OLLAMA_NUM_PARALLEL as far as a step has room for it, and what to tell the user where that is less."""
    if wanted is None or wanted <= MOST_SEQUENCES:
        return wanted, None
    told = f"OLLAMA_NUM_PARALLEL is {wanted}; at most {MOST_SEQUENCES} requests run at once, the others wait"
    return MOST_SEQUENCES, told


def may_wait(waiting: int, limit: int) -> bool:
    """Whether one more request may wait beside `waiting` others; `limit` is OLLAMA_MAX_QUEUE."""
    return waiting < limit


def _pages(tokens: int) -> int:
    return max(1, -(-tokens // PAGE_TOKENS))
