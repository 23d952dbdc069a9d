"""Clients that behave badly, and those who do not suffer from it: `python -m tests.http_abuse [--seconds 60]`.

Two hundred clients connect and say nothing, stop in the middle of a head or a body, send garbage, close one half of
the connection, ask for endless answers and do not read them, or vanish, over and over. All the while some others ask
in good order and must be answered. When the bad ones are gone, the server must be as it was before: no file
descriptor, task, lease, sequence or partial file more, and no memory to speak of. The runner has no model.

Prints figures, and what is wrong; ends with 1 if anything is.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import socket
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tests.support.fake_server import fake_server

MODELS = {
    "tiny": {"delay": 0.005, "pieces": 8},
    "endless": {"pieces": None, "delay": 0.005, "text": "x" * 4000, "context": 10**7},
}
CLIENT_SECONDS = 2
ANSWER_SECONDS = 20.0
HEALTHY = 4
# What Python's allocator and caches may keep of a storm after one before it.
MEMORY_BYTES = 24 << 20

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Badness = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def request(path: str, body: object, *, length: int | None = None) -> bytes:
    """A request with a body, whose length may be a lie."""
    content = json.dumps(body).encode()
    size = len(content) if length is None else length
    return f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {size}\r\n\r\n".encode() + content


ENDLESS = request("/api/generate", {"model": "endless", "prompt": "x", "options": {"num_predict": -1}})
SHORT = request("/api/generate", {"model": "tiny", "prompt": "x", "stream": False})


async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(random.uniform(0, 4))


async def stop_in_the_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(ENDLESS[: random.randrange(1, 60)])
    await asyncio.sleep(random.uniform(0, 4))


async def stop_in_the_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(request("/api/chat", {"model": "tiny"}, length=random.choice((100, 10**6))))
    await asyncio.sleep(random.uniform(0, 4))


async def stop_in_an_upload(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    digest = f"sha256:{random.getrandbits(256):064x}"
    writer.write(f"POST /api/blobs/{digest} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n".encode())
    writer.write(random.randbytes(random.randrange(100_000)))
    await asyncio.sleep(random.uniform(0, 3))


async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for byte in SHORT[: random.randrange(20)]:
        writer.write(bytes([byte]))
        await asyncio.sleep(0.1)


async def send_garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = b"POST /api/chat HTTP/1.1\r\nhost: localhost\r\n"
    writer.write(
        random.choice(
            (
                random.randbytes(random.randrange(1, 5000)),
                b"GET / HTTP/9.9\r\n\r\n",
                b"GET " + b"/" * 100_000,
                head + b"x: " + b"y" * 200_000 + b"\r\n\r\n",
                head + b"content-length: -1\r\n\r\n",
                head + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\nzzz",
                head + b"transfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
                head + b"content-length: 99999999999\r\n\r\n{",
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + random.randbytes(500),
            )
        )
    )
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(3):
            await reader.read()


async def close_one_half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(random.choice((ENDLESS, SHORT, SHORT[:-5])))
    writer.write_eof()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(3):
            await reader.read()


async def read_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(ENDLESS)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    await asyncio.sleep(random.uniform(0, 6))


async def vanish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(ENDLESS)
    await reader.read(random.randrange(1, 50_000))


async def pipeline(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(SHORT * random.randrange(2, 20))
    await reader.read(random.randrange(1, 5_000))


BADNESS: tuple[Badness, ...] = (
    say_nothing, stop_in_the_head, stop_in_the_body, stop_in_an_upload, trickle, send_garbage, close_one_half,
    read_nothing, vanish, pipeline,
)  # fmt: skip


@dataclass
class Report:
    """What happened."""

    bad: Counter[str] = field(default_factory=Counter)
    answered: list[float] = field(default_factory=list)
    """Seconds that each good request took."""
    wrong: list[str] = field(default_factory=list)


async def misbehave(port: int, until: float, report: Report) -> None:
    """One client, over and over."""
    while time.monotonic() < until:
        badness = random.choice(BADNESS)
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 14)
            try:
                await badness(reader, writer)
                report.bad[badness.__name__] += 1
            finally:
                if random.random() < 0.5:  # a reset instead of an end
                    linger = struct.pack("ii", 1, 0)
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                writer.transport.abort()
        await asyncio.sleep(random.uniform(0, 0.1))


async def behave(port: int, until: float, report: Report) -> None:
    """Ask in good order, and see to it that there is an answer."""
    asked = (
        (SHORT, b'"done_reason":"stop"'),
        (request("/v1/chat/completions", {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}), b"usage"),
        (b"GET /api/tags HTTP/1.1\r\nhost: localhost\r\n\r\n", b'"models"'),
        (b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n", b"ok"),
    )
    while time.monotonic() < until:
        sent, expected = random.choice(asked)
        begun = time.monotonic()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                reply = await answer(port, sent)
            if not reply.startswith(b"HTTP/1.1 200") or expected not in reply:
                report.wrong.append(f"a good request was answered {reply[:300]!r}")
        except (OSError, TimeoutError) as error:
            report.wrong.append(f"a good request got no answer: {error!r}")
        report.answered.append(time.monotonic() - begun)
        await asyncio.sleep(0.01)


async def answer(port: int, sent: bytes) -> bytes:
    """The whole reply to a request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent.replace(b"host: localhost\r\n", b"host: localhost\r\nconnection: close\r\n", 1))
        return await reader.read()
    finally:
        writer.close()


@dataclass(frozen=True)
class State:
    """What the server holds."""

    files: int
    threads: int
    tasks: int
    leases: int
    sequences: int
    partial_files: int
    memory_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.files} file descriptors, {self.threads} threads, {self.tasks} tasks, {self.leases} leases, "
            f"{self.sequences} sequences, {self.partial_files} partial files, {self.memory_bytes >> 20} MiB"
        )


def state(process: int, port: int, folder: Path) -> State:
    """As it is now."""
    text = asyncio.run(answer(port, b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n")).decode()

    def total(name: str) -> int:
        return sum(int(float(value)) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE))

    status = Path(f"/proc/{process}/status").read_text()
    return State(
        files=len(os.listdir(f"/proc/{process}/fd")),
        threads=int(status.partition("Threads:")[2].split()[0]),
        tasks=total("rsllm_tasks"),
        leases=total("rsllm_model_requests"),
        sequences=total("rsllm_model_requests_running") + total("rsllm_requests_waiting"),
        partial_files=sum("partial" in path.name for path in (folder / "models" / "blobs").iterdir()),
        memory_bytes=total("process_resident_memory_bytes"),
    )


def settled(process: int, port: int, folder: Path, before: State | None = None) -> State:
    """As it is when nothing moves any more, or after a while."""
    deadline = time.monotonic() + 8 * CLIENT_SECONDS
    while True:
        time.sleep(0.5)
        now = state(process, port, folder)
        calm = (now.leases, now.sequences) == (0, 0) and (before is None or not leaks(before, now))
        if calm or time.monotonic() > deadline:
            return now


def leaks(before: State, after: State) -> list[str]:
    """What there is more of than before."""
    found = [
        f"{getattr(after, name) - getattr(before, name)} more {name}"
        for name in ("files", "tasks", "leases", "sequences", "partial_files")
        if getattr(after, name) > getattr(before, name)
    ]
    grown = after.memory_bytes - before.memory_bytes
    return found + ([f"{grown >> 20} MiB more of memory"] if grown > MEMORY_BYTES else [])


async def storm(port: int, seconds: float, clients: int) -> Report:
    """All of them at once."""
    report = Report()
    until = time.monotonic() + seconds
    bad = [misbehave(port, until, report) for _ in range(clients)]
    good = [behave(port, until, report) for _ in range(HEALTHY)]
    await asyncio.gather(*bad, *good)
    return report


def main() -> int:
    """Run it; the exit code says whether all is well."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.http_abuse", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    print(f"{options.clients} bad clients for {options.seconds:g} s, seed {options.seed}", flush=True)
    random.seed(options.seed)
    environment = {"RSLLM_CLIENT_TIMEOUT": f"{CLIENT_SECONDS}s"}
    with (
        tempfile.TemporaryDirectory() as name,
        fake_server(Path(name), MODELS, parallel=16, environment=environment) as (process, port),
    ):
        folder = Path(name)
        asyncio.run(storm(port, min(5.0, options.seconds), options.clients))  # what is made once is made now
        before = settled(process.pid, port, folder)
        report = asyncio.run(storm(port, options.seconds, options.clients))
        after = settled(process.pid, port, folder, before)
        failed = [line for line in (folder / "server.log").read_text().splitlines() if "Traceback" in line]
    times = sorted(report.answered)
    print("bad requests:", ", ".join(f"{name} {count}" for name, count in sorted(report.bad.items())))
    print(
        f"good requests: {len(times)}, median {median(times) * 1e3:.0f} ms, 99 % within "
        f"{times[int(len(times) * 0.99)] * 1e3:.0f} ms, all within {times[-1] * 1e3:.0f} ms"
    )
    print(f"before: {before}\nafter:  {after}")
    wrong = [*Counter(report.wrong), *leaks(before, after)]
    wrong += [f"{len(failed)} tracebacks in the log"] if failed else []
    for line in wrong[:20]:
        print(f"wrong: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
