"""Random trouble under load, for as long as one likes: `python -m tests.soak_runner --rounds 1000`.

Each round starts a few requests and does something unkind: a caller is cancelled, walks away in the middle of its
stream or out of the queue, asks for `keep_alive` 0, sets a time limit, a model is unloaded, or a runner is killed with
SIGKILL. One model fewer may be loaded than there are, so that there are evictions too.

What must hold: no request hangs; each gets an answer or a named error; an answer, whole or cut short, is the beginning
of what the model says when it is alone; in the end no process, task, thread or file descriptor is left, and memory has
not grown. The script prints the figures and exits with 1 where something does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rsllm.errors import EngineClosedError, QueueFullError, RequestTimeoutError, RsllmError, RunnerCrashedError
from rsllm.options import validate
from rsllm.runner.policy import RunnerOptions
from rsllm.runner.pool import RunnerPool
from rsllm.runner.process import WORKER_COMMAND, Limits
from rsllm.runner.scheduler import Settings
from rsllm.system import anonymous_bytes
from tests.support import assets
from tests.support.fake_runner import COMMAND as FAKE_COMMAND
from tests.support.fake_runner import fake_path

PROMPTS = ("Once upon a time", "The capital of France is", "1, 2, 3, 4,", "def main():")
TOKENS = 24
# Nothing takes longer on any machine, even one that is suspended now and then; only a hang does.
PATIENCE_SECONDS = 600
NAMED = (RunnerCrashedError, EngineClosedError, QueueFullError, RequestTimeoutError)


@dataclass
class Report:
    """What happened, and what was left."""

    rounds: int = 0
    requests: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    unkind: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    counts: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    longest_request_seconds: float = 0.0
    parent_grew_bytes: int = 0
    left: dict[str, int] = field(default_factory=dict)

    def lines(self) -> list[str]:
        figures = asdict(self) | {"outcomes": dict(self.outcomes), "unkind": dict(self.unkind)}
        return [f"{name:26} {json.dumps(value)}" for name, value in figures.items()]


class Soak:
    """One run against one pool."""

    def __init__(self, pool: RunnerPool, paths: Sequence[str], seed: int) -> None:
        self.pool = pool
        self.paths = paths
        self.random = random.Random(seed)
        self.report = Report()
        self.expected: dict[tuple[str, str], list[int]] = {}

    async def learn(self) -> None:
        """What each model says to each prompt when it is alone."""
        for path in self.paths:
            for prompt in PROMPTS:
                self.expected[path, prompt] = await self.ask(path, prompt)

    async def ask(self, path: str, prompt: str, walk_away: int | None = None, **arguments: Any) -> list[int]:
        """The token ids of an answer, or of its beginning."""
        heard: list[int] = []
        options = validate({"temperature": 0.7, "seed": 7, "max_tokens": TOKENS})
        async with self.pool.use(path, options=RunnerOptions(context=256), **arguments) as model:
            ids = await model.tokenize([(prompt, True)], add_special=True)
            try:
                async for token in await model.generate(ids, options):
                    heard += token.ids
                    if walk_away is not None and len(heard) >= walk_away:
                        break
            finally:
                self.compare(path, prompt, heard)
        return heard

    def compare(self, path: str, prompt: str, heard: list[int]) -> None:
        expected = self.expected.get((path, prompt), heard)
        if expected[: len(heard)] != heard:
            self.report.problems.append(f"{prompt!r} gave {heard} instead of {expected}")

    async def request(self) -> None:
        """One request with its own kind of trouble; its outcome is counted."""
        path, prompt = self.random.choice(self.paths), self.random.choice(PROMPTS)
        kind = self.random.choice(["calm", "calm", "walk away", "keep_alive 0", "time limit", "cancel"])
        self.report.requests += 1
        self.report.unkind[kind] += 1
        arguments: dict[str, Any] = {
            "walk away": {"walk_away": self.random.randrange(TOKENS)},
            "keep_alive 0": {"keep_alive": 0.0},
            "time limit": {"timeout": self.random.choice([0.0, 0.05, 0.5])},
        }.get(kind, {})
        begin = time.monotonic()
        task = asyncio.create_task(self.ask(path, prompt, **arguments))
        if kind == "cancel":
            await asyncio.sleep(self.random.random() * 0.5)
            task.cancel()
        done, _ = await asyncio.wait([task], timeout=PATIENCE_SECONDS)
        if not done:
            self.report.problems.append(f"a request ({kind}) hung for {PATIENCE_SECONDS} s: {self.pool.status()}")
            task.cancel()
        self.report.longest_request_seconds = max(self.report.longest_request_seconds, time.monotonic() - begin)
        self.count(await asyncio.gather(task, return_exceptions=True), kind)

    def count(self, results: list[Any], kind: str) -> None:
        (result,) = results
        if isinstance(result, list):
            self.report.outcomes["answered"] += 1
        elif isinstance(result, NAMED) or (isinstance(result, asyncio.CancelledError) and kind == "cancel"):
            self.report.outcomes[type(result).__name__] += 1
        else:
            self.report.outcomes[type(result).__name__] += 1
            named = isinstance(result, RsllmError)
            self.report.problems.append(f"{'an unexpected' if named else 'an unnamed'} error ({kind}): {result!r}")

    async def round(self) -> None:
        """Some requests at once, and perhaps a kill or an unload among them."""
        requests = [asyncio.create_task(self.request()) for _ in range(self.random.randrange(1, 5))]
        trouble = self.random.random()
        if trouble < 0.15:
            await asyncio.sleep(self.random.random() * 0.3)
            pids = [status.pid for status in self.pool.status() if status.pid is not None]
            if pids:
                with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                    os.kill(self.random.choice(pids), signal.SIGKILL)
                self.report.unkind["kill -9"] += 1
        elif trouble < 0.25:
            self.report.unkind["unload"] += self.pool.unload(self.random.choice(self.paths))
        await asyncio.gather(*requests)
        self.report.rounds += 1


async def steady(command: Sequence[str], path: str, requests: int, parallel: int = 5) -> dict[str, Any]:
    """Many short requests, some at a time: latency and memory at the beginning and at the end. They must not grow."""
    latencies: list[float] = []
    memory: list[tuple[int, int]] = []
    async with RunnerPool(command=command) as pool:

        async def client() -> None:
            while len(latencies) < requests:
                begin = time.monotonic()
                async with pool.use(path, options=RunnerOptions(context=256)) as model:
                    ids = await model.tokenize([("Hi", True)])
                    async for _ in await model.generate(ids, validate({"max_tokens": 1})):
                        pass
                latencies.append(time.monotonic() - begin)
                if len(latencies) % max(1, requests // 20) == 0:
                    (status,) = pool.status()
                    memory.append((anonymous_bytes(os.getpid()) or 0, status.own_bytes))

        await asyncio.gather(*(client() for _ in range(parallel)))
    fifth = max(1, len(latencies) // 5)
    return {
        "requests": len(latencies),
        "first_fifth_median_ms": round(1e3 * statistics.median(latencies[:fifth]), 2),
        "last_fifth_median_ms": round(1e3 * statistics.median(latencies[-fifth:]), 2),
        "parent_grew_bytes": memory[-1][0] - memory[len(memory) // 5][0],
        "runner_grew_bytes": memory[-1][1] - memory[len(memory) // 5][1],
    }


def children() -> list[int]:
    """Processes that this one has started and that are not gone."""
    found = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in found]


def held() -> dict[str, int]:
    """What can leak."""
    gc.collect()
    return {
        "processes": len(children()),
        "tasks": len(asyncio.all_tasks()),
        "threads": threading.active_count(),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }


async def held_by_runners(pool: RunnerPool) -> list[str]:
    """What runners with nothing to do hold all the same: sequences, and pages that are neither free nor cached."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:  # an engine counts at the end of its step
        problems = []
        for runner in await pool.figures(PATIENCE_SECONDS):
            engine = runner.engine
            used = engine["pages"] - engine["pages_free"] - engine["pages_cached"]
            if engine["running"] or used:
                problems.append(f"{runner.name} holds {engine['running']} sequences and {used} pages")
        if not problems or time.monotonic() > deadline:
            return problems
        await asyncio.sleep(0.05)


async def soak(command: Sequence[str], paths: Sequence[str], rounds: int, seed: int, *, quiet: bool = True) -> Report:
    """Run so many rounds and report."""
    before = held()
    begin = time.monotonic()
    settings = Settings(max_loaded=max(1, len(paths) - 1), parallel=3, max_queue=64)
    async with RunnerPool(settings, limits=Limits(stop_seconds=2), command=command) as pool:
        run = Soak(pool, paths, seed)
        await run.learn()
        small = 0
        for number in range(rounds):
            await run.round()
            if number == rounds // 4:
                gc.collect()
                small = anonymous_bytes(os.getpid()) or 0
            if not quiet and number % 50 == 49:
                print(f"{number + 1} rounds, {time.monotonic() - begin:.0f} s, {dict(run.report.outcomes)}", flush=True)
        report = run.report
        metrics = pool.metrics()
        report.counts = asdict(metrics.counts)
        gc.collect()
        report.parent_grew_bytes = (anonymous_bytes(os.getpid()) or 0) - small
        if metrics.running or metrics.waiting:
            report.problems.append(f"{metrics.running} requests run and {metrics.waiting} wait when all are over")
        for status in pool.status():
            async with pool.use(status.path, options=RunnerOptions(context=256)) as model:
                await model.tokenize([("still there", True)])
        report.problems += await held_by_runners(pool)
    await asyncio.sleep(0.2)
    after = held()
    report.left = {name: after[name] - before[name] for name in after}
    report.seconds = time.monotonic() - begin
    report.problems += [f"{count} {name} left" for name, count in report.left.items() if count > 0]
    if report.parent_grew_bytes > 16 << 20:
        report.problems.append(f"the parent grew by {report.parent_grew_bytes} bytes")
    return report


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak_runner", description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steady", type=int, metavar="REQUESTS", help="so many short requests instead, five at a time")
    parser.add_argument("--fake", action="store_true", help="runners without a model")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=assets.cache_dir()) as folder:
        command, paths = (
            (FAKE_COMMAND, fake_models()) if arguments.fake else (WORKER_COMMAND, real_models(Path(folder)))
        )
        if arguments.steady:
            print(json.dumps(asyncio.run(steady(command, paths[0], arguments.steady)), indent=2))
            return 0
        report = asyncio.run(soak(command, paths, arguments.rounds, arguments.seed, quiet=False))
    print("\n".join(report.lines()))
    print("holds" if not report.problems else f"{len(report.problems)} problems")
    return bool(report.problems)


def fake_models() -> list[str]:
    """Models of the fake runner that always say the same."""
    return [fake_path(text=text, pieces=None, delay=0.005) for text in ("ab", "cd", "ef")]


def real_models(folder: Path) -> list[str]:
    """Two files with the same bytes, which are two models all the same; on the same disk blocks where that can be."""
    paths = [folder / "one.gguf", folder / "two.gguf"]
    for path in paths:
        try:
            os.link(assets.smollm2_path(), path)
        except OSError:
            shutil.copyfile(assets.smollm2_path(), path)
    return [str(path) for path in paths]


if __name__ == "__main__":
    sys.exit(main())
