"""Sequences that are read more slowly than they are made: nothing piles up here, nothing is lost, nobody else waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rsllm.options import validate
from rsllm.runner import child
from rsllm.runner.child import RunnerGeneration
from tests.unit.test_runner_process import Make, make, text_of

__all__ = ["make"]
pytestmark = pytest.mark.timeout(60)

TOKENS = 20_000


async def started(make: Make, **behaviour: Any) -> tuple[Any, RunnerGeneration]:
    runner = make(**{"pieces": None, "context": 10**6, "text": "x", **behaviour})
    await runner.ensure_ready()
    return runner, await runner.generate([1], validate({"max_tokens": TOKENS}))


async def settled(generation: RunnerGeneration) -> int:
    """How many bytes wait once there is no more to come."""
    before = -1
    while (waiting := generation._waiting_bytes) != before:
        before = waiting
        await asyncio.sleep(0.3)
    return waiting


async def test_what_nobody_reads_is_held_back(make: Make) -> None:
    runner, generation = await started(make)
    await anext(generation)
    waiting = await settled(generation)
    # What was on its way when the child was told to stop comes as well.
    assert child._AHEAD <= waiting < 4 * child._AHEAD
    for _ in range(100):
        await anext(generation)
    assert child._FEW < await settled(generation) <= waiting - 100 * child._PIECE_BYTES, "it has enough"
    # Others are served all the while.
    assert len(await text_of(runner, max_tokens=50)) >= 50


async def test_nothing_is_lost_however_it_is_read(make: Make) -> None:
    _, generation = await started(make, says=[f"{number} " for number in range(TOKENS)])
    said = []
    async for piece in generation:
        said.append(piece)
        if len(said) % 700 == 1:
            await asyncio.sleep(0.05)
    assert "".join(said) == "".join(f"{number} " for number in range(TOKENS))
    assert generation.stats is not None and generation.stats.generated_tokens == TOKENS
    assert generation._waiting_bytes == 0


async def test_a_paused_sequence_can_be_cancelled_and_leaves_no_trace(make: Make) -> None:
    runner, generation = await started(make)
    await anext(generation)
    await settled(generation)
    generation.cancel()
    with pytest.raises(StopAsyncIteration):
        while True:
            await anext(generation)
    for _ in range(200):
        if not (await runner.stats())["metrics"]["running"]:
            break
        await asyncio.sleep(0.02)
    assert (await runner.stats())["metrics"]["running"] == 0
    assert len(await text_of(runner, max_tokens=50)) >= 50


async def test_all_paused_and_then_a_new_one(make: Make) -> None:
    runner, first = await started(make)
    others = [await runner.generate([1], validate({"max_tokens": TOKENS})) for _ in range(3)]
    for generation in (first, *others):
        await anext(generation)
    for generation in (first, *others):
        await settled(generation)
    assert len(await text_of(runner, max_tokens=50)) >= 50
    await runner.stop()


async def test_a_child_that_dies_says_so_to_who_is_slow(make: Make) -> None:
    _, generation = await started(make, crash_after=3000)
    await anext(generation)
    await settled(generation)
    with pytest.raises(Exception, match="SIGKILL"):
        async for _ in generation:
            pass
