"""The child: `python -m rsllm.runner.worker --fd N --parent PID`.

Three kinds of threads. The main one reads frames and never waits for the engine, so a cancel or a ping is heard at
once, whatever is running. The *pump* collects what the engine has made of all sequences and sends one frame a step.
*Callers*, a few, answer what has one answer and may take long (logits, tokens of a long text), and compile constraints.

The process ends when its socket closes: the parent is gone or wants it gone, and what it still computes is for nobody.
A thread of the core sees that too and needs no interpreter for it: it ends a process whose threads are all busy. The
kernel also kills it when the parent dies.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import faulthandler
import os
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from rsllm.control import Revealing
from rsllm.errors import ProtocolError
from rsllm.runner.faults import to_fault
from rsllm.runner.pieces import pack_logprobs, unpack_options
from rsllm.runner.protocol import (
    CHUNK_BYTES,
    PROTOCOL_VERSION,
    Call,
    Cancel,
    Data,
    Ended,
    Failed,
    FrameDecoder,
    Generate,
    Hello,
    Load,
    Message,
    Pause,
    Piece,
    Plan,
    Planned,
    Progress,
    Ready,
    Result,
    Resume,
    Shutdown,
    Step,
    encode,
)
from rsllm.system import die_with_parent, limit_memory, process_figures

__all__ = ["EngineLike", "GenerationLike", "Worker", "main"]

_READ_BYTES = 1 << 16
# How long the pump waits for the sequence that moved last before it looks at the others.
_STEP_MILLISECONDS = 10
# What one sequence may add to a frame; the rest waits for the next, so that a fast one starves nobody.
_PIECES_A_STEP = 16
_CALLERS = 4
# A constraint is compiled before its sequence begins, which can take a second; frames are read all the while.
_SLOW_OPTIONS = ("schema", "regex", "grammar")
_ENGINE_OPTIONS = {"threads", "context", "kv_type", "isa", "mmap", "max_sequences", "draft"}


class GenerationLike(Protocol):
    """What the worker needs of `rsllm._core.Generation`."""

    def next_timeout(self, milliseconds: int) -> tuple[str, list[int], list[dict[str, Any]] | None] | bool | None: ...
    def cancel(self) -> None: ...
    def stats(self) -> dict[str, Any]: ...


class EngineLike(Protocol):
    """What the worker needs of `rsllm._core.Engine`."""

    def info(self) -> dict[str, Any]: ...
    def special_tokens(self) -> dict[str, Any]: ...
    def tokenize_parts(self, parts: list[tuple[str, bool]], *, add_special: bool = False) -> list[int]: ...
    def detokenize(self, ids: list[int], *, render_special: bool = True) -> str: ...
    def logits(self, ids: list[int]) -> bytearray: ...
    def generate(self, ids: list[int], options: dict[str, Any]) -> GenerationLike: ...
    def embed(self, ids: list[list[int]], *, pooling: str = ..., normalise: bool = ...) -> bytearray: ...
    def metrics(self) -> dict[str, Any]: ...
    def close(self) -> None: ...


class CoreLike(Protocol):
    """What the worker needs of `rsllm._core`, so that a runner without a model can stand in for it."""

    __version__: str

    def plan(self, path: str, options: Mapping[str, Any]) -> dict[str, Any] | None: ...
    def load(self, path: str, options: Mapping[str, Any]) -> EngineLike: ...
    def watch(self, fd: int) -> None: ...


class _Core:
    """The real one."""

    def __init__(self) -> None:
        from rsllm import _core

        self._core = _core
        self.__version__ = _core.__version__

    def plan(self, path: str, options: Mapping[str, Any]) -> dict[str, Any] | None:
        return self._core.plan(path, **options)

    def load(self, path: str, options: Mapping[str, Any]) -> EngineLike:
        return self._core.Engine(path, **options)

    def watch(self, fd: int) -> None:
        self._core.exit_when_closed(fd)


class Worker:
    """One connection and, once loaded, one engine."""

    def __init__(self, connection: socket.socket, core: Callable[[], CoreLike] = _Core) -> None:
        self._connection = connection
        self._make_core = core
        self._core: CoreLike | None = None
        self._sending = threading.Lock()
        self._engine: EngineLike | None = None
        self._pump = _Pump(self.send)
        self._callers = ThreadPoolExecutor(_CALLERS, thread_name_prefix="rsllm-call")

    def serve(self) -> None:
        """Answer until the other side is gone or says `Shutdown`. Raises `ProtocolError`."""
        self._core = self._make_core()
        self._core.watch(self._connection.fileno())
        self.send(Hello(PROTOCOL_VERSION, self._core.__version__, os.getpid()))
        decoder = FrameDecoder()
        while data := self._connection.recv(_READ_BYTES):
            for message in decoder.feed(data):
                if isinstance(message, Shutdown):
                    self.close()
                    return
                self._handle(message)

    def close(self) -> None:
        """Cancel everything and free the model."""
        self._pump.close()
        if self._engine is not None:
            self._engine.close()
        self._callers.shutdown(wait=False, cancel_futures=True)

    def send(self, message: Message) -> None:
        """One frame, from any thread."""
        frame = encode(message)
        with self._sending:
            self._connection.sendall(frame)

    # Requests.

    def _handle(self, message: Message) -> None:
        if isinstance(message, Plan):
            self._plan(message)
        elif isinstance(message, Load):
            self._load(message)
        elif isinstance(message, Generate):
            self._generate(message)
        elif isinstance(message, Cancel):
            self._pump.cancel(message.id)
        elif isinstance(message, (Pause, Resume)):
            self._pump.pause(message.id, isinstance(message, Pause))
        elif isinstance(message, Call):
            self._call(message)
        else:
            raise ProtocolError(f"a child does not expect {type(message).__name__}")

    def _plan(self, message: Plan) -> None:
        assert self._core is not None, "set before the first frame is read"
        try:
            plan = self._core.plan(message.path, _engine_options(message.options))
        except Exception as error:
            self.send(Failed(None, to_fault(error)))
        else:
            self.send(Planned(plan))

    def _load(self, message: Load) -> None:
        assert self._core is not None, "set before the first frame is read"
        if self._engine is not None:
            raise ProtocolError("a child loads one model")
        self.send(Progress("loading"))
        try:
            self._engine = self._core.load(message.path, _engine_options(message.options))
        except Exception as error:
            self.send(Failed(None, to_fault(error)))
        else:
            metrics = self._engine.metrics()
            kv_tokens = metrics["pages"] * metrics["page_len"]
            self.send(Ready({**self._engine.info(), "kv_tokens": kv_tokens}, self._engine.special_tokens()))

    def _generate(self, message: Generate) -> None:
        if self._engine is None:
            raise ProtocolError("a sequence before a model")
        self._pump.expect(message.id)
        if any(message.options.get(name) is not None for name in _SLOW_OPTIONS):
            self._callers.submit(self._start, self._engine, message)
        else:
            self._start(self._engine, message)

    def _start(self, engine: EngineLike, message: Generate) -> None:
        try:
            options = unpack_options(message.options, lambda text: engine.tokenize_parts([(text, True)]))
            shown = {int(id): str(text) for id, text in options.pop("reveal", None) or ()}
            generation: GenerationLike = engine.generate(message.ids, options)
            if shown:
                generation = Revealing(generation, shown)
        except Exception as error:
            self._pump.fail(message.id, error)
        else:
            self._pump.add(message.id, generation)

    def _call(self, message: Call) -> None:
        if message.method == "ping":  # from this thread: it says that frames are read
            self.send(Result(message.id, None))
        elif message.method == "stats" and self._engine is not None:  # and these are there at once
            figures = {"info": self._engine.info(), "metrics": self._engine.metrics(), "process": process_figures()}
            self.send(Result(message.id, figures))
        elif self._engine is None:
            raise ProtocolError("a call before a model")
        else:
            self._callers.submit(self._answer, self._engine, message)

    def _answer(self, engine: EngineLike, message: Call) -> None:
        try:
            method = _METHODS.get(message.method)
            if method is None:
                raise ProtocolError(f"a child has no method {message.method!r:.60}")
            value = method(engine, **message.arguments)
            if isinstance(value, _Binary):
                for start in range(0, len(value.data), CHUNK_BYTES):
                    part = value.data[start : start + CHUNK_BYTES]
                    self.send(Data(message.id, base64.b64encode(part).decode()))
                value = value.shape
            self.send(Result(message.id, value))
        except OSError:  # the parent is gone; the main thread sees it too
            return
        except Exception as error:
            with contextlib.suppress(OSError):
                self.send(Failed(message.id, to_fault(error)))


class _Binary:
    """A binary answer: bytes in chunks, then what they are."""

    def __init__(self, data: bytes | bytearray, shape: dict[str, Any]) -> None:
        self.data = memoryview(data)
        self.shape = shape


def _tokenize(engine: EngineLike, parts: list[list[Any]], add_special: bool) -> list[int]:
    return engine.tokenize_parts([(text, trusted) for text, trusted in parts], add_special=add_special)


def _detokenize(engine: EngineLike, ids: list[int], render_special: bool) -> str:
    return engine.detokenize(ids, render_special=render_special)


def _logits(engine: EngineLike, ids: list[int]) -> _Binary:
    return _Binary(engine.logits(ids), {"rows": len(ids)})


def _embed(engine: EngineLike, inputs: list[list[int]], options: dict[str, Any]) -> _Binary:
    return _Binary(engine.embed(inputs, **options), {"rows": len(inputs)})


_METHODS: dict[str, Callable[..., Any]] = {
    "tokenize": _tokenize,
    "detokenize": _detokenize,
    "logits": _logits,
    "embed": _embed,
}


class _Pump:
    """The thread that turns many sequences into one frame a step.

    The engine advances all sequences in one batch, so where one has a piece the others have theirs: the pump waits for
    the sequence that moved last, then takes from each what is there.
    """

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send
        self._changed = threading.Condition()
        self._arrived: deque[tuple[int, GenerationLike]] = deque()
        self._failed: list[Ended] = []
        # Sequences that are about to begin, and whether they are still wanted.
        self._expected: dict[int, bool] = {}
        self._running: dict[int, GenerationLike] = {}
        # Sequences of which nothing is to be sent; they stay with the engine.
        self._paused: set[int] = set()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="rsllm-pump", daemon=True)
        self._thread.start()

    def expect(self, id: int) -> None:
        """A sequence will be added, or fail; it can be cancelled from now on."""
        with self._changed:
            if id in self._expected or id in self._running or any(number == id for number, _ in self._arrived):
                raise ProtocolError(f"two sequences have the id {id}")
            self._expected[id] = True

    def add(self, id: int, generation: GenerationLike) -> None:
        with self._changed:
            if not self._expected.pop(id) or self._closed:
                generation.cancel()
            self._arrived.append((id, generation))
            self._changed.notify()

    def fail(self, id: int, error: Exception) -> None:
        """A sequence that never began; its end goes the way of all ends, so that order is kept."""
        with self._changed:
            self._expected.pop(id)
            self._failed.append(Ended(id, error=to_fault(error)))
            self._changed.notify()

    def cancel(self, id: int) -> None:
        with self._changed:
            if id in self._expected:
                self._expected[id] = False
            self._paused.discard(id)
            self._changed.notify()
            generation = self._running.get(id) or next((it for number, it in self._arrived if number == id), None)
        if generation is not None:
            generation.cancel()

    def pause(self, id: int, paused: bool) -> None:
        with self._changed:
            if paused and id in self._running:
                self._paused.add(id)
            elif not paused:
                self._paused.discard(id)
                self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._paused.clear()
            for generation in [*self._running.values(), *(it for _, it in self._arrived)]:
                generation.cancel()
            self._changed.notify()
        self._thread.join(timeout=2)

    def _run(self) -> None:
        try:
            last: int | None = None
            while (ended := self._take()) is not None:
                pieces, more, last = self._step(last)
                ended += more
                if pieces or ended:
                    self._send_step(pieces, ended)
        except OSError:
            return  # the parent is gone; the main thread sees it too
        except BaseException:
            # Nobody would be answered any more: end, so that the parent can say so to all callers.
            sys.excepthook(*sys.exc_info())
            os._exit(70)

    def _send_step(self, pieces: list[Piece], ended: list[Ended]) -> None:
        try:
            self._send(Step(pieces, ended))
        except ProtocolError:  # log probabilities of very many sequences fit no frame together
            for piece in pieces:
                self._send(Step([piece], []))
            self._send(Step([], ended))

    def _take(self) -> list[Ended] | None:
        """Wait for work; what has failed before it began. `None` when this is over."""
        with self._changed:
            while not (self._running.keys() - self._paused or self._arrived or self._failed):
                if self._closed:
                    return None
                self._changed.wait()
            while self._arrived:
                id, generation = self._arrived.popleft()
                self._running[id] = generation
            failed, self._failed = self._failed, []
            return failed

    def _step(self, last: int | None) -> tuple[list[Piece], list[Ended], int | None]:
        pieces: list[Piece] = []
        ended: list[Ended] = []
        moved: int | None = None
        with self._changed:
            order = sorted(self._running.keys() - self._paused, key=lambda id: id != last)
        for position, id in enumerate(order):
            wait = _STEP_MILLISECONDS if position == 0 else 0
            if self._advance(id, wait, pieces, ended) and id in self._running:
                moved = id
        return pieces, ended, moved

    def _advance(self, id: int, wait: int, pieces: list[Piece], ended: list[Ended]) -> bool:
        """Take all that one sequence has, waiting only for the first piece. True if there was anything."""
        generation = self._running[id]
        text, ids, logprobs, end = "", list[int](), None, None
        try:
            for turn in range(_PIECES_A_STEP):
                piece = generation.next_timeout(0 if turn else wait)
                if isinstance(piece, bool):
                    break
                if piece is None:
                    end = Ended(id, stats=generation.stats())
                    break
                text += piece[0]
                ids += piece[1]
                if piece[2] is not None:
                    logprobs = [*(logprobs or ()), *piece[2]]
        except Exception as error:
            end = Ended(id, error=to_fault(error))
        if text or ids:
            pieces.append(Piece(id, text, ids, pack_logprobs(logprobs)))
        if end is not None:
            ended.append(end)
            with self._changed:
                del self._running[id]
                self._paused.discard(id)
        return bool(text or ids or end)


def _engine_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    unknown = options.keys() - _ENGINE_OPTIONS
    if unknown:
        raise ProtocolError(f"unknown options of a model: {sorted(unknown)}"[:500])
    # One that does not fit is worth a warning, not an answer.
    return {**options, "draft_must_fit": False} if "draft" in options else options


def main(arguments: list[str] | None = None, core: Callable[[], CoreLike] = _Core) -> int:
    """Serve the socket that the parent left open, until it closes."""
    parser = argparse.ArgumentParser(prog="python -m rsllm.runner.worker", description="One model, for one parent.")
    parser.add_argument("--fd", type=int, required=True, help="the socket, inherited")
    parser.add_argument("--parent", type=int, required=True, help="process id of the parent")
    parser.add_argument("--memory-limit", type=int, help="bytes of memory, files mapped not counted")
    parsed, _ = parser.parse_known_args(arguments)
    # Everything that is printed goes to the log, and a fault in native code leaves a trace there.
    os.dup2(2, 1)
    faulthandler.enable()
    die_with_parent(parsed.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which shuts this process down in order
    if parsed.memory_limit is not None:
        limit_memory(parsed.memory_limit)
    connection = socket.socket(fileno=parsed.fd)
    try:
        Worker(connection, core).serve()
    except OSError as error:
        print(f"the connection broke: {error}", file=sys.stderr)
    except ProtocolError as error:
        print(f"protocol error: {error}", file=sys.stderr, flush=True)
        os._exit(71)
    # No tidy end: threads may wait in the engine for as long as a layer takes, and memory is freed by exit.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
