"""What HTTP costs: `python -m benches.http_cost [--model REF] [--streams 64]`.

With a runner that has no model: the processor time that the server and the worker take for each streamed token, with
many streams at once, of each dialect. With a model: how much later the first token comes over HTTP than in process, and
how much slower many streams are together.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TICKS = os.sysconf("SC_CLK_TCK")


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

    name: str
    path: str
    body: dict[str, Any]
    mark: bytes


TOKENS = 200
CASES = [
    Case("/api/generate", "/api/generate", {"model": "tiny", "prompt": "hi"}, b'"done":false'),
    Case(
        "/api/chat",
        "/api/chat",
        {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]},
        b'"done":false',
    ),
    Case(
        "/v1/chat/completions",
        "/v1/chat/completions",
        {"model": "tiny", "stream": True, "messages": [{"role": "user", "content": "hi"}]},
        b'"finish_reason":null',
    ),
    Case(
        "/v1/messages",
        "/v1/messages",
        {"model": "tiny", "stream": True, "max_tokens": 1000, "messages": [{"role": "user", "content": "hi"}]},
        b"text_delta",
    ),
]


async def stream(port: int, case: Case) -> int:
    """Ask once over a connection of its own; how many tokens came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps(case.body).encode()
    head = f"POST {case.path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    parts = []
    while part := await reader.read(1 << 16):
        parts.append(part)
    writer.close()
    reply = b"".join(parts)
    if not reply.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"{case.path}: {reply[:500].decode()}")
    return reply.count(case.mark)


async def streams(port: int, case: Case, count: int) -> int:
    """Many at once; their tokens."""
    return sum(await asyncio.gather(*(stream(port, case) for _ in range(count))))


def fake_costs(count: int, tokens: int, step: float) -> None:
    """Prints the processor time of a token for each case."""
    from tests.support.fake_server import fake_server

    behaviour = {"pieces": tokens, "step": step, "text": " token"}
    with (
        tempfile.TemporaryDirectory() as folder,
        fake_server(Path(folder), {"tiny": behaviour}, parallel=count) as (
            process,
            port,
        ),
    ):
        asyncio.run(streams(port, CASES[0], 1))
        (worker,) = children(process.pid)
        for case in CASES:
            before = cpu_seconds(process.pid), cpu_seconds(worker)
            begun = time.perf_counter()
            done = asyncio.run(streams(port, case, count))
            wall = time.perf_counter() - begun
            server, runner = cpu_seconds(process.pid) - before[0], cpu_seconds(worker) - before[1]
            print(
                f"{case.name:22} {(server + runner) / done * 1e6:7.1f} us a token (server {server / done * 1e6:.1f}, "
                f"worker {runner / done * 1e6:.1f}); {done} tokens of {count} streams in {wall:.2f} s",
                flush=True,
            )


if __name__ == "__main__":
    fake_costs(64, TOKENS, 0.02)
