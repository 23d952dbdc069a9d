"""One child process, run for real: the worker with a fake engine, behaving well and badly."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from rsllm.errors import (
    ContextLengthError,
    EngineClosedError,
    ModelError,
    ProtocolError,
    RsllmError,
    RunnerCrashedError,
    RunnerError,
    RunnerTimeoutError,
    TokenizerError,
)
from rsllm.options import validate
from rsllm.runner.process import Limits, RunnerProcess, State
from tests.support.fake_runner import COMMAND, ROOT, fake_path

pytestmark = pytest.mark.timeout(60)

Make = Callable[..., RunnerProcess]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Makes runners, and ends them."""
    made: list[RunnerProcess] = []

    def new(*, limits: Limits | None = None, options: dict[str, Any] | None = None, **behaviour: Any) -> RunnerProcess:
        made.append(RunnerProcess("fake:1b", fake_path(**behaviour), options, limits=limits, command=COMMAND))
        return made[-1]

    yield new
    for runner in made:
        runner.kill()
        await runner.stop()
        assert runner.pid is None


async def text_of(runner: RunnerProcess, **options: Any) -> str:
    return "".join([token async for token in await runner.generate([1, 2, 3], validate(options))])


async def gone(pid: int) -> bool:
    """True once the process is no more; a zombie that nobody has reaped counts as gone."""
    for _ in range(200):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        await asyncio.sleep(0.05)
    return False


async def test_a_runner_plans_loads_answers_and_stops(make: Make) -> None:
    runner = make(options={"context": 100})
    assert runner.state is State.STOPPED
    plan = await runner.plan()
    assert plan is not None
    assert (plan.context, plan.kv_bytes, plan.own_bytes) == (100, 100_000, 1_100_000)
    assert runner.state is State.STARTING
    info = await runner.ensure_ready()
    assert (info["context"], info["options"]) == (100, {"context": 100})
    assert runner.state is State.READY
    assert runner.anonymous_bytes() > 0
    generation = await runner.generate([1, 2, 3], validate({}))
    assert "".join([token async for token in generation]) == "abababab"
    assert generation.stats is not None
    assert (generation.stats.finish_reason, generation.stats.prompt_tokens) == ("stop", 3)
    assert [token async for token in generation] == []
    assert await runner.tokenize([("hé", False), ("!", True)]) == list("hé!".encode())
    assert await runner.detokenize(list("hé".encode())) == "hé"
    assert bytes((await runner.logits([5, 6]))[:1024]) == bytes([5]) * 1024
    assert len(await runner.embed([[1], [2]], {})) == 32
    assert await runner.ping() < 10
    stats = await runner.stats()
    pages = {"pages": 100, "page_len": 1, "pages_free": 99, "pages_cached": 1}
    assert stats["metrics"] == {"running": 0, "batch_sizes": [[1, 3], [None, 2]], **pages}
    assert stats["process"]["cpu_seconds"] > 0
    assert stats["process"]["resident_bytes"] > stats["process"]["own_bytes"] > 1 << 20
    pid = runner.pid
    await runner.stop()
    assert runner.state is State.STOPPED
    assert pid is not None and await gone(pid)
    with pytest.raises(EngineClosedError, match="is stopped"):
        await runner.tokenize([("x", False)])


async def test_options_may_be_settled_after_the_plan(make: Make) -> None:
    runner = make()
    assert (await runner.plan()).context == 4096  # type: ignore[union-attr]
    assert (await runner.ensure_ready({"context": 77}))["context"] == 77


async def test_many_callers_start_one_child(make: Make) -> None:
    runner = make(load_delay=0.2)
    infos = await asyncio.gather(*(runner.ensure_ready() for _ in range(20)))
    assert all(info == infos[0] for info in infos)
    pid = runner.pid
    await runner.ensure_ready()
    assert runner.pid == pid


async def test_many_sequences_run_side_by_side(make: Make) -> None:
    runner = make(pieces=10, delay=0.02)
    await runner.ensure_ready()
    begin = time.monotonic()
    texts = await asyncio.gather(*(text_of(runner) for _ in range(20)))
    assert texts == ["ab" * 10] * 20
    assert time.monotonic() - begin < 2  # one after the other they would take 4 s


async def test_logprobs_and_large_answers_arrive_whole(make: Make) -> None:
    runner = make(pieces=2)
    await runner.ensure_ready()
    tokens = [token async for token in await runner.generate([1], validate({"logprobs": 2}))]
    entries = [entry for token in tokens for entry in token.logprobs or ()]
    assert len(entries) == 2
    assert entries[0].bytes == b"ab"
    assert entries[0].top[1].logprob == float("-inf")
    ids = [number % 256 for number in range(10_000)]
    logits = await runner.logits(ids)  # 10 MB, more than a frame's chunk
    assert len(logits) == 10_000 * 1024
    assert logits[255 * 1024] == 255


async def test_errors_come_through_as_themselves(make: Make) -> None:
    runner = make(fail_after=1, context=10)
    await runner.ensure_ready()
    with pytest.raises(ContextLengthError) as too_long:
        async for _ in await runner.generate([1] * 50, validate({})):
            pass
    assert (too_long.value.prompt_tokens, too_long.value.context) == (50, 10)
    with pytest.raises(RunnerError, match="RuntimeError: the fake sequence failed"):
        await text_of(runner)
    with pytest.raises(TokenizerError, match="Unicode"):
        await runner.tokenize([("\ud800", False)])
    with pytest.raises(ProtocolError, match="no method"):
        await runner._call("other")
    assert runner.state is State.READY


async def test_closing_cancelling_and_dropping_stop_the_sequence(make: Make) -> None:
    runner = make(pieces=None, delay=0.01)
    await runner.ensure_ready()

    async def running() -> int:
        return (await runner.stats())["metrics"]["running"]  # type: ignore[no-any-return]

    async def none_is_running() -> bool:
        for _ in range(200):
            if await running() == 0:
                return True
            await asyncio.sleep(0.02)
        return False

    async with await runner.generate([1], validate({})) as generation:
        await anext(generation)
        assert await running() == 1
    assert await none_is_running()
    assert [token async for token in generation] == []

    task = asyncio.create_task(text_of(runner))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await none_is_running()

    generation = await runner.generate([1], validate({}))
    await anext(generation)
    del generation
    gc.collect()
    assert await none_is_running()


async def test_compiling_a_constraint_keeps_nobody_waiting_and_can_be_cancelled(make: Make) -> None:
    runner = make(compile=1.0)
    await runner.ensure_ready()
    constrained = await runner.generate([1], {**validate({}), "schema": "{}"})
    given_up = await runner.generate([1], {**validate({}), "schema": "{}"})
    given_up.cancel()
    assert await text_of(runner) == "abababab"
    assert await runner.ping() < 1
    assert (await runner.stats())["metrics"]["running"] == 0
    assert "".join([token async for token in constrained]) == "abababab"
    for _ in range(100):
        if (await runner.stats())["metrics"]["running"] == 0:
            break
        await asyncio.sleep(0.02)
    assert (await runner.stats())["metrics"]["running"] == 0


# Loading that fails.


async def test_an_error_while_loading_is_the_callers_error(make: Make) -> None:
    runner = make(load_error="no such architecture")
    results = await asyncio.gather(*(runner.ensure_ready() for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [ModelError] * 3
    assert [getattr(result, "hint", None) for result in results] == ["take another one"] * 3
    await runner.stop()
    assert runner.state is State.FAILED


async def test_a_file_that_is_not_there_is_an_error_of_planning() -> None:
    runner = RunnerProcess("none", "/nowhere.gguf", command=COMMAND)
    with pytest.raises(FileNotFoundError):
        await runner.plan()
    with pytest.raises(FileNotFoundError):
        await runner.ensure_ready()
    await runner.stop()


async def test_a_crash_while_loading_names_status_and_last_lines(make: Make) -> None:
    runner = make(crash_at_load=3, log=["first", "the disk is full"])
    with pytest.raises(
        RunnerCrashedError, match=r"fake:1b ended while it was starting: exit code 3 \(the disk is full"
    ):
        await runner.ensure_ready()
    await runner.stop()
    assert isinstance(runner.last_error, RunnerCrashedError)
    assert runner.last_error.exit_code == 3
    assert runner.last_error.last_lines[-2:] == ("first", "the disk is full")


async def test_a_failed_runner_starts_again_when_asked(make: Make) -> None:
    runner = make(crash_after=1)
    await runner.ensure_ready()
    for _ in range(2):
        with pytest.raises(RunnerCrashedError, match="signal SIGKILL"):
            await text_of(runner)
        await runner.ensure_ready()
        assert runner.state is State.READY


async def test_loading_is_limited_by_silence_and_not_by_time(make: Make) -> None:
    slow = make(limits=Limits(load_seconds=1.5), load_delay=2.5, load_progress=0.1)
    await slow.ensure_ready()
    silent = make(limits=Limits(load_seconds=0.5), load_delay=30)
    with pytest.raises(RunnerTimeoutError, match=r"no progress for 0.5 s"):
        await silent.ensure_ready()


async def test_a_program_that_is_no_runner_is_named() -> None:
    missing = RunnerProcess("m", "x", command=["/nowhere/python"])
    with pytest.raises(FileNotFoundError):
        await missing.ensure_ready()
    other = RunnerProcess("m", "x", command=[sys.executable, "-c", "print('I am no runner'); raise SystemExit(5)"])
    with pytest.raises(RunnerCrashedError, match="exit code 5"):
        await other.ensure_ready()
    for runner in (missing, other):
        await runner.stop()


async def test_another_protocol_is_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_PROTOCOL", "99")
    with pytest.raises(ProtocolError, match="speaks protocol 99, this side 2"):
        await make().ensure_ready()


# Trouble while running.


@pytest.mark.parametrize(
    ("how", "status"), [("SIGKILL", "signal SIGKILL"), ("SIGBUS", "signal SIGBUS"), (9, "exit code 9")]
)
async def test_a_crash_reaches_every_caller(make: Make, how: str | int, status: str) -> None:
    runner = make(pieces=None, delay=0.02, crash_after=5, crash_how=how)
    await runner.ensure_ready()
    results = await asyncio.gather(*(text_of(runner) for _ in range(8)), return_exceptions=True)
    assert {type(result) for result in results} == {RunnerCrashedError}
    assert all(status in str(result) for result in results)
    assert len({id(result) for result in results}) == 8
    with pytest.raises(EngineClosedError):
        await runner.ping()


async def test_a_fault_in_native_code_leaves_a_trace(make: Make) -> None:
    runner = make(pieces=None, crash_after=0, crash_how="SIGSEGV")
    await runner.ensure_ready()
    with pytest.raises(RunnerCrashedError) as crash:
        await text_of(runner)
    assert crash.value.status == "signal SIGSEGV"
    assert "Fatal Python error: Segmentation fault" in crash.value.last_lines
    assert runner.state is State.FAILED


async def test_a_child_that_no_longer_listens_is_killed(make: Make) -> None:
    runner = make(limits=Limits(ping_seconds=0.1, silence_seconds=0.5), pieces=None, delay=0.01, hang_after=3)
    await runner.ensure_ready()
    with pytest.raises(RunnerTimeoutError, match="has not answered"):
        await text_of(runner)


async def test_an_idle_child_is_not_watched(make: Make) -> None:
    runner = make(limits=Limits(ping_seconds=0.05, silence_seconds=0.1))
    await runner.ensure_ready()
    await asyncio.sleep(0.5)
    assert await text_of(runner) == "abababab"


async def test_a_slow_sequence_is_no_silence(make: Make) -> None:
    runner = make(limits=Limits(ping_seconds=0.1, silence_seconds=1), pieces=1, delay=1.5)
    await runner.ensure_ready()
    assert await text_of(runner) == "ab"


async def test_a_stop_of_this_process_is_no_silence_of_the_child(make: Make) -> None:
    """As by Ctrl-Z for all of them, and `fg` later."""
    runner = make(limits=Limits(ping_seconds=0.1, silence_seconds=1), pieces=1, delay=4)
    await runner.ensure_ready()
    pid = runner.pid
    assert pid is not None
    answer = asyncio.create_task(text_of(runner))
    await asyncio.sleep(0.5)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(2)
    os.kill(pid, signal.SIGCONT)
    assert await answer == "ab"
    assert runner.pid == pid


@pytest.mark.parametrize("kind", ["frames", "noise", "unknown"])
async def test_what_is_not_the_protocol_ends_the_child(make: Make, kind: str) -> None:
    runner = make(flood=kind, pieces=None, delay=0.01)
    await runner.ensure_ready()
    pid = runner.pid
    with pytest.raises(ProtocolError):
        await text_of(runner)
    assert pid is not None and await gone(pid)


async def test_a_flood_of_answers_nobody_asked_for_is_dropped(make: Make) -> None:
    runner = make(flood="steps")
    await runner.ensure_ready()
    assert await text_of(runner) == "abababab"


async def test_a_flood_of_log_lines_is_read_and_bounded(make: Make) -> None:
    runner = make(flood="log")
    await runner.ensure_ready()
    assert await text_of(runner) == "abababab"
    await runner.stop()
    assert len(runner.last_lines) == 20
    assert sum(map(len, runner.last_lines)) < 20 * 2_001


async def test_a_child_that_ignores_the_request_to_stop_is_killed(make: Make) -> None:
    runner = make(limits=Limits(stop_seconds=0.3), ignore_shutdown=True)
    await runner.ensure_ready()
    await runner.stop()
    assert runner.state is State.STOPPED


async def test_stopping_while_loading_and_while_running(make: Make) -> None:
    loading = make(load_delay=60)
    waiter = asyncio.create_task(loading.ensure_ready())
    await asyncio.sleep(0.3)
    await loading.stop()
    with pytest.raises(EngineClosedError, match="was stopped"):
        await waiter
    running = make(pieces=None, delay=0.01)
    await running.ensure_ready()
    reader = asyncio.create_task(text_of(running))
    await asyncio.sleep(0.1)
    await asyncio.gather(running.stop(), running.stop())
    await asyncio.wait([reader])
    assert reader.exception() is None or isinstance(reader.exception(), RsllmError)
    await running.ensure_ready()
    assert running.state is State.READY


async def test_a_request_while_it_stops_starts_another_child(make: Make) -> None:
    runner = make()
    await runner.ensure_ready()
    first = runner.pid
    stopping = asyncio.create_task(runner.stop())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await runner.ensure_ready()
    await stopping
    assert runner.state is State.READY
    assert runner.pid != first


async def test_a_child_may_have_a_memory_limit(make: Make) -> None:
    runner = make(limits=Limits(memory_bytes=400 << 20))
    assert (await runner.ensure_ready())["context"] == 4096
    with pytest.raises(MemoryError):  # a kB a token
        await runner.logits([1] * 600_000)


PARENT = """
import asyncio, sys
from rsllm.options import validate
from rsllm.runner.process import RunnerProcess
from tests.support.fake_runner import COMMAND, fake_path

async def main():
    runner = RunnerProcess("orphan", fake_path(pieces=None, delay=0.01, load_delay=float(sys.argv[1])), command=COMMAND)
    ready = asyncio.create_task(runner.ensure_ready())
    if sys.argv[1] == "0":
        await ready
        generation = await runner.generate([1], validate({}))
        await anext(generation)
    else:
        await asyncio.sleep(0.5)
    print(runner.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("load_delay", ["0", "60"], ids=["running", "loading"])
async def test_no_child_outlives_a_parent_that_is_killed(load_delay: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT), load_delay], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    with parent:
        assert parent.stdout is not None
        pid = int(await asyncio.to_thread(parent.stdout.readline))
        assert not (Path(f"/proc/{pid}/cmdline").read_bytes() == b"")
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    assert await gone(pid)


async def test_nothing_is_left_open(make: Make) -> None:
    async def use() -> None:
        runner = make(pieces=3)
        await runner.ensure_ready()
        await text_of(runner)
        await runner.stop()

    await use()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        await use()
    assert len(os.listdir("/proc/self/fd")) <= before
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and not task.done()]
