"""Generated text as it comes: the pieces, the iterators over them, and the finished reply.

A stream owns one running sequence of the engine. Closing the stream, leaving its `with` block, dropping the last
reference to it or an exception while waiting (Ctrl-C among them) cancels the sequence; a cancelled one stops within
one layer. The core cancels when its `Generation` is dropped, so `TokenStream` needs no finaliser of its own.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    import asyncio  # takes longer to import than this whole package; synchronous use never needs it

    _Piece = tuple[str, list[int], list[dict[str, Any]] | None]

__all__ = ["AsyncTokenStream", "Logprob", "Reply", "Stats", "Token", "TokenStream"]

# How many pieces an asynchronous stream may be ahead of its reader before it waits for it.
_READ_AHEAD = 64
# How often a waiting pump looks whether it is still wanted.
_POLL_MILLISECONDS = 100


OnEnd = Callable[[str, "Stats"], None]
"""Called once with the text that came and the figures, when a stream ends or is closed, but not when it fails."""


class GenerationLike(Protocol):
    """What a stream needs of `rsllm._core.Generation`."""

    def next(self) -> _Piece | None: ...
    def next_timeout(self, milliseconds: int) -> _Piece | bool | None: ...
    def cancel(self) -> None: ...
    def stats(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token's log probability (natural logarithm, before temperature and truncation), with its likeliest rivals."""

    id: int
    text: str
    bytes: bytes
    logprob: float
    top: tuple[Logprob, ...] = ()

    @classmethod
    def from_core(cls, entry: Mapping[str, Any]) -> Logprob:
        return cls(
            id=entry["id"],
            text=entry["text"],
            bytes=bytes(entry["bytes"]),
            logprob=entry["logprob"],
            top=tuple(cls.from_core(rival) for rival in entry.get("top", ())),
        )


class Token(str):
    """A piece of generated text: a `str` that knows its tokens.

    One piece may stand for several tokens, since text leaves only when it is valid Unicode and cannot be the
    beginning of a stop string. `ids` and `logprobs` hold all tokens since the last piece.
    """

    __slots__ = ("ids", "logprobs")

    ids: tuple[int, ...]
    logprobs: tuple[Logprob, ...] | None

    def __new__(cls, text: str, ids: tuple[int, ...] = (), logprobs: tuple[Logprob, ...] | None = None) -> Self:
        token = super().__new__(cls, text)
        token.ids = ids
        token.logprobs = logprobs
        return token

    @property
    def id(self) -> int | None:
        """The last token of the piece; `None` for a piece without one (text that a stop string held back)."""
        return self.ids[-1] if self.ids else None

    def __reduce__(self) -> tuple[type[Self], tuple[str, tuple[int, ...], tuple[Logprob, ...] | None]]:
        return type(self), (str(self), self.ids, self.logprobs)

    @classmethod
    def from_core(cls, piece: _Piece) -> Self:
        text, ids, logprobs = piece
        entries = None if logprobs is None else tuple(Logprob.from_core(entry) for entry in logprobs)
        return cls(text, tuple(ids), entries)


_COUNTS = (
    "seed",
    "prompt_tokens",
    "cached_tokens",
    "generated_tokens",
    "shifts",
    "dropped_tokens",
    "drafted_tokens",
    "accepted_tokens",
    "queue_ns",
    "prefill_ns",
    "decode_ns",
    "first_token_ns",
    "total_ns",
)


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts and durations (nanoseconds) of one sequence. Prefill and decode are apart, and neither counts waiting."""

    finish_reason: str
    """`stop` (end token or stop string), `length` (max_tokens), `context` (no room left), `cancelled`, `error`."""
    stop_text: str | None
    seed: int
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens whose KV was already there; they were not computed again."""
    generated_tokens: int
    shifts: int
    """Times that a full context was begun anew with its newer half."""
    dropped_tokens: int
    """Tokens that these forgot."""
    drafted_tokens: int
    """Tokens that were guessed from the text so far and verified beside others."""
    accepted_tokens: int
    """Those of them that came true; each saved a step."""
    queue_ns: int
    prefill_ns: int
    decode_ns: int
    first_token_ns: int
    total_ns: int
    warnings: tuple[str, ...] = ()
    """What was done otherwise than asked, such as parts of a schema that are not enforced."""

    @classmethod
    def from_core(cls, stats: Mapping[str, Any]) -> Stats:
        return cls(
            finish_reason=stats.get("finish_reason") or "cancelled",
            stop_text=stats.get("stop_text"),
            warnings=tuple(map(str, stats.get("warnings") or ())),
            **{name: int(stats.get(name) or 0) for name in _COUNTS},
        )

    @property
    def prompt_tokens_per_second(self) -> float | None:
        """Rate of prefill over the tokens really computed; `None` where nothing was."""
        return _rate(self.prompt_tokens - self.cached_tokens, self.prefill_ns)

    @property
    def generated_tokens_per_second(self) -> float | None:
        """Rate of decoding; `None` where nothing was generated."""
        return _rate(self.generated_tokens, self.decode_ns)


@dataclass(frozen=True, slots=True)
class Reply:
    """A finished generation."""

    text: str
    tokens: list[int]
    stats: Stats
    finish_reason: str
    logprobs: list[Logprob] | None = None

    def __str__(self) -> str:
        return self.text


class TokenStream(Iterator[Token]):
    """The pieces of one generation, for a `for` loop.

    >>> with model.stream("Once upon a time", max_tokens=8) as stream:
    ...     for token in stream:
    ...         print(token, end="")
    """

    def __init__(self, generation: GenerationLike, on_end: OnEnd | None = None) -> None:
        self._generation: GenerationLike | None = generation
        self._stats: Stats | None = None
        self._on_end = on_end
        self._heard: list[str] = []

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Token:
        generation = self._generation
        if generation is None:
            raise StopIteration
        try:
            piece = generation.next()
        except Exception:
            self._on_end = None  # a turn that failed is no turn
            self.close()
            raise
        except BaseException:  # Ctrl-C
            self.close()
            raise
        if piece is None:
            self._finish()
            raise StopIteration
        token = Token.from_core(piece)
        self._heard.append(token)
        return token

    def close(self) -> None:
        """Cancel what is still running. Closing twice, or after the end, does nothing."""
        if self._generation is not None:
            self._generation.cancel()
            self._finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def stats(self) -> Stats | None:
        """Counts and durations, once the stream has ended or was closed; `None` before."""
        return self._stats

    def reply(self) -> Reply:
        """Read to the end and put the rest together: the whole reply if nothing was read before."""
        try:
            return _reply(list(self), self)
        except BaseException:
            self.close()
            raise

    def _finish(self) -> None:
        generation, self._generation = self._generation, None
        if generation is not None:
            self._stats = Stats.from_core(generation.stats())
            if self._on_end is not None:
                self._on_end("".join(self._heard), self._stats)


class AsyncTokenStream(AsyncIterator[Token]):
    """The pieces of one generation, for `async for`; the event loop is never blocked.

    A thread of its own tokenises the prompt, waits for the engine and hands pieces over, beginning with the first
    `async for` step. It ends with the stream, with the event loop, and with the interpreter's main thread, so a stream
    that nobody finished does not keep a script alive.
    """

    def __init__(self, start: Callable[[], GenerationLike], on_end: OnEnd | None = None) -> None:
        self._start = start
        self._on_end = on_end
        self._pump: _Pump | None = None
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Token:
        if self._ended:
            raise StopAsyncIteration
        if self._pump is None:
            self._pump = _Pump(self._start, self._on_end)
        try:
            item = await self._pump.get()
        except BaseException:  # the awaiting task was cancelled
            self._ended = True
            self._pump.stop()
            raise
        if isinstance(item, Token):
            return item
        self._ended = True
        if item is None:
            raise StopAsyncIteration
        raise item

    async def aclose(self) -> None:
        """Cancel what still runs, and wait until it has stopped. Closing twice, or after the end, does nothing."""
        self._ended = True
        if self._pump is not None:
            self._pump.stop()
            await self._pump.stopped()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def stats(self) -> Stats | None:
        """Counts and durations, once the stream has ended or was closed; `None` before."""
        return self._pump.stats if self._pump is not None else None

    async def reply(self) -> Reply:
        """Read to the end and put the rest together: the whole reply if nothing was read before."""
        return _reply([token async for token in self], self)

    def __del__(self) -> None:
        # The pump's thread holds the generation, so dropping the stream alone would not cancel it.
        pump = getattr(self, "_pump", None)
        if pump is not None:
            pump.stop()


class _Pump:
    """The thread behind an `AsyncTokenStream`. It holds no reference to the stream, so the stream can be collected."""

    def __init__(self, start: Callable[[], GenerationLike], on_end: OnEnd | None) -> None:
        import asyncio

        self.stats: Stats | None = None
        self._start = start
        self._generation: GenerationLike | None = None
        self._on_end = on_end
        self._heard: list[str] = []
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Token | BaseException | None] = asyncio.Queue()
        self._over = asyncio.Event()
        self._room = threading.Semaphore(_READ_AHEAD)
        self._stop = threading.Event()
        threading.Thread(target=self._run, name="rsllm-stream").start()

    async def get(self) -> Token | BaseException | None:
        """The next piece; `None` at the end; an exception where there is one."""
        item = await self._queue.get()
        self._room.release()
        if isinstance(item, Token):
            self._heard.append(item)
        elif item is None:
            self._tell()
        return item

    def stop(self) -> None:
        """Let the thread end; it cancels the generation."""
        self._stop.set()
        self._room.release()
        if self._generation is not None:
            self._generation.cancel()  # now, and not at the next look

    async def stopped(self) -> None:
        """Wait until the thread is done with the generation."""
        await self._over.wait()
        self._tell()

    def _run(self) -> None:
        stats: Stats | None = None
        failure: BaseException | None = None
        try:
            generation = self._generation = self._start()
            while self._wanted():
                piece = generation.next_timeout(_POLL_MILLISECONDS)
                if piece is None:
                    break
                if not isinstance(piece, bool):
                    self._put(Token.from_core(piece))
        except BaseException as error:
            failure = error
        if self._generation is not None:
            self._generation.cancel()
            stats = Stats.from_core(self._generation.stats())
        self._call(self._finish, stats, failure)

    def _finish(self, stats: Stats | None, failure: BaseException | None) -> None:
        """The end, in the event loop's thread and after all pieces."""
        self.stats = stats
        if failure is not None:
            self._on_end = None  # a turn that failed is no turn
        self._queue.put_nowait(failure)
        self._over.set()
        if self._stop.is_set():
            self._tell()

    def _tell(self) -> None:
        """Call `on_end`, once. Pieces that nobody read are no part of what was said."""
        on_end, self._on_end = self._on_end, None
        if on_end is not None and self.stats is not None:
            on_end("".join(self._heard), self.stats)

    def _put(self, token: Token) -> None:
        while self._wanted():
            if self._room.acquire(timeout=_POLL_MILLISECONDS / 1000):
                self._call(self._queue.put_nowait, token)
                return

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the event loop is closed: nobody waits any more
            self._stop.set()

    def _wanted(self) -> bool:
        # At the interpreter's end this thread is joined after the main thread is marked dead: then it must leave.
        return not self._stop.is_set() and not self._loop.is_closed() and threading.main_thread().is_alive()


def _reply(tokens: list[Token], stream: TokenStream | AsyncTokenStream) -> Reply:
    stats = stream.stats
    assert stats is not None, "the stream was read to its end"
    with_logprobs = any(token.logprobs is not None for token in tokens)
    return Reply(
        text="".join(tokens),
        tokens=[id for token in tokens for id in token.ids],
        stats=stats,
        finish_reason=stats.finish_reason,
        logprobs=[entry for token in tokens for entry in token.logprobs or ()] if with_logprobs else None,
    )


def _rate(count: int, nanoseconds: int) -> float | None:
    return count * 1e9 / nanoseconds if count > 0 and nanoseconds > 0 else None
