"""Runners with a real model: the same tokens as in process, crashes that end one request, nothing left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import rsllm
from rsllm.config import Config
from rsllm.errors import BackendError, ContextLengthError, GgufError, OptionError, RunnerCrashedError
from rsllm.options import validate
from rsllm.runner.policy import RunnerOptions
from rsllm.runner.pool import RunnerPool
from rsllm.runner.process import WORKER_COMMAND, RunnerProcess
from rsllm.runner.scheduler import Settings
from tests.memory import filled, growth_in_process, growth_of_runners
from tests.soak_runner import fake_models, real_models, soak, steady
from tests.support.fake_runner import COMMAND as FAKE_COMMAND
from tests.support.fake_runner import ROOT, fake_path

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(300)]

PROMPTS = ("The capital of France is", "Once upon a time", "def fibonacci(n):", "Emoji: 😀😃😄 → 👩‍👩‍👧 ")
CONTEXT = RunnerOptions(context=512)


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> Iterator[rsllm.Model]:
    with rsllm.load(smollm2_path, context=512) as model:
        yield model


@pytest.fixture
async def pool() -> AsyncIterator[RunnerPool]:
    async with RunnerPool(Settings(max_loaded=2)) as pool:
        yield pool


async def answer(pool: RunnerPool, path: Path, prompt: str, **options: object) -> tuple[str, list[int]]:
    async with pool.use(path, options=CONTEXT) as model:
        ids = await model.tokenize([(prompt, True)], add_special=True)
        tokens = [token async for token in await model.generate(ids, validate(options))]
    return "".join(tokens), [id for token in tokens for id in token.ids]


async def test_the_same_tokens_in_and_out_of_process(model: rsllm.Model, pool: RunnerPool, smollm2_path: Path) -> None:
    cases = [(prompt, seed) for prompt in PROMPTS for seed in (1, 2)]
    outside = await asyncio.gather(
        *(answer(pool, smollm2_path, prompt, seed=seed, max_tokens=12, temperature=0.9) for prompt, seed in cases)
    )
    inside = [model.generate(prompt, seed=seed, max_tokens=12, temperature=0.9) for prompt, seed in cases]
    assert outside == [(reply.text, reply.tokens) for reply in inside]


async def test_the_same_numbers_in_and_out_of_process(model: rsllm.Model, pool: RunnerPool, smollm2_path: Path) -> None:
    async with pool.use(smollm2_path, options=CONTEXT) as runner:
        text = "special <|im_start|> and plain"
        ids = await runner.tokenize([(text, True)])
        assert ids == model.tokenize(text, parse_special=True)
        assert await runner.detokenize(ids) == model.detokenize(ids)
        assert await runner.logits(ids * 12) == model.logits(ids * 12).tobytes()
        options = validate({"max_tokens": 3, "temperature": 0.0, "logprobs": 2})
        tokens = [token async for token in await runner.generate(ids, options)]
    here = model.generate(ids, max_tokens=3, temperature=0.0, logprobs=2)
    assert [entry for token in tokens for entry in token.logprobs or ()] == here.logprobs


async def test_errors_of_the_core_are_the_callers(pool: RunnerPool, smollm2_path: Path, tmp_path: Path) -> None:
    async with pool.use(smollm2_path, options=CONTEXT) as runner:
        with pytest.raises(ContextLengthError) as error:
            async for _ in await runner.generate([1] * 600, validate({})):
                pass
        assert (error.value.prompt_tokens, error.value.context) == (600, 512)
        with pytest.raises(OptionError):
            async for _ in await runner.generate([1], {**validate({}), "temperature": "hot"}):
                pass
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"<!DOCTYPE html>")
    with pytest.raises(GgufError) as damaged:
        await pool.load(bad)
    assert damaged.value.file == str(bad)
    with pytest.raises(FileNotFoundError):
        await pool.load(tmp_path / "none.gguf")


async def test_a_kill_in_mid_sentence_is_a_named_error_and_the_pool_goes_on(
    pool: RunnerPool, smollm2_path: Path
) -> None:
    async def long() -> None:
        async with pool.use(smollm2_path, options=CONTEXT) as runner:
            generation = await runner.generate([1, 2, 3], validate({"ignore_eos": True}))
            await anext(generation)
            started.set()
            async for _ in generation:
                pass

    started = asyncio.Event()
    await pool.load(smollm2_path, options=CONTEXT)
    callers = [asyncio.create_task(long()) for _ in range(3)]
    await started.wait()
    (status,) = pool.status()
    assert status.pid is not None
    os.kill(status.pid, signal.SIGKILL)
    results = await asyncio.gather(*callers, return_exceptions=True)
    assert [type(result) for result in results] == [RunnerCrashedError] * 3
    assert "signal SIGKILL" in str(results[0])
    _, ids = await answer(pool, smollm2_path, PROMPTS[0], temperature=0.0, max_tokens=2)
    assert len(ids) == 2
    assert pool.metrics().counts.crashes == 1


async def test_a_caller_that_leaves_frees_the_engine(pool: RunnerPool, smollm2_path: Path) -> None:
    """CON-03 (a, b): the next request does not wait for what nobody reads any more."""
    async with pool.use(smollm2_path, options=RunnerOptions(context=4096)) as runner:
        for number, prompt in enumerate(([5] * 3000, [1, 2, 3]), start=1):
            generation = await runner.generate(prompt, validate({"ignore_eos": True}))
            await asyncio.sleep(0.2)  # in the middle of the prompt, or of the answer
            await generation.aclose()
            while (engine := (await pool.figures(60))[0].engine)["ended"] < number:
                await asyncio.sleep(0.01)
            assert engine["running"] == 0
            assert engine["prefill_tokens"] < 3000, "the prompt was computed to its end"
        generation = await runner.generate([7, 8, 9], validate({"max_tokens": 2, "ignore_eos": True}))
        tokens = [token async for token in generation]
        assert sum(len(token.ids) for token in tokens) == 2
        while (after := (await pool.figures(60))[0].engine)["ended"] < 3:
            await asyncio.sleep(0.01)
        assert after["decode_tokens"] - engine["decode_tokens"] <= 1, "nothing else was computed"


PARENT = """
import asyncio, sys
from rsllm.options import validate
from rsllm.runner.process import RunnerProcess

async def main():
    runner = RunnerProcess("orphan", sys.argv[1], {"context": 512})
    await runner.ensure_ready()
    generation = await runner.generate([1, 2, 3], validate({"ignore_eos": True}))
    await anext(generation)
    print(runner.pid, flush=True)
    async for _ in generation:
        pass

asyncio.run(main())
"""


def test_no_runner_outlives_a_parent_that_is_killed(smollm2_path: Path) -> None:
    script = [sys.executable, "-c", textwrap.dedent(PARENT), str(smollm2_path)]
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        os.kill(parent.pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while alive(pid):
        assert time.monotonic() < deadline, "the runner outlived its parent"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_random_trouble_under_load_without_a_model() -> None:
    report = await soak(FAKE_COMMAND, fake_models(), rounds=100, seed=1)
    assert report.problems == []
    assert report.rounds == 100
    assert report.outcomes["answered"] > 0 and report.outcomes["RunnerCrashedError"] > 0


async def test_many_short_requests_leave_no_trace() -> None:
    """CON-06, the short form; `python -m tests.soak_runner --steady 10000` is the long one."""
    figures = await steady(FAKE_COMMAND, fake_path(pieces=1), 500)
    assert figures["requests"] >= 500
    assert figures["parent_grew_bytes"] < 8 << 20
    assert figures["runner_grew_bytes"] < 8 << 20


@pytest.mark.soak
@pytest.mark.timeout(7200)
async def test_random_trouble_under_load_with_a_model(tmp_path: Path) -> None:
    report = await soak(WORKER_COMMAND, real_models(tmp_path), rounds=1000, seed=2)
    assert report.problems == []


async def test_a_little_random_trouble_with_a_model(smollm2_path: Path) -> None:
    report = await soak(WORKER_COMMAND, [str(smollm2_path)], rounds=5, seed=3)
    assert report.problems == []


@pytest.mark.parametrize(("memory_bytes", "fits"), [(64 << 20, False), (400 << 20, True)])
async def test_a_runner_may_have_a_memory_limit(smollm2_path: Path, memory_bytes: int, fits: bool) -> None:
    """RSLLM_RUNNER_MEMORY: mapped weights do not count, and what cannot be had is named."""
    config = Config.from_environment({"HOME": "/", "RSLLM_RUNNER_MEMORY": str(memory_bytes)})
    async with RunnerPool.from_config(config) as pool:
        if fits:
            assert (await answer(pool, smollm2_path, PROMPTS[0], max_tokens=2))[1]
        else:
            with pytest.raises(BackendError, match=r"cannot allocate \d+ bytes for `"):
                await pool.load(smollm2_path, options=CONTEXT)


@pytest.mark.parametrize("context", [None, 300, 2048])
@pytest.mark.parametrize("kv_type", ["f16", "f32"])
async def test_the_plan_is_what_is_allocated(smollm2_path: Path, context: int | None, kv_type: str) -> None:
    options = RunnerOptions(context=context, kv_type=kv_type).given()
    runner = RunnerProcess("planned", smollm2_path, options)
    try:
        plan = await runner.plan()
        assert plan is not None
        info = await runner.ensure_ready({**options, "context": plan.context})
        for figure in ("context", "weight_bytes", "kv_bytes", "scratch_bytes"):
            assert info[figure] == getattr(plan, figure), figure
    finally:
        await runner.stop()


@pytest.mark.parametrize("kv_type", ["f16", "q4_0"])
async def test_a_full_context_takes_what_was_planned(smollm2_path: Path, kv_type: str) -> None:
    """The short form; `python -m tests.memory` takes whole contexts of both real models."""
    found = await filled(smollm2_path, 1024, kv_type)
    assert found.problems == []
    # It can fail: what is planned is what is missing before the first token.
    assert found.full_bytes - found.loaded_bytes > found.plan.kv_bytes


async def test_models_that_come_and_go_leave_nothing(smollm2_path: Path) -> None:
    assert (await growth_of_runners(smollm2_path, 5)).problems == []


def test_models_of_this_process_that_come_and_go_leave_nothing(smollm2_path: Path) -> None:
    assert growth_in_process(smollm2_path, 5).problems == []
