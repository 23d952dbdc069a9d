"""One life of a child process, as the parent holds it: the process, its connection, and who waits for what.

`process.RunnerProcess` makes one for each start and decides; here frames are sent and read, answers are handed to whom
they are for, and the last lines of the log are kept.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import copy
import logging
import os
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar
from weakref import WeakValueDictionary

from rsllm.errors import EngineClosedError, ProtocolError
from rsllm.runner.faults import from_fault
from rsllm.runner.pieces import unpack_logprobs
from rsllm.runner.plan import MemoryPlan
from rsllm.runner.protocol import (
    HEADER_BYTES,
    Cancel,
    Data,
    Ended,
    Failed,
    Message,
    Pause,
    Piece,
    Progress,
    Result,
    Resume,
    Shutdown,
    Step,
    decode,
    encode,
    frame_length,
)
from rsllm.runner.watch import Watch
from rsllm.streams import Stats, Token

__all__ = ["Child", "RunnerGeneration", "Waiting"]

M = TypeVar("M", bound=Message)

log = logging.getLogger("rsllm.runner")

# What of a sequence may wait for who reads it before the child is told to hold the rest back, and how little it must be
# again before it goes on. In bytes, about: a piece, and each of its log probabilities, takes some beside its text.
_AHEAD, _FEW = 1 << 18, 1 << 16
_PIECE_BYTES, _LOGPROB_BYTES = 256, 512
_LAST_LINES = 20
_LINE_BYTES = 2_000


class RunnerGeneration(AsyncIterator[Token]):
    """One running sequence: its pieces for `async for`. Closing or dropping it cancels."""

    def __init__(self, child: Child, id: int, watch: Watch | None = None) -> None:
        self.id = id
        self.stats: Stats | None = None
        self._child: Child | None = child
        self._watch = watch
        self._is_paused = False
        self._waiting_bytes = 0
        # Bounded by pausing the sequence.
        self._items: asyncio.Queue[Token | BaseException | None] = asyncio.Queue()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Token:
        if self._child is None and self._items.empty():
            raise StopAsyncIteration
        try:
            item = await self._items.get()
        except BaseException:  # the awaiting task was cancelled
            self.cancel()
            raise
        if isinstance(item, Token):
            self._waiting_bytes -= _size(item)
            if self._is_paused and self._waiting_bytes <= _FEW:
                self._pause(False)
            return item
        if item is None:
            raise StopAsyncIteration
        raise item

    def _pause(self, paused: bool) -> None:
        self._is_paused = paused
        if self._child is not None:
            self._child.post(Pause(self.id) if paused else Resume(self.id))

    def cancel(self) -> None:
        """Stop the sequence; the engine does within a layer. After the end this does nothing."""
        child, self._child = self._child, None
        if child is not None:
            child.generations.pop(self.id, None)
            child.post(Cancel(self.id))
            self._items.put_nowait(None)

    async def aclose(self) -> None:
        """As `cancel`."""
        self.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cancel()

    def __del__(self) -> None:
        if self._child is not None:
            # The collector may run in any thread. Without a loop there is no child either.
            with contextlib.suppress(RuntimeError):
                self._child.loop.call_soon_threadsafe(self._child.post, Cancel(self.id))

    # From the supervisor.

    def receive(self, piece: Piece) -> None:
        if self._watch is not None:
            self._watch.piece(len(piece.ids))
        entries = unpack_logprobs(piece.logprobs)
        token = Token.from_core((piece.text, piece.ids, entries))
        self._items.put_nowait(token)
        self._waiting_bytes += _size(token)
        if self._waiting_bytes >= _AHEAD and not self._is_paused:
            self._pause(True)

    def end(self, ended: Ended) -> None:
        self._child = None
        if ended.error is not None:
            self._items.put_nowait(from_fault(ended.error))
            return
        self.stats = Stats.from_core(ended.stats or {})
        if self.stats.finish_reason == "cancelled":  # not by the caller, who would not be told any more
            self._items.put_nowait(EngineClosedError("the runner was stopped in the middle of the answer"))
        else:
            if self._watch is not None:
                self._watch.ended(self.stats)
            self._items.put_nowait(None)

    def fail(self, error: BaseException) -> None:
        self._child = None
        self._items.put_nowait(error)


def _size(token: Token) -> int:
    size = _PIECE_BYTES + len(token)
    return size if token.logprobs is None else size + sum(_LOGPROB_BYTES * (1 + len(it.top)) for it in token.logprobs)


@dataclass
class Waiting:
    answer: asyncio.Future[Any]
    data: bytearray = field(default_factory=bytearray)


class Child:
    """One life of the process: its handles and who waits for what. Used once, by one supervisor."""

    def __init__(self, name: str) -> None:
        self.loop = loop = asyncio.get_running_loop()
        self.name = name
        self.wanted = asyncio.Event()
        self.stop = asyncio.Event()
        self.planned: asyncio.Future[MemoryPlan | None] = loop.create_future()
        self.ready: asyncio.Future[None] = loop.create_future()
        for future in (self.planned, self.ready):
            future.add_done_callback(_look)
        # Weak, so that a sequence that nobody reads any more is dropped and thereby cancelled.
        self.generations: WeakValueDictionary[int, RunnerGeneration] = WeakValueDictionary()
        self.calls: dict[int, Waiting] = {}
        self.lines: deque[str] = deque(maxlen=_LAST_LINES)
        self.heard = time.monotonic()
        self.verdict: BaseException | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._logging: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The process id, until the process has been waited for: after that it may be somebody else's."""
        alive = self._process is not None and self._process.returncode is None
        return self._process.pid if alive and self._process is not None else None

    @property
    def spawned(self) -> bool:
        """Whether `spawn` has been called and has come to its end."""
        return self._writer is not None

    async def spawn(self, command: Sequence[str], memory_bytes: int | None) -> None:
        ours, theirs = socket.socketpair()
        try:
            arguments = ["--fd", str(theirs.fileno()), "--parent", str(os.getpid())]
            if memory_bytes is not None:
                arguments += ["--memory-limit", str(memory_bytes)]
            self._process = await asyncio.create_subprocess_exec(
                *command,
                *arguments,
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                process_group=0,  # Ctrl-C of the terminal is for the parent
            )
            self._logging = asyncio.create_task(self._log())
            self._reader, self._writer = await asyncio.open_connection(sock=ours, limit=1 << 20)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()

    async def receive(self, limit: float | None, kind: type[M]) -> M:
        """The next message, which must be of this kind; signs of progress restart the clock."""
        while True:
            async with asyncio.timeout(limit):
                message = await self.read()
            if message is None:
                raise EOFError
            if isinstance(message, kind):
                return message
            if isinstance(message, Failed) and message.id is None:
                raise from_fault(message.error)
            if not isinstance(message, Progress):
                raise ProtocolError(f"{type(message).__name__} instead of {kind.__name__}", model=self.name)

    async def read(self) -> Message | None:
        """The next message; `None` at the end of the connection."""
        assert self._reader is not None, "spawned"
        try:
            length = frame_length(await self._reader.readexactly(HEADER_BYTES))
            body = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        self.heard = time.monotonic()
        return decode(body)

    async def send(self, message: Message) -> None:
        """One frame, waiting while the child does not read."""
        try:
            self._write(message)
            assert self._writer is not None, "written to"
            await self._writer.drain()
        except ConnectionError:
            return  # the supervisor sees the end too, and says to everybody what happened

    def post(self, message: Message) -> None:
        """One small frame, without waiting."""
        with contextlib.suppress(ConnectionError):
            self._write(message)

    def _write(self, message: Message) -> None:
        frame = encode(message)
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(frame)

    def dispatch(self, message: Message) -> None:
        """Hand an answer to whom it is for. Answers to requests that were given up are dropped."""
        if isinstance(message, Step):
            for piece in message.pieces:
                if (generation := self.generations.get(piece.id)) is not None:
                    generation.receive(piece)
            for ended in message.ended:
                if (generation := self.generations.pop(ended.id, None)) is not None:
                    generation.end(ended)
        elif isinstance(message, (Data, Result, Failed)):
            call = self.calls.get(message.id) if message.id is not None else None
            if call is None or call.answer.done():
                return
            if isinstance(message, Data):
                try:
                    call.data += base64.b64decode(message.payload, validate=True)
                except binascii.Error as error:
                    raise ProtocolError(f"binary data is not base64: {error}", model=self.name) from None
            elif isinstance(message, Result):
                call.answer.set_result(message.value)
            else:
                call.answer.set_exception(from_fault(message.error))
        else:
            raise ProtocolError(f"a parent does not expect {type(message).__name__}", model=self.name)

    def fail_all(self, error: BaseException) -> None:
        """Say to everybody who still waits that nothing will come."""
        for future in (self.planned, self.ready):
            if not future.done():
                future.set_exception(error)
        for generation in list(self.generations.values()):
            generation.fail(copy.copy(error))
        self.generations.clear()
        for call in self.calls.values():
            if not call.answer.done():
                call.answer.set_exception(copy.copy(error))

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def end(self, seconds: float) -> None:
        """Ask the child to end, wait, then kill it."""
        if seconds and self._process is not None:
            self.post(Shutdown())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._process.wait()
        self.kill()

    async def reap(self) -> int | None:
        """Wait until the process is gone and its last words are read; its exit code, negative for a signal."""
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
        if self._process is None:
            return None
        # A child whose connection is closed has a moment to end by itself, which shows the status it wanted to show.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await self._process.wait()
        self.kill()
        code = await self._process.wait()
        if self._logging is not None:
            # A grandchild may hold the pipe open for ever.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await asyncio.shield(self._logging)
            self._logging.cancel()
        self._process._transport.close()  # type: ignore[attr-defined]  # the only way to close its pipe
        return code

    async def _log(self) -> None:
        assert self._process is not None and self._process.stderr is not None, "asked for"
        held = b""
        while part := await self._process.stderr.read(1 << 16):
            *whole, held = (held + part).split(b"\n")
            if len(held) > _LINE_BYTES:
                whole, held = [*whole, held], b""
            for line in whole:
                self._line(line)
        if held:
            self._line(held)

    def _line(self, line: bytes) -> None:
        text = line[:_LINE_BYTES].decode(errors="replace").rstrip()
        if text:
            self.lines.append(text)
            log.info("[%s] %s", self.name, text)


def _look(future: asyncio.Future[Any]) -> None:
    """Nobody may be waiting; an exception that nobody fetched is not worth a warning."""
    if not future.cancelled():
        future.exception()
