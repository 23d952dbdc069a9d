"""The pool with real processes that run no model."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rsllm.config import Config
from rsllm.errors import (
    EngineClosedError,
    MemoryPlanError,
    ModelError,
    QueueFullError,
    RequestTimeoutError,
    RunnerCrashedError,
    RunnerTimeoutError,
)
from rsllm.options import validate
from rsllm.runner.policy import FOREVER, RunnerOptions
from rsllm.runner.pool import RunnerPool
from rsllm.runner.process import Limits
from rsllm.runner.scheduler import Phase, Settings
from tests.support.fake_runner import COMMAND, fake_path

pytestmark = pytest.mark.timeout(60)


def new_pool(*, limits: Limits | None = None, available: int = 10**12, **settings: Any) -> RunnerPool:
    return RunnerPool(Settings(**settings), limits=limits, command=COMMAND, available_bytes=lambda: available)


@pytest.fixture
async def pool() -> AsyncIterator[RunnerPool]:
    async with new_pool() as pool:
        yield pool


async def ask(pool: RunnerPool, path: str, *, options: dict[str, Any] | None = None, **arguments: Any) -> str:
    async with pool.use(path, **arguments) as model:
        return "".join([token async for token in await model.generate([1, 2], validate(options or {}))])


async def until(true: Any) -> None:
    for _ in range(400):
        if true():
            return
        await asyncio.sleep(0.025)
    raise AssertionError("it did not come true")


async def test_a_model_is_loaded_shared_and_dropped(pool: RunnerPool) -> None:
    path = fake_path()
    async with pool.use(path, name="tiny", keep_alive=0) as model:
        assert model.info["context"] == 4096
        assert model.info["context_reason"] == "the model's limit"
        assert model.plan is not None and model.plan.kv_bytes == 4_096_000
        assert model.special_tokens["eos"] == 0
        assert await model.tokenize([("hi", False)]) == [104, 105]
        assert await model.detokenize([104, 105]) == "hi"
        assert len(await model.logits([1, 2])) == 2048
        assert len(await model.embed([[1], [2]], {})) == 32
        generation = await model.generate([1, 2], validate({}))
        assert "".join([token async for token in generation]) == "abababab"
        assert generation.stats is not None and generation.stats.finish_reason == "stop"
        (status,) = pool.status()
        assert (status.name, status.phase, status.requests, status.running) == ("tiny", Phase.READY, 1, 0)
        assert status.own_bytes > 0
        assert pool.metrics().loaded == 1
    await until(lambda: not pool.status())
    assert status.pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(status.pid, 0)


async def test_the_same_file_under_two_names_is_one_model(pool: RunnerPool) -> None:
    path = fake_path()
    await asyncio.gather(ask(pool, path, name="a"), ask(pool, path, name="b"))
    assert pool.metrics().counts.loads == 1


async def test_keep_alive_ends_by_itself(pool: RunnerPool) -> None:
    await pool.load(fake_path(pieces=2), keep_alive=FOREVER)
    await pool.load(fake_path(), keep_alive=0.3)
    assert len(pool.status()) == 2
    await until(lambda: len(pool.status()) == 1)
    assert pool.status()[0].expires_in == FOREVER
    assert pool.metrics().counts.expirations == 1
    assert pool.unload(fake_path(pieces=2))
    await until(lambda: not pool.status())
    assert not pool.unload(fake_path())


async def test_many_requests_run_side_by_side(pool: RunnerPool) -> None:
    path = fake_path(pieces=10, delay=0.02)
    await pool.load(path)
    begin = time.monotonic()
    texts = await asyncio.gather(*(ask(pool, path, options={"max_tokens": 10}) for _ in range(30)))
    assert texts == ["ab" * 10] * 30
    assert time.monotonic() - begin < 3  # one after the other: 6 s
    assert pool.metrics().running == 0


async def test_a_burst_while_the_model_loads_is_served_whole() -> None:
    """CON-01: 300 at once during a load."""
    async with new_pool() as pool:
        path = fake_path(load_delay=0.5)

        async def embed() -> int:
            async with pool.use(path) as model:
                return len(await model.embed([[1, 2]], {}))

        assert await asyncio.gather(*(embed() for _ in range(300))) == [16] * 300
        assert pool.metrics().counts.loads == 1


async def test_six_at_once_with_one_place_and_one_seat() -> None:
    """CON-02."""
    async with new_pool(parallel=1, max_queue=1) as pool:
        path = fake_path(pieces=5, delay=0.05)
        await pool.load(path)
        results = await asyncio.gather(*(ask(pool, path) for _ in range(6)), return_exceptions=True)
        assert [result for result in results if isinstance(result, str)] == ["ab" * 5] * 2
        assert sum(isinstance(result, QueueFullError) for result in results) == 4
        assert await ask(pool, path) == "ab" * 5


@pytest.mark.parametrize("where", ["queued", "placed", "loading", "holding"])
async def test_a_caller_that_leaves_frees_what_it_had(where: str) -> None:
    """CON-03: in the queue, while running, and while the model loads."""
    async with new_pool(parallel=1) as pool:
        path = fake_path(pieces=None, delay=0.02, load_delay=30 if where == "loading" else 0)
        if where == "loading":
            task = asyncio.create_task(ask(pool, path))
            await until(lambda: pool.status() and pool.status()[0].phase is Phase.LOADING)
        else:
            await pool.load(path)
            task = asyncio.create_task(ask(pool, path))
            await until(lambda: pool.metrics().running == 1)
        if where == "queued":
            other, task = task, asyncio.create_task(ask(pool, path))
            await until(lambda: pool.metrics().waiting == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert pool.metrics().waiting == 0
        if where == "loading":
            await until(lambda: not pool.status())
        elif where == "queued":
            assert pool.metrics().running == 1
            other.cancel()
            await asyncio.wait([other])
        assert pool.metrics().running == 0
        # What the runner ran is over too, and the place serves the next one.
        if where != "loading":
            assert await ask(pool, path, options={"max_tokens": 3}) == "ababab"


async def test_requests_have_a_time_limit_wherever_they_are() -> None:
    async with new_pool(parallel=1) as pool:
        with pytest.raises(RequestTimeoutError, match=r"longer than 0.5 s") as error:
            await ask(pool, fake_path(load_delay=30), timeout=0.5)
        assert error.value.seconds == 0.5
        path = fake_path(pieces=None, delay=0.02)
        await pool.load(path)
        results = await asyncio.gather(*(ask(pool, path, timeout=0.4) for _ in range(2)), return_exceptions=True)
        assert [type(result) for result in results] == [RequestTimeoutError] * 2
        assert pool.metrics().running == pool.metrics().waiting == 0


async def test_the_least_recently_used_goes_for_another() -> None:
    async with new_pool(max_loaded=2) as pool:
        paths = [fake_path(text=text) for text in "abc"]
        for path in paths:
            await pool.load(path)
        assert {status.path for status in pool.status() if status.phase is Phase.READY} == set(paths[1:])
        assert pool.metrics().counts.evictions == 1


async def test_a_model_in_use_is_waited_for() -> None:
    async with new_pool(max_loaded=1) as pool:
        first = fake_path(pieces=20, delay=0.02)
        await pool.load(first)
        running = asyncio.create_task(ask(pool, first))
        await until(lambda: pool.metrics().running == 1)
        assert await ask(pool, fake_path(text="x")) == "xxxx"
        assert await running == "ab" * 20


async def test_what_does_not_fit_is_refused_before_it_is_loaded() -> None:
    async with new_pool(available=3_000_000) as pool:
        with pytest.raises(MemoryPlanError) as error:
            await pool.load(fake_path())
        assert error.value.needed_bytes == 5_096_000
        await until(lambda: not pool.status())
        assert (await pool.load(fake_path(), options=RunnerOptions(context=1000)))["context"] == 1000


async def test_other_options_load_it_anew_and_smaller_contexts_do_not(pool: RunnerPool) -> None:
    """CON-04."""
    path = fake_path()
    await pool.load(path, options=RunnerOptions(context=2048))
    await pool.load(path, options=RunnerOptions(context=512))
    assert pool.metrics().counts.loads == 1
    assert (await pool.load(path, options=RunnerOptions(context=4000)))["context"] == 4000
    assert pool.metrics().counts.reloads == 1


# Trouble.


async def test_a_killed_runner_is_an_error_for_its_callers_and_nobody_else(pool: RunnerPool) -> None:
    path, other = fake_path(pieces=None, delay=0.02), fake_path(pieces=20, delay=0.05)
    await asyncio.gather(pool.load(path), pool.load(other))
    callers = [asyncio.create_task(ask(pool, path)) for _ in range(5)]
    bystander = asyncio.create_task(ask(pool, other))
    await until(lambda: pool.metrics().running == 6)
    pid = next(status.pid for status in pool.status() if status.path == path)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    results = await asyncio.gather(*callers, return_exceptions=True)
    assert [type(result) for result in results] == [RunnerCrashedError] * 5
    assert all("signal SIGKILL" in str(result) for result in results)
    assert await ask(pool, path, options={"max_tokens": 2}) == "abab"
    assert await bystander == "ab" * 20
    counts = pool.metrics().counts
    assert (counts.crashes, counts.loads) == (1, 3)


async def test_a_runner_that_dies_idle_is_started_again(pool: RunnerPool) -> None:
    path = fake_path()
    await pool.load(path)
    os.kill(pool.status()[0].pid, signal.SIGKILL)  # type: ignore[arg-type]
    await until(lambda: not pool.status())
    assert await ask(pool, path) == "abababab"


async def test_a_failed_load_is_everybodys_error_and_the_next_may_try_again(pool: RunnerPool) -> None:
    path = fake_path(load_error="a missing tensor")
    results = await asyncio.gather(*(ask(pool, path) for _ in range(5)), return_exceptions=True)
    assert [str(result) for result in results] == ["a missing tensor"] * 5
    assert pool.status() == []
    assert pool.metrics().counts.load_failures == 1
    with pytest.raises(ModelError):
        await ask(pool, path)
    with pytest.raises(RunnerCrashedError, match="exit code 7"):
        await ask(pool, fake_path(crash_at_load=7))
    with pytest.raises(FileNotFoundError):
        await ask(pool, "/nowhere.gguf")


async def test_a_hung_load_ends_by_its_limit() -> None:
    async with new_pool(limits=Limits(load_seconds=0.5)) as pool:
        with pytest.raises(RunnerTimeoutError, match="no progress"):
            await pool.load(fake_path(load_delay=60))


async def test_closing_ends_everything() -> None:
    pool = new_pool(max_loaded=1)
    path = fake_path(pieces=None, delay=0.02)
    await pool.load(path)
    running = asyncio.create_task(ask(pool, path))
    await until(lambda: pool.metrics().running == 1)
    waiting = asyncio.create_task(ask(pool, fake_path(text="other")))
    await asyncio.sleep(0.1)
    pids = [status.pid for status in pool.status()]
    await pool.close()
    for task in (running, waiting):
        with pytest.raises(EngineClosedError):
            await task
    for pid in pids:
        if pid is not None:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
    assert pool.status() == []
    with pytest.raises(EngineClosedError):
        await pool.load(path)


async def test_a_lease_computes_one_thing_at_a_time(pool: RunnerPool) -> None:
    path = fake_path(pieces=None, delay=0.02)
    async with pool.use(path) as model:
        generation = await model.generate([1], validate({}))
        await anext(generation)
        with pytest.raises(RuntimeError, match="one thing at a time"):
            await model.logits([1])
        await generation.aclose()
        assert pool.metrics().running == 0
        await model.logits([1])
    with pytest.raises(EngineClosedError):
        await model.generate([1], validate({}))


async def test_tokenising_while_the_model_is_unloaded_over_and_over(pool: RunnerPool) -> None:
    """CVE-2026-43631: the field's use-after-free: tokenise and unload at the same time."""
    path = fake_path()

    async def tokenise(text: str) -> list[int]:
        async with pool.use(path, keep_alive=0) as model:
            return await model.tokenize([(text, False)])

    for _ in range(5):
        results = await asyncio.gather(*(tokenise(str(number)) for number in range(10)))
        assert results == [list(str(number).encode()) for number in range(10)]
        pool.unload(path)


async def test_a_pool_by_the_rules_of_the_environment() -> None:
    environment = {
        "HOME": "/home/u",
        "OLLAMA_MAX_LOADED_MODELS": "2",
        "OLLAMA_NUM_PARALLEL": "5",
        "OLLAMA_KEEP_ALIVE": "0",
        "OLLAMA_KV_CACHE_TYPE": "q8_0",
    }
    async with RunnerPool.from_config(Config.from_environment(environment), command=COMMAND) as pool:
        info = await pool.load(fake_path())
        assert info["options"] == {"kv_type": "q8_0", "max_sequences": 5, "context": 4096}
        await until(lambda: not pool.status())


async def spare_of(pool: RunnerPool) -> int:
    await until(lambda: pool._effects._spare is not None)
    spare = pool._effects._spare
    assert spare is not None and spare.pid is not None
    return spare.pid


async def test_a_process_that_was_started_ahead_goes_to_the_first_model() -> None:
    async with RunnerPool(command=COMMAND, available_bytes=lambda: 10**12, warm=True) as pool:
        pid = await spare_of(pool)
        assert pool.status() == []
        assert await ask(pool, fake_path(), name="first") == "abababab"
        assert await ask(pool, fake_path(text="2"), name="second") == "2222"
        assert [status.pid == pid for status in pool.status()] == [True, False]


async def test_a_process_that_was_started_ahead_and_died_is_not_used() -> None:
    async with RunnerPool(command=COMMAND, available_bytes=lambda: 10**12, warm=True) as pool:
        pid = await spare_of(pool)
        os.kill(pid, signal.SIGKILL)
        spare = pool._effects._spare
        await until(lambda: spare is not None and spare.pid is None)
        assert await ask(pool, fake_path()) == "abababab"


async def test_a_process_that_nobody_needed_ends_with_the_pool() -> None:
    async with RunnerPool(command=COMMAND, available_bytes=lambda: 10**12, warm=True) as pool:
        pid = await spare_of(pool)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
