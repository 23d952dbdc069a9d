"""The asynchronous twins: the event loop goes on, and every ending cancels."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import rsllm
from rsllm.errors import ContextLengthError, OptionError
from tests.unit.fake_core import WHOLE


async def test_astream_equals_stream(model: rsllm.Model) -> None:
    assert "".join([token async for token in model.astream("hi")]) == WHOLE
    assert (await model.agenerate("hi")).text == WHOLE


async def test_the_event_loop_ticks_while_the_engine_works(model: rsllm.Model, core: Any) -> None:
    core.behaviour.delay = 0.3
    gaps = []

    async def ticker() -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.05)
            gaps.append(time.monotonic() - last)
            last = time.monotonic()

    task = asyncio.create_task(ticker())
    await model.agenerate("a long prompt")
    task.cancel()
    # Waiting on this thread would show as one gap of 1.2 s and no tick at all.
    assert len(gaps) >= 10


async def test_more_streams_than_any_thread_pool_has_workers(model: rsllm.Model, core: Any) -> None:
    core.behaviour.delay = 0.02
    replies = await asyncio.gather(*(model.agenerate("hi") for _ in range(40)))
    assert [reply.text for reply in replies] == [WHOLE] * 40


async def test_cancelling_the_task_cancels_the_generation(model: rsllm.Model, core: Any) -> None:
    core.behaviour.endless = True
    core.behaviour.delay = 0.01
    task = asyncio.create_task(model.agenerate("hi"))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert core.behaviour.engines[0].generations[0].cancelled.is_set()


async def test_closing_and_leaving_cancel(model: rsllm.Model, core: Any) -> None:
    core.behaviour.endless = True
    async with model.astream("hi") as stream:
        async for _ in stream:
            break
    assert core.behaviour.engines[0].generations[0].cancelled.is_set()
    assert stream.stats is not None
    assert [token async for token in stream] == []


async def test_a_dropped_stream_is_cancelled(model: rsllm.Model, core: Any) -> None:
    core.behaviour.endless = True
    stream = model.astream("hi")
    await anext(stream)
    del stream
    gc.collect()
    assert core.behaviour.engines[0].generations[0].cancelled.wait(5)


async def test_a_slow_reader_holds_the_engine_back(model: rsllm.Model, core: Any) -> None:
    core.behaviour.endless = True
    stream = model.astream("hi")
    await anext(stream)
    await asyncio.sleep(0.3)
    generated = core.behaviour.engines[0].generations[0].stats()["generated_tokens"]
    await stream.aclose()
    assert generated < 100


async def test_closing_before_the_first_step_starts_nothing(model: rsllm.Model, core: Any) -> None:
    stream = model.astream("hi")
    await stream.aclose()
    assert [token async for token in stream] == []
    assert core.behaviour.engines[0].generations == []


async def test_options_are_checked_at_the_call_and_the_prompt_at_the_first_step(model: rsllm.Model) -> None:
    with pytest.raises(OptionError):
        model.astream("hi", temperature=-1)
    stream = model.astream("x" * 300)
    with pytest.raises(ContextLengthError):
        await anext(stream)


async def test_an_error_reaches_the_reader(model: rsllm.Model, core: Any) -> None:
    core.behaviour.fail_after = 2
    with pytest.raises(RuntimeError, match="failed as asked"):
        await model.agenerate("hi")


async def test_threads_end_with_their_streams(model: rsllm.Model) -> None:
    for _ in range(5):
        await model.agenerate("hi")
    await asyncio.sleep(0.05)
    assert not [thread for thread in threading.enumerate() if thread.name == "rsllm-stream"]


def test_an_unfinished_stream_does_not_keep_the_interpreter_alive() -> None:
    script = textwrap.dedent(
        """
        import asyncio, tempfile
        import rsllm.model
        from tests.unit import fake_core
        rsllm.model._core = fake_core
        fake_core.behaviour.endless = True
        with tempfile.NamedTemporaryFile() as file:
            model = rsllm.Model(file.name)
        loop = asyncio.new_event_loop()
        stream = model.astream("hi")
        print(loop.run_until_complete(anext(stream)))
        """
    )
    run = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=20,
        stdin=subprocess.DEVNULL,
        cwd=Path(__file__).parents[2],
    )
    assert (run.stdout, run.stderr, run.returncode) == ("Hello\n", "", 0)
