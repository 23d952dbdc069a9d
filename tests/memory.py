"""Memory that was planned and memory that is taken: `python -m tests.memory [--short] [MODEL.gguf …]`.

Three things are measured and printed, and the exit status is 1 where one does not hold:

- The plan. Each model is planned and loaded in a process of its own, with its whole context (`--short`: 1,024 tokens).
  KV, scratch and weights must be planned to the byte. Then the context is filled to its last token, and the process's
  anonymous memory must be the plan's within 5 % + 32 MiB.
- Runners. A model is loaded, asked and dropped over and over (`keep_alive` 0): the server's process must not grow, and
  no process, descriptor or thread may be left.
- Models in this process, loaded and closed over and over: as above.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rsllm
from rsllm.options import validate
from rsllm.runner.plan import MemoryPlan
from rsllm.runner.policy import RunnerOptions
from rsllm.runner.pool import RunnerPool
from rsllm.runner.process import RunnerProcess
from rsllm.system import anonymous_bytes
from tests.support import assets

__all__ = ["Filled", "Growth", "filled", "growth_in_process", "growth_of_runners"]

SLACK_BYTES = 32 << 20
SLACK_SHARE = 0.05
# What an allocator may keep for itself, once.
GROWTH_BYTES = 16 << 20
EXACT = ("context", "weight_bytes", "kv_bytes", "scratch_bytes")
PROMPT = "The capital of France is"


@dataclass(frozen=True)
class Filled:
    """A model with a full context."""

    plan: MemoryPlan
    info: dict[str, int]
    """What the engine says that it has allocated."""
    loaded_bytes: int
    """Anonymous memory before the first token."""
    full_bytes: int
    """The same when the context is full."""

    @property
    def problems(self) -> list[str]:
        """What does not hold."""
        found = [
            f"{figure} is {self.info[figure]}, planned were {getattr(self.plan, figure)}"
            for figure in EXACT
            if self.info[figure] != getattr(self.plan, figure)
        ]
        slack = SLACK_SHARE * self.plan.own_bytes + SLACK_BYTES
        if abs(self.full_bytes - self.plan.own_bytes) > slack:
            found.append(f"{self.full_bytes} bytes are taken, {self.plan.own_bytes} were planned")
        return found

    def line(self) -> str:
        """The figures."""
        plan = self.plan
        difference = self.full_bytes - plan.own_bytes
        return (
            f"context {plan.context}: planned {_mib(plan.kv_bytes)} of KV + {_mib(plan.scratch_bytes)} of scratch = "
            f"{_mib(plan.own_bytes)}; anonymous when loaded {_mib(self.loaded_bytes)}, when full "
            f"{_mib(self.full_bytes)} ({difference / plan.own_bytes:+.1%}, {_mib(difference)}); "
            f"{_mib(plan.weight_bytes)} of weights are mapped"
        )


@dataclass(frozen=True)
class Growth:
    """What many rounds have left behind."""

    rounds: int
    bytes: int
    descriptors: int
    threads: int
    processes: int

    @property
    def problems(self) -> list[str]:
        """What does not hold."""
        found = [f"memory grew by {self.bytes} bytes"] if self.bytes > GROWTH_BYTES else []
        left = {"descriptors": self.descriptors, "threads": self.threads, "processes": self.processes}
        return [*found, *(f"{count} {name} are left" for name, count in left.items() if count > 0)]

    def line(self) -> str:
        """The figures."""
        return (
            f"{self.rounds} rounds: {self.bytes / 1024:+.0f} KiB, {self.descriptors:+} descriptors, "
            f"{self.threads:+} threads, {self.processes:+} processes"
        )


async def filled(path: Path, context: int | None = None, kv_type: str = "f16") -> Filled:
    """Load a model as it was planned and fill its context; `None`: the one it was trained for."""
    options = RunnerOptions(context=context or _training_context(path), kv_type=kv_type).given()
    runner = RunnerProcess(path.name, path, options)
    try:
        plan = await runner.plan()
        assert plan is not None, "the core plans"
        info = await runner.ensure_ready()
        loaded = runner.anonymous_bytes()
        # As many at once as a step takes, so that each has had its row of logits, and then one as long as can be.
        most = int(info["max_sequences"])
        await asyncio.gather(*(_answer(runner, [5 + number] * 3, max_tokens=8) for number in range(most)))
        # Ids of no meaning, and no two stretches alike, so that all pages are in use.
        prompt = [5 + (number * 7919 + number // 900) % 900 for number in range(plan.context - 24)]
        assert await _answer(runner, prompt) == "context"
        return Filled(plan, {name: info[name] for name in EXACT}, loaded, runner.anonymous_bytes())
    finally:
        await runner.stop()


async def _answer(runner: RunnerProcess, prompt: list[int], **options: Any) -> str:
    generation = await runner.generate(prompt, validate({"ignore_eos": True, **options}))
    async for _ in generation:
        pass
    assert generation.stats is not None
    return generation.stats.finish_reason


async def growth_of_runners(path: Path, rounds: int) -> Growth:
    """Load, ask and drop a model in processes of its own."""
    async with RunnerPool() as pool:

        async def once() -> None:
            async with pool.use(path, options=RunnerOptions(context=512), keep_alive=0) as model:
                ids = await model.tokenize([(PROMPT, True)], add_special=True)
                async for _ in await model.generate(ids, validate({"max_tokens": 4})):
                    pass
            while pool.status():
                await asyncio.sleep(0.01)

        await once()
        before = _held()
        for _ in range(rounds):
            await once()
        return _growth(rounds, before)


def growth_in_process(path: Path, rounds: int) -> Growth:
    """Load, ask and close a model in this process."""

    def once() -> None:
        with rsllm.load(path, context=2048) as model:
            model.generate(PROMPT, max_tokens=4)

    once()
    before = _held()
    for _ in range(rounds):
        once()
    return _growth(rounds, before)


def _held() -> tuple[int, int, int, int]:
    gc.collect()
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    threads = len(os.listdir("/proc/self/task"))
    return anonymous_bytes(os.getpid()) or 0, len(os.listdir("/proc/self/fd")), threads, len(children)


def _growth(rounds: int, before: tuple[int, int, int, int]) -> Growth:
    memory, descriptors, threads, processes = (now - then for now, then in zip(_held(), before, strict=True))
    return Growth(rounds, memory, descriptors, threads, processes)


def _training_context(path: Path) -> int:
    metadata = rsllm.gguf.open(path).metadata
    return int(metadata[f"{metadata['general.architecture']}.context_length"])


def _mib(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB"


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; 0 if all holds."""
    parser = argparse.ArgumentParser(prog="python -m tests.memory", description=__doc__.split("\n\n")[0])
    parser.add_argument("--short", action="store_true", help="short contexts and few rounds")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("models", nargs="*", type=Path, help="GGUF files; default: both real models")
    parsed = parser.parse_args(arguments)
    rounds = 10 if parsed.short else parsed.rounds
    problems: list[str] = []

    def show(what: str, found: Filled | Growth) -> None:
        print(f"{what}: {found.line()}", flush=True)
        problems.extend(f"{what}: {problem}" for problem in found.problems)

    for path in parsed.models or [assets.smollm2_path(), assets.gemma3_path()]:
        for kv_type in ("f16", "q8_0"):
            context = 1024 if parsed.short else None
            show(f"{path.name}, KV {kv_type}", asyncio.run(filled(path, context, kv_type)))
        show(f"{path.name}, runners", asyncio.run(growth_of_runners(path, rounds)))
        show(f"{path.name}, in process", growth_in_process(path, rounds))
    print("\n".join(problems) or "holds")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
