"""What travels between the server and a runner, and how it is framed.

A frame is a length (four bytes, big-endian) and that many bytes of UTF-8 JSON: one object, whose `type` names a message
class below and whose other members are exactly the fields of that class. A step of the engine is one `Step` frame,
whatever the number of sequences. The child speaks first (`Hello`); a parent that does not know its protocol version
refuses it. Requests carry an id that the parent chooses, answers repeat it.

Both sides take the other one for hostile: a frame that is too large, is no such object, has a member too many or too
few, or a value of another type is a `ProtocolError`, after which the connection cannot be used.
"""

from __future__ import annotations

import functools
import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from types import UnionType
from typing import Any, NoReturn, Union, get_args, get_origin, get_type_hints

from rsllm.errors import ProtocolError, TokenizerError

__all__ = [
    "CHUNK_BYTES",
    "HEADER_BYTES",
    "MAX_FRAME_BYTES",
    "MESSAGES",
    "PROTOCOL_VERSION",
    "Call",
    "Cancel",
    "Data",
    "Ended",
    "Failed",
    "Fault",
    "FrameDecoder",
    "Generate",
    "Hello",
    "Load",
    "Message",
    "Pause",
    "Piece",
    "Plan",
    "Planned",
    "Progress",
    "Ready",
    "Result",
    "Resume",
    "Shutdown",
    "Step",
    "decode",
    "encode",
    "frame_length",
]

PROTOCOL_VERSION = 2
HEADER_BYTES = 4
# A prompt of a million token ids takes 7 MB. What can be longer (logits) travels in several frames.
MAX_FRAME_BYTES = 16 << 20
# Raw bytes of one `Data` frame; base64 makes four thirds of them.
CHUNK_BYTES = 3 << 20
_ID_LIMIT = 2**53  # beyond it other JSON readers round


@dataclass(frozen=True, slots=True)
class Message:
    """One frame."""


# From the child.


@dataclass(frozen=True, slots=True)
class Hello(Message):
    """The first frame: which protocol the child speaks, and which child it is."""

    protocol: int
    version: str
    pid: int


@dataclass(frozen=True, slots=True)
class Progress(Message):
    """A sign of life while the model is loaded; the parent's limit counts from the last one."""

    phase: str


@dataclass(frozen=True, slots=True)
class Planned(Message):
    """The answer to `Plan`: the core's own figures, or null from a core that makes no plans."""

    plan: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Ready(Message):
    """The model is loaded: `Engine.info()` and `Engine.special_tokens()`."""

    info: dict[str, Any]
    special_tokens: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Fault:
    """An exception in transit: class name, message, attributes."""

    kind: str
    message: str
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of one sequence with the ids, and the logprobs where asked for, of all its tokens since the last piece."""

    id: int
    text: str
    ids: list[int]
    logprobs: list[dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """A sequence is over: its figures, or what went wrong."""

    id: int
    stats: dict[str, Any] | None = None
    error: Fault | None = None


@dataclass(frozen=True, slots=True)
class Step(Message):
    """What came of one step of the engine, for all sequences together: pieces first, then ends."""

    pieces: list[Piece]
    ended: list[Ended]


@dataclass(frozen=True, slots=True)
class Data(Message):
    """A part of a binary answer, base64; a `Result` with its shape follows the last part."""

    id: int
    payload: str


@dataclass(frozen=True, slots=True)
class Result(Message):
    """The answer to a `Call`."""

    id: int
    value: Any


@dataclass(frozen=True, slots=True)
class Failed(Message):
    """An exception instead of an answer; without an id it concerns planning or loading."""

    id: int | None
    error: Fault


# From the parent.


@dataclass(frozen=True, slots=True)
class Plan(Message):
    """How much memory the model would take with these options. Nothing is loaded."""

    path: str
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Load(Message):
    """Load the model; `options` are the keyword arguments of `Engine`."""

    path: str
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Generate(Message):
    """Start a sequence. `options` are complete and checked, as `rsllm.options.validate` returns them."""

    id: int
    ids: list[int]
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cancel(Message):
    """Stop a sequence. It is answered by the sequence's `Ended`; an id that is over already is no error."""

    id: int


@dataclass(frozen=True, slots=True)
class Pause(Message):
    """Send nothing more of a sequence: who reads it is slow, and what it has said already waits. Its end waits too."""

    id: int


@dataclass(frozen=True, slots=True)
class Resume(Message):
    """Go on with it. An id that is over already is no error, here and there."""

    id: int


@dataclass(frozen=True, slots=True)
class Call(Message):
    """Anything that has one answer: `tokenize`, `detokenize`, `logits`, `embed`, `stats`, `ping`."""

    id: int
    method: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shutdown(Message):
    """Cancel what runs, close the model and exit."""


MESSAGES: dict[str, type[Message]] = {
    kind.__name__.lower(): kind
    for kind in (
        *(Hello, Progress, Planned, Ready, Step, Data, Result, Failed),
        *(Plan, Load, Generate, Cancel, Pause, Resume, Call, Shutdown),
    )
}


def encode(message: Message) -> bytes:
    """The frame of a message.

    Raises `ProtocolError` where it is too large or JSON cannot say it, `TokenizerError` for a lone surrogate.
    """
    plain = _plain_step(message) if isinstance(message, Step) else _plain(message)
    body: dict[str, Any] = {"type": type(message).__name__.lower(), **plain}
    try:
        # Not ASCII: most of what travels is text, and six bytes a character would be a waste.
        encoded = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise TokenizerError(f"the text is not valid Unicode: {error.reason} at character {error.start}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"a {body['type']} message cannot be sent: {error}") from None
    if len(encoded) > MAX_FRAME_BYTES:
        raise ProtocolError(f"a {body['type']} message of {len(encoded)} bytes is too large: at most {MAX_FRAME_BYTES}")
    return struct.pack(">I", len(encoded)) + encoded


def decode(body: bytes | bytearray | memoryview) -> Message:
    """The message in a frame's body. Raises `ProtocolError`."""
    try:
        parsed = json.loads(bytes(body), parse_constant=_refuse_constant, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a frame is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise ProtocolError(f"a frame holds {_kind(parsed)}, not an object")
    kind = MESSAGES.get(name) if isinstance(name := parsed.pop("type", None), str) else None
    if kind is None:
        raise ProtocolError(f"a frame has the unknown type {name!r:.60}")
    step = _read_step(parsed) if kind is Step else None
    message = _build(kind, parsed, str(name)) if step is None else step
    assert isinstance(message, Message), "the table holds nothing else"
    return message


def frame_length(header: bytes | bytearray | memoryview) -> int:
    """The length of the body that follows a header. Raises `ProtocolError` where it is beyond the bound."""
    (length,) = struct.unpack(">I", header)
    if length > MAX_FRAME_BYTES:
        raise ProtocolError(f"a frame of {length} bytes is too large: at most {MAX_FRAME_BYTES}")
    return int(length)


class FrameDecoder:
    """Messages out of a stream of bytes, however it is cut into parts."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that are complete now. Raises `ProtocolError`; after that the stream is of no use."""
        self._held += data
        start = 0
        try:
            while len(self._held) - start >= HEADER_BYTES:
                body = start + HEADER_BYTES
                end = body + frame_length(self._held[start:body])
                if end > len(self._held):
                    break
                start = end
                yield decode(self._held[body:end])
        finally:
            del self._held[:start]

    @property
    def pending(self) -> int:
        """Bytes of a message that is not complete."""
        return len(self._held)


# A step comes with every token of every sequence, so it is written and read by hand. What is not quite as it should be
# is left to the general way, which knows what to say about it.


def _plain_step(step: Step) -> dict[str, Any]:
    pieces = [{"id": it.id, "text": it.text, "ids": it.ids, "logprobs": it.logprobs} for it in step.pieces]
    return {"pieces": pieces, "ended": [_plain(ended) for ended in step.ended]}


def _read_step(members: dict[str, Any]) -> Step | None:
    if members.keys() != _STEP or type(members["pieces"]) is not list or type(members["ended"]) is not list:
        return None
    pieces = []
    for it in members["pieces"]:
        if type(it) is not dict or it.keys() != _PIECE:
            return None
        id, text, ids = it["id"], it["text"], it["ids"]
        if it["logprobs"] is not None or type(text) is not str or type(ids) is not list:
            return None
        for number in (id, *ids):
            if type(number) is not int or not 0 <= number < _ID_LIMIT:
                return None
        pieces.append(Piece(id, text, ids))
    return Step(pieces, _check(members["ended"], list[Ended], "step.ended"))


_STEP = {"pieces", "ended"}
_PIECE = {"id", "text", "ids", "logprobs"}


def _plain(value: Any) -> Any:
    """Nested dataclasses as dictionaries. `dataclasses.asdict` does this too, but copies every list of ids deeply."""
    if hasattr(value, "__dataclass_fields__"):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, list) and value and hasattr(value[0], "__dataclass_fields__"):
        return [_plain(item) for item in value]
    return value


def _build(kind: type, members: dict[str, Any], where: str) -> Any:
    """An instance of a dataclass of this module from the members of a JSON object."""
    hints = _hints(kind)
    if members.keys() != hints.keys():
        missing = sorted(hints.keys() - members.keys())
        unknown = sorted(members.keys() - hints.keys())
        raise ProtocolError(f"{where}: missing members {missing}, unknown members {unknown}"[:500])
    return kind(**{name: _check(members[name], hint, f"{where}.{name}") for name, hint in hints.items()})


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _check(value: Any, hint: Any, where: str) -> Any:
    """The value as the type hint wants it."""
    if hint is Any:
        return value
    if hint is int:
        return _number(value, where)
    if hint is str:
        return value if isinstance(value, str) else _refuse(value, "a text", where)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return None if value is None else _check(value, inner, where)
    if origin is dict:
        return value if isinstance(value, dict) else _refuse(value, "an object", where)
    if origin is list:
        if not isinstance(value, list):
            _refuse(value, "a list", where)
        return [_check(item, arguments[0], where) for item in value]
    if not isinstance(value, dict):
        _refuse(value, "an object", where)
    return _build(hint, value, where)


def _number(value: Any, where: str) -> int:
    # Booleans are integers to Python, not to JSON.
    if type(value) is not int or not 0 <= value < _ID_LIMIT:
        _refuse(value, f"a whole number from 0 to {_ID_LIMIT - 1}", where)
    return value


def _refuse(value: Any, expected: str, where: str) -> NoReturn:
    raise ProtocolError(f"{where} must be {expected}, not {_kind(value)}")


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, (int, float)):
        return f"the number {value!r:.30}" if math.isfinite(value) else "a number that is not finite"
    return "a text" if isinstance(value, str) else "a list" if isinstance(value, list) else "an object"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("an object has the same member twice")
    return made


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")
