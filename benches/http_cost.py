"""What HTTP costs, with many streams at once.

    python -m benches.http_cost                   runners without a model, then the demo model
    python -m benches.http_cost --model none      only the former
    python -m benches.http_cost --short           fewer of everything, for checking that it works

With a runner that has no model: the processor time that the server and the worker take together for each streamed
token, of each route that streams, medians of three rounds; at most 150 us. The fake engine steps every 20 ms with all
sequences, as a real one would. With a model: how much later the first token comes over HTTP than in this process (at
most 15 ms, medians), and how much slower many streams are together.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benches.first_token import NAME, place

TOKEN_MICROSECONDS = 150.0
FIRST_TOKEN_MS = 15.0
STEP_SECONDS = 0.02
PROMPT_TOKENS = 32
PAGE_TOKENS = 64
ROUNDS = 3
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Prints the figures; 1 where a bound is broken."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.http_cost", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo", help="a path or a reference, or none (default: demo)")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=200, help="of each stream without a model")
    parser.add_argument("--short", action="store_true", help="fewer of everything")
    options = parser.parse_args()
    streams, tokens = (8, 20) if options.short else (options.streams, options.tokens)
    kept = fake_costs(streams, tokens, 1 if options.short else ROUNDS)
    if options.model != "none":
        repetitions, length = (3, 8) if options.short else (50, 64)
        kept = engine_costs(options.model, streams, length, repetitions) and kept
    if options.short:
        return 0
    print(f"bounds ({TOKEN_MICROSECONDS:g} us a token, {FIRST_TOKEN_MS:g} ms): {'kept' if kept else 'broken'}")
    return 0 if kept else 1


def cpu_seconds(process: int) -> float:
    """Processor time of a process so far, its threads included."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def children(process: int) -> list[int]:
    """Processes that it has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(path.read_text().rpartition(")")[2].split()[1]) == process:
                found.append(int(path.parent.name))
        except (OSError, IndexError):
            continue
    return found


@dataclass
class Case:
    """A route, what it is asked, and what in the reply stands for one token."""

    path: str
    body: dict[str, Any]
    mark: bytes


MESSAGES = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
CASES = [
    Case("/api/generate", {"model": "tiny", "prompt": "hi"}, b'"done":false'),
    Case("/api/chat", MESSAGES, b'"done":false'),
    Case("/v1/chat/completions", {**MESSAGES, "stream": True}, b'"finish_reason":null'),
    Case("/v1/completions", {"model": "tiny", "prompt": "hi", "stream": True}, b'"finish_reason":null'),
    Case("/v1/responses", {"model": "tiny", "input": "hi", "stream": True}, b"event: response.output_text.delta"),
    Case("/v1/messages", {**MESSAGES, "stream": True, "max_tokens": 1000}, b"text_delta"),
]


async def stream(port: int, case: Case) -> int:
    """Ask once over a connection of its own; how many events of a token came."""
    reply = await ask(port, case.path, case.body)
    return reply.count(case.mark)


async def ask(port: int, path: str, body: dict[str, Any], first: list[float] | None = None) -> bytes:
    """The whole reply; `first` gets the time at which a line of it was there."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    parts: list[bytes] = []
    while part := await reader.read(1 << 16):
        if first is not None and not first and b'"done"' in part:
            first.append(time.perf_counter())
        parts.append(part)
    writer.close()
    reply = b"".join(parts)
    if not reply.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"{path}: {reply[:500].decode()}")
    return reply


async def streams(port: int, case: Case, count: int) -> int:
    """Many at once; the events of all."""
    return sum(await asyncio.gather(*(stream(port, case) for _ in range(count))))


def fake_costs(count: int, tokens: int, rounds: int) -> bool:
    """Prints the processor time of a token for each case; whether all keep the bound."""
    from tests.support.fake_server import fake_server

    behaviour = {"pieces": tokens, "step": STEP_SECONDS, "text": " token"}
    costs: dict[str, list[tuple[float, float]]] = {case.path: [] for case in CASES}
    with (
        tempfile.TemporaryDirectory() as folder,
        fake_server(Path(folder), {"tiny": behaviour}, parallel=count) as (process, port),
    ):
        asyncio.run(streams(port, CASES[0], 1))
        (worker,) = children(process.pid)
        for _ in range(rounds):
            for case in CASES:
                before = cpu_seconds(process.pid), cpu_seconds(worker)
                done = asyncio.run(streams(port, case, count))
                # A piece that is late comes with the next one: two tokens, one event.
                assert 0.9 * count * tokens <= done <= count * tokens, f"{case.path}: {done} events came"
                server, runner = cpu_seconds(process.pid) - before[0], cpu_seconds(worker) - before[1]
                costs[case.path].append((server / done * 1e6, runner / done * 1e6))
    kept = True
    for path, found in costs.items():
        cost = median(map(sum, found))
        kept = kept and cost <= TOKEN_MICROSECONDS
        server, runner = (median(part) for part in zip(*found, strict=True))
        low, high = min(map(sum, found)), max(map(sum, found))
        print(
            f"{path:22} {cost:6.1f} us of processor a token (server {server:.1f}, worker {runner:.1f}; {low:.1f} to "
            f"{high:.1f}); {rounds} times {count} streams of {tokens} tokens"
        )
    return kept


def engine_costs(reference: str, count: int, tokens: int, repetitions: int) -> bool:
    """Prints what HTTP adds to the first token and takes from many streams; whether the former keeps its bound."""
    from rsllm import _core
    from rsllm.refs import resolve

    weights = resolve(reference)
    pages = -(-(PROMPT_TOKENS + tokens) // PAGE_TOKENS)
    context = max(4096, count * pages * PAGE_TOKENS)
    engine = _core.Engine(str(weights), context=context, max_sequences=count)
    with tempfile.TemporaryDirectory() as folder, real_server(Path(folder), weights, count, context) as port:
        over_http, within = [], []
        for turn in range(repetitions + 1):
            within.append(first_within(engine, prompt(2 * turn)))
            over_http.append(first_over_http(port, prompt(2 * turn + 1)))
        del within[0], over_http[0]  # the model was loaded
        added = (median(over_http) - median(within)) * 1e3
        print(
            f"first token: {median(within) * 1e3:.1f} ms in process, {median(over_http) * 1e3:.1f} ms over HTTP, "
            f"{added:.1f} ms more (medians of {repetitions}; bound {FIRST_TOKEN_MS:g} ms)"
        )
        alone, served = [], []
        for turn in range(ROUNDS):
            alone.append(rate_within(engine, count, tokens, 1000 + turn * count))
            served.append(rate_over_http(port, count, tokens, 5000 + turn * count))
        loss = 1 - median(served) / median(alone)
        print(
            f"{count} streams: {median(alone):.1f} tokens/s in process, {median(served):.1f} over HTTP, "
            f"{loss:.1%} less (medians of {ROUNDS})"
        )
    return added <= FIRST_TOKEN_MS


@contextmanager
def real_server(folder: Path, weights: Path, parallel: int, context: int) -> Iterator[int]:
    """A server with the model in a store of its own, loaded at the first request; its port."""
    environment = place(folder, weights)
    environment |= {"OLLAMA_NUM_PARALLEL": str(parallel), "OLLAMA_CONTEXT_LENGTH": str(context)}
    host, _, port = environment["OLLAMA_HOST"].partition(":")
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "rsllm", "serve"], stdin=subprocess.DEVNULL, stderr=log, env=environment
        )
    try:
        while True:
            try:
                socket.create_connection((host, int(port))).close()
                break
            except OSError:
                if process.poll() is not None:
                    raise SystemExit((folder / "log").read_text()) from None
                time.sleep(0.05)
        yield int(port)
    finally:
        process.terminate()
        process.wait(30)


def prompt(seed: int) -> str:
    """A text of some `PROMPT_TOKENS`, different from its first word on, so that no prefix is found in a cache."""
    words = ("river", "engine", "paper", "winter", "signal", "garden", "number", "window", "letter", "copper")
    return " ".join(f"{seed + i} {words[(seed + i * 7) % 10]}" for i in range(PROMPT_TOKENS // 4))


def first_within(engine: Any, text: str) -> float:
    """Seconds from a text to its first token, in this process."""
    begun = time.perf_counter()
    generation = engine.generate(engine.tokenize(text, add_special=True, parse_special=True), sampling(1))
    assert generation.next() is not None, "there is one"
    seconds = time.perf_counter() - begun
    while generation.next() is not None:
        pass
    return seconds


def first_over_http(port: int, text: str) -> float:
    """Seconds from a request to its first line."""
    first: list[float] = []
    begun = time.perf_counter()
    asyncio.run(ask(port, "/api/generate", body(text, 1), first))
    return first[0] - begun


def rate_within(engine: Any, count: int, tokens: int, seed: int) -> float:
    """Tokens a second of many streams, in this process."""

    def run(text: str) -> int:
        generation = engine.generate(engine.tokenize(text, add_special=True, parse_special=True), sampling(tokens))
        found = 0
        while (piece := generation.next()) is not None:
            found += len(piece[1])
        return found

    begun = time.perf_counter()
    with ThreadPoolExecutor(count) as pool:
        total = sum(pool.map(run, [prompt(seed + i) for i in range(count)]))
    return total / (time.perf_counter() - begun)


def rate_over_http(port: int, count: int, tokens: int, seed: int) -> float:
    """The same over HTTP."""

    async def run() -> int:
        asked = [ask(port, "/api/generate", body(prompt(seed + i), tokens)) for i in range(count)]
        replies = await asyncio.gather(*asked)
        return sum(int(reply.rpartition(b'"eval_count":')[2].partition(b",")[0]) for reply in replies)

    begun = time.perf_counter()
    return asyncio.run(run()) / (time.perf_counter() - begun)


def sampling(tokens: int) -> dict[str, Any]:
    """Options of the core."""
    from rsllm.options import validate

    return validate({"temperature": 0.0, "max_tokens": tokens, "ignore_eos": True})


def body(text: str, tokens: int) -> dict[str, Any]:
    """The same as a request."""
    options = {"temperature": 0, "num_predict": tokens, "ignore_eos": True}
    return {"model": NAME, "prompt": text, "raw": True, "options": options}


if __name__ == "__main__":
    raise SystemExit(main())
