"""The decisions about loaded models, as tables and properties."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsllm.config import Config
from rsllm.durations import DurationError, parse_duration
from rsllm.errors import OptionError, ProtocolError
from rsllm.runner.plan import MemoryPlan
from rsllm.runner.policy import (
    FOREVER,
    Load,
    Memory,
    Refuse,
    RunnerOptions,
    Running,
    Target,
    Wait,
    admit,
    context_size,
    evict,
    expiry,
    max_loaded_models,
    may_start,
    may_wait,
    parallel_within_limit,
    parse_keep_alive,
    reload_reason,
)

FEW = settings(max_examples=60, deadline=None)
MB = 10**6


def plan(own: int = 10 * MB, weights: int = 10 * MB) -> MemoryPlan:
    return MemoryPlan(4096, "as requested", 4096, weights, own, 0)


# Durations and keep_alive. The field's list: -1, "-1", "-1m", 0, "0", 42, 42.5, "5m", "abc".


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, 300),
        (-1, FOREVER),
        (-0.5, FOREVER),
        ("-1", FOREVER),
        ("-1.5", FOREVER),
        ("-1m", FOREVER),
        ("-1s", FOREVER),
        (0, 0),
        (0.0, 0),
        ("0", 0),
        ("-0", 0),
        ("+0", 0),
        ("0s", 0),
        (42, 42),
        (42.5, 42.5),
        ("5m", 300),
        ("1h30m", 5400),
        ("300ms", 0.3),
        ("1.5h", 5400),
        (".5s", 0.5),
        ("1.s", 1),
        ("+5s", 5),
        ("10us", 1e-5),
        ("10µs", 1e-5),
        ("10μs", 1e-5),
        ("7ns", 7e-9),
        ("2562047h47m16s", 9223372036),
        (10**300, FOREVER),
        (1e300, FOREVER),
        (math.inf, FOREVER),
    ],
)
def test_keep_alive(value: Any, seconds: float) -> None:
    assert parse_keep_alive(value) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("abc", 'time: invalid duration "abc"'),
        ("5", 'time: missing unit in duration "5"'),
        ("5d", 'time: unknown unit "d" in duration "5d"'),
        ("", "time: invalid duration"),
        ("-", "time: invalid duration"),
        ("+", "time: invalid duration"),
        (".", "time: invalid duration"),
        (".s", "time: invalid duration"),
        ("1m 5s", "time: unknown unit"),
        ("--5s", "time: invalid duration"),
        ("1e3s", "time: unknown unit"),
        ("٣s", "time: invalid duration"),
        ("9999999999999h", "time: invalid duration"),
        ("9" * 1000 + "s", "time: invalid duration"),
        ("nan", "time: invalid duration"),
        (True, "not True"),
        (False, "not False"),
        (math.nan, "not nan"),
        ([], r"not \[\]"),
        ({"a": 1}, "not"),
        ("x" * 10_000, "time: invalid duration"),
    ],
)
def test_keep_alive_that_makes_no_sense(value: Any, complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint) as error:
        parse_keep_alive(value)
    assert error.value.name == "keep_alive"
    assert len(str(error.value)) < 300


def test_keep_alive_has_a_default_of_its_own() -> None:
    assert parse_keep_alive(None, FOREVER) == FOREVER
    assert expiry(100.0, 5.0) == 105.0
    assert expiry(100.0, FOREVER) == FOREVER


@FEW
@given(st.text(max_size=12) | st.from_regex(r"[-+]?([0-9]{1,3}(\.[0-9]*)?(ns|us|ms|s|m|h)){1,3}", fullmatch=True))
def test_a_duration_is_a_number_or_an_error(text: str) -> None:
    try:
        assert math.isfinite(parse_duration(text))
    except DurationError as error:
        assert str(error).startswith("time: ")


@FEW
@given(st.integers(0, 99), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_the_parts_of_a_duration_add_up(hours: int, minutes: int, seconds: int, thousandths: int) -> None:
    whole = hours * 3600 + minutes * 60 + seconds + thousandths / 1000
    assert parse_duration(f"{hours}h{minutes}m{seconds}.{thousandths:03}s") == pytest.approx(whole)


def test_the_environment_takes_durations_and_seconds() -> None:
    home = {"HOME": "/home/u"}
    config = Config.from_environment(home)
    assert (config.keep_alive_seconds, config.load_timeout_seconds) == (300, 300)
    assert (config.max_loaded_models, config.max_queue, config.num_parallel) == (0, 512, None)
    config = Config.from_environment(
        {**home, "OLLAMA_KEEP_ALIVE": "24h", "OLLAMA_LOAD_TIMEOUT": "0", "OLLAMA_MAX_QUEUE": "0"}
    )
    assert (config.keep_alive_seconds, config.load_timeout_seconds, config.max_queue) == (86400, None, 0)
    config = Config.from_environment(
        {**home, "OLLAMA_KEEP_ALIVE": "-1", "OLLAMA_LOAD_TIMEOUT": "90", "OLLAMA_NUM_PARALLEL": "4"}
    )
    assert (config.keep_alive_seconds, config.load_timeout_seconds, config.num_parallel) == (FOREVER, 90, 4)
    for name in ("OLLAMA_KEEP_ALIVE", "OLLAMA_LOAD_TIMEOUT", "OLLAMA_MAX_QUEUE", "OLLAMA_NUM_PARALLEL"):
        with pytest.raises(OptionError, match=name):
            Config.from_environment({**home, name: "many"})


# Eviction.


IDLE = Running("idle", plan(), keep_alive=300, last_used=5)
OLDER = Running("older", plan(), keep_alive=300, last_used=1)
SHORT = Running("short", plan(), keep_alive=10, last_used=9)
PINNED = Running("pinned", plan(), keep_alive=FOREVER, last_used=0)
BUSY = Running("busy", plan(), busy=True, keep_alive=1, last_used=0)
LEAVING = Running("leaving", plan(), leaving=True)
PLENTY = 10**12


@pytest.mark.parametrize(
    ("running", "max_loaded", "gone"),
    [
        ([], 3, []),
        ([IDLE, OLDER], 3, []),
        ([IDLE, OLDER, PINNED], 3, ["older"]),
        ([IDLE, SHORT, OLDER], 3, ["short"]),
        ([PINNED, BUSY], 2, ["pinned"]),
        ([BUSY, PINNED, IDLE], 2, ["idle", "pinned"]),
        ([BUSY], 1, ["busy"]),
        ([IDLE, LEAVING], 2, []),
        ([IDLE, OLDER, LEAVING], 2, ["older"]),
        ([Running("b", plan()), Running("a", plan())], 2, ["a"]),
    ],
)
def test_who_goes_when_there_are_too_many(running: list[Running], max_loaded: int, gone: list[str]) -> None:
    assert evict(Target("new", plan()), running, Memory(PLENTY, max_loaded)) == gone


@pytest.mark.parametrize(
    ("available", "gone"),
    [
        # The new one needs 20 MB; each of the loaded ones has claimed 20 MB of what the system calls free.
        (PLENTY, []),
        (60 * MB, []),
        (60 * MB - 1, ["older"]),
        (40 * MB - 1, ["older", "idle"]),
        (0, ["older", "idle"]),
    ],
)
def test_who_goes_when_memory_is_short(available: int, gone: list[str]) -> None:
    assert evict(Target("new", plan()), [IDLE, OLDER], Memory(available, 9)) == gone


def test_memory_that_a_model_has_already_is_not_counted_twice() -> None:
    grown = Running("grown", plan(own=10 * MB, weights=0), resident_bytes=10 * MB)
    assert evict(Target("new", plan(weights=0)), [grown], Memory(10 * MB, 9)) == []
    assert evict(Target("new", plan(weights=0)), [grown], Memory(10 * MB - 1, 9)) == ["grown"]


def test_without_figures_memory_does_not_decide() -> None:
    assert evict(Target("new", plan()), [IDLE], Memory(None, 9)) == []
    assert evict(Target("new", None), [IDLE], Memory(10**9, 9)) == []
    assert admit(Target("new", plan(10**15)), [], Memory(None, 1)) == Load()


@pytest.mark.parametrize(
    ("own", "weights", "running", "available", "max_loaded", "decision"),
    [
        (10, 10, [], 20, 3, Load()),
        (10, 10**6, [], 10, 3, Load()),  # larger than memory: mapped
        (11, 0, [], 10, 3, Refuse(11 * MB, 10 * MB)),
        (10, 10, [IDLE], 40, 3, Load()),
        (10, 10, [IDLE], 39, 3, Wait(stop=["idle"])),
        (10, 10, [BUSY], 39, 3, Wait(drain=["busy"])),
        (10, 10, [IDLE, BUSY], 30, 3, Wait(stop=["idle"], drain=["busy"])),
        (10, 10, [LEAVING], 39, 3, Wait()),
        (10, 10, [LEAVING], PLENTY, 1, Wait()),
        (10, 10, [LEAVING, IDLE], 40, 9, Wait()),
        # Nobody is sent away for a model that would not fit even then.
        (100, 0, [IDLE], 50, 3, Refuse(100 * MB, 50 * MB)),
    ],
)
def test_admission(
    own: int, weights: int, running: list[Running], available: int, max_loaded: int, decision: object
) -> None:
    target = Target("new", plan(own * MB, weights * MB))
    assert admit(target, running, Memory(available * MB, max_loaded)) == decision


RUNNING = st.builds(
    Running,
    key=st.uuids().map(str),
    plan=st.none() | st.builds(plan, st.integers(0, 100), st.integers(0, 100)),
    resident_bytes=st.integers(0, 100),
    busy=st.booleans(),
    leaving=st.booleans(),
    keep_alive=st.sampled_from([0.0, 1.0, 300.0, FOREVER]),
    last_used=st.floats(0, 100),
)


@FEW
@given(
    st.lists(RUNNING, max_size=5),
    st.builds(plan, st.integers(0, 300), st.integers(0, 300)),
    st.integers(0, 600),
    st.integers(1, 5),
)
def test_eviction_is_minimal_and_enough(
    running: list[Running], wanted: MemoryPlan, available: int, max_loaded: int
) -> None:
    target, memory = Target("new", wanted), Memory(available, max_loaded)
    gone = evict(target, running, memory)
    assert len(set(gone)) == len(gone)
    assert not {model.key for model in running if model.leaving} & set(gone)
    # Idle ones go before busy ones.
    busy = {model.key: model.busy for model in running}
    assert [busy[key] for key in gone] == sorted(busy[key] for key in gone)
    # With one fewer there would be no room; when all have left, the new one is loaded, unless it could never be.
    if gone:
        assert decide(target, running, gone[:-1], memory) != Load()
    decision = decide(target, running, gone, memory)
    assert decision == Load() or (isinstance(decision, Refuse) and wanted.own_bytes > decision.available_bytes)


def decide(target: Target, running: list[Running], gone: list[str], memory: Memory) -> object:
    """The decision once those have left, and those that were leaving; what they had is free then."""
    left = [model for model in running if model.key not in gone and not model.leaving]
    assert memory.available_bytes is not None
    freed = sum(model.resident_bytes for model in running if model not in left)
    return admit(target, left, Memory(memory.available_bytes + freed, memory.max_loaded))


def test_a_plan_takes_the_figures_of_the_core() -> None:
    figures = {"context": 8, "context_reason": "r", "training_context": 9, "weight_bytes": 1, "kv_bytes": 2}
    made = MemoryPlan.from_core({**figures, "scratch_bytes": 3, "more": 4})
    assert (made.own_bytes, made.total_bytes) == (5, 6)
    read = MemoryPlan.from_core({**figures, "scratch_bytes": 3}, mapped=False)
    assert (read.own_bytes, read.total_bytes) == (6, 6)
    for bad in (figures, {**figures, "scratch_bytes": "many"}, {**figures, "scratch_bytes": None}):
        with pytest.raises(ProtocolError, match="memory plan"):
            MemoryPlan.from_core(bad)


@pytest.mark.parametrize(("setting", "devices", "most"), [(0, 0, 3), (0, 1, 3), (0, 2, 6), (1, 2, 1), (7, 0, 7)])
def test_how_many_models(setting: int, devices: int, most: int) -> None:
    assert max_loaded_models(setting, devices) == most


# Context and loading anew.


@pytest.mark.parametrize(
    ("arguments", "tokens", "reason"),
    [
        ((None, None, None, 8192), None, "what the model and the memory allow"),
        ((None, None, 0, 8192), None, "what the model and the memory allow"),
        ((None, None, 2048, 8192), 2048, "OLLAMA_CONTEXT_LENGTH"),
        ((None, 1024, 2048, 8192), 1024, "num_ctx of the model"),
        ((512, 1024, 2048, 8192), 512, "num_ctx of the request"),
        ((10000, None, None, 8192), 8192, "lowered from 10000"),
        ((10000, None, None, None), 10000, "num_ctx of the request"),
        ((1, None, None, 8192), 4, "raised from 1"),
        ((8192, None, None, 8192), 8192, "num_ctx of the request"),
    ],
)
def test_context_size(arguments: tuple[int | None, ...], tokens: int | None, reason: str) -> None:
    chosen = context_size(*arguments)
    assert chosen.tokens == tokens
    assert reason in chosen.reason


@pytest.mark.parametrize("value", [0, -1, True])
def test_a_context_that_is_none(value: int) -> None:
    with pytest.raises(OptionError, match="num_ctx of the request"):
        context_size(request=value)


INFO = {"context": 8192, "training_context": 8192, "threads": 2, "kv_type": "f16", "isa": "avx2"}


@pytest.mark.parametrize(
    ("loaded", "info", "wanted", "reason"),
    [
        ({}, {}, {}, None),
        ({}, {}, {"context": 2048}, None),  # large enough will do
        ({"context": 8192}, {}, {"context": 2048}, None),
        ({"context": 2048}, {"context": 2048}, {"context": 8192}, "context 8192 instead of 2048"),
        ({"context": 2048}, {"context": 2048}, {}, "asked for by another request"),
        ({"context": 4096}, {"context": 4096}, {}, None),
        ({"context": 512}, {"context": 512, "training_context": 512}, {}, None),
        ({}, {"context": 2048}, {}, None),  # what memory allowed, then as now
        ({}, {}, {"threads": 2}, None),
        ({}, {}, {"threads": 3}, "threads 3 instead of 2"),
        ({"threads": 2}, {}, {}, None),
        ({}, {}, {"kv_type": "f16"}, None),
        ({}, {}, {"kv_type": "q8_0"}, "kv_type q8_0 instead of f16"),
        ({}, {}, {"isa": "scalar"}, "isa scalar instead of avx2"),
        ({}, {}, {"mmap": True}, None),
        ({}, {}, {"mmap": False}, "mmap False instead of True"),
        ({"mmap": False}, {}, {}, None),
        ({}, {}, {"draft": "a"}, "draft a instead of None"),
        ({"draft": "a"}, {"draft": {"name": "A"}}, {"draft": "a"}, None),
        ({"draft": "a"}, {"draft": {"name": "A"}}, {"draft": "b"}, "draft b instead of a"),
        ({"draft": "a"}, {"draft": {"name": "A"}}, {}, None),
        # What was asked for and not had would not be had the next time either.
        ({"isa": "amx"}, {}, {"isa": "amx"}, None),
        ({"context": 9000}, {}, {"context": 9000}, None),
    ],
)
def test_reloading(loaded: dict[str, Any], info: dict[str, Any], wanted: dict[str, Any], reason: str | None) -> None:
    found = reload_reason(RunnerOptions(**loaded), {**INFO, **info}, RunnerOptions(**wanted))
    assert found == reason if reason is None else reason in str(found)


def test_only_what_was_asked_for_is_handed_on() -> None:
    assert RunnerOptions(context=5, mmap=False).given() == {"context": 5, "mmap": False}


# Requests.


@pytest.mark.parametrize(
    ("running", "wanted", "capacity", "parallel", "starts"),
    [
        ([], 10**6, 64, None, True),
        ([64], 64, 128, None, True),
        ([65], 64, 128, None, False),
        ([1, 1, 1], 1, 256, None, True),
        ([1, 1, 1, 1], 1, 256, None, False),
        ([1], 1, 4096, 1, False),
        ([1], 1, 4096, 2, True),
        ([4096], 4096, 4096, 2, True),
        ([], 1, 4096, 1, True),
    ],
)
def test_who_may_start(running: list[int], wanted: int, capacity: int, parallel: int | None, starts: bool) -> None:
    assert may_start(running, wanted, capacity, parallel) is starts


def test_who_may_wait() -> None:
    assert [may_wait(waiting, 2) for waiting in range(4)] == [True, True, False, False]
    assert not may_wait(0, 0)


def test_more_at_once_than_a_step_holds_is_cut_and_said() -> None:
    assert parallel_within_limit(None) == (None, None)
    assert parallel_within_limit(64) == (64, None)
    parallel, told = parallel_within_limit(500)
    assert parallel == 64 and told is not None and "500" in told and "64" in told
