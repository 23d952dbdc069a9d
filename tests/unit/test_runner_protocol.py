"""Messages and frames: whatever is sent arrives, and whatever is not the protocol is refused by name."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsllm import errors
from rsllm.errors import ProtocolError, RsllmError, RunnerCrashedError, RunnerError, TokenizerError
from rsllm.runner import protocol
from rsllm.runner.faults import from_fault, to_fault
from rsllm.runner.pieces import pack_logprobs, pack_options, unpack_logprobs, unpack_options
from rsllm.runner.protocol import FrameDecoder, Message, Piece, Step, decode, encode

FEW = settings(max_examples=60, deadline=None)

NUMBERS = st.integers(0, 2**53 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type hint of a message."""
    arguments = get_args(hint)
    if hint in (int, str, Any):
        return {int: NUMBERS, str: TEXTS, Any: JSON}[hint]
    if get_origin(hint) is dict:
        return st.dictionaries(TEXTS, JSON, max_size=3)
    if get_origin(hint) is list:
        return st.lists(values(arguments[0]), max_size=3)
    if arguments:
        return st.one_of(*(st.none() if argument is type(None) else values(argument) for argument in arguments))
    assert is_dataclass(hint)
    return instances(hint)


def instances(kind: Any) -> st.SearchStrategy[Any]:
    return st.builds(kind, **{name: values(hint) for name, hint in get_type_hints(kind).items()})


MESSAGES = st.one_of([instances(kind) for kind in protocol.MESSAGES.values()])


def frame(body: Any) -> bytes:
    encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
    return struct.pack(">I", len(encoded)) + encoded


@FEW
@given(MESSAGES)
def test_what_is_encoded_is_decoded(message: Message) -> None:
    assert decode(encode(message)[protocol.HEADER_BYTES :]) == message


@FEW
@given(st.lists(MESSAGES, max_size=4), st.data())
def test_a_stream_may_be_cut_anywhere(messages: list[Message], data: st.DataObject) -> None:
    stream = b"".join(map(encode, messages))
    decoder, received = FrameDecoder(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        received += decoder.feed(stream[:size])
        stream = stream[size:]
    assert received == messages
    assert decoder.pending == 0


@FEW
@given(st.binary(max_size=200))
def test_noise_is_a_protocol_error_or_incomplete(noise: bytes) -> None:
    try:
        list(FrameDecoder().feed(noise))
    except ProtocolError as error:
        assert len(str(error)) < 1000


@FEW
@given(JSON)
def test_any_json_is_a_message_or_a_protocol_error(value: Any) -> None:
    try:
        assert isinstance(decode(json.dumps(value).encode()), Message)
    except ProtocolError:
        pass


@FEW
@given(MESSAGES, st.data())
def test_a_changed_member_is_never_something_else(message: Message, data: st.DataObject) -> None:
    body = json.loads(encode(message)[protocol.HEADER_BYTES :])
    body[data.draw(st.sampled_from([*sorted(body), "more"]))] = data.draw(JSON)
    try:
        decoded = decode(json.dumps(body).encode())
    except ProtocolError:
        return
    for name, hint in get_type_hints(type(decoded)).items():
        if hint in (int, str):
            assert type(getattr(decoded, name)) is hint


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"type":"cancel","id":' + b"9" * 10_000 + b"}", "not JSON"),
        (b"NaN", "NaN is not a number"),
        (b'{"type":"cancel","id":1,"id":2}', "same member twice"),
        ([], "a list, not an object"),
        ("cancel", "a text, not an object"),
        ({}, "unknown type None"),
        ({"type": "other"}, "unknown type 'other'"),
        ({"type": ["cancel"]}, "unknown type"),
        ({"type": "cancel"}, r"missing members \['id'\]"),
        ({"type": "cancel", "id": 1, "more": 2}, r"unknown members \['more'\]"),
        ({"type": "cancel", "id": -1}, "whole number from 0"),
        ({"type": "cancel", "id": 2**53}, "whole number from 0"),
        ({"type": "cancel", "id": 1.0}, "the number 1.0"),
        ({"type": "cancel", "id": True}, "not true"),
        ({"type": "cancel", "id": "1"}, "not a text"),
        ({"type": "generate", "id": 1, "ids": [1, None], "options": {}}, "generate.ids must be .* not null"),
        ({"type": "generate", "id": 1, "ids": {}, "options": {}}, "generate.ids must be a list"),
        ({"type": "generate", "id": 1, "ids": [], "options": []}, "generate.options must be an object"),
        ({"type": "step", "pieces": [{"id": 1}], "ended": []}, "step.pieces: missing members"),
        ({"type": "step", "pieces": ["x"], "ended": []}, "step.pieces must be an object"),
        ({"type": "failed", "id": None, "error": None}, "failed.error must be an object"),
    ],
)
def test_what_is_wrong_is_said(body: Any, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        list(FrameDecoder().feed(frame(body)))


def test_a_frame_is_bounded_on_both_sides() -> None:
    with pytest.raises(ProtocolError, match="4294967295 bytes is too large"):
        list(FrameDecoder().feed(b"\xff\xff\xff\xff"))
    with pytest.raises(ProtocolError, match="too large"):
        encode(protocol.Data(1, "x" * protocol.MAX_FRAME_BYTES))


def test_what_json_cannot_say_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ProtocolError, match="cannot be sent"):
        encode(protocol.Result(1, math.nan))
    with pytest.raises(ProtocolError, match="cannot be sent"):
        encode(protocol.Result(1, b"bytes"))
    with pytest.raises(TokenizerError, match="not valid Unicode"):
        encode(protocol.Call(1, "tokenize", {"text": "\ud800"}))


def test_a_step_of_many_sequences_is_one_frame() -> None:
    step = Step([Piece(id, "text", [id, id + 1]) for id in range(256)], [])
    assert len(list(FrameDecoder().feed(encode(step)))) == 1


@pytest.mark.parametrize("name", errors.__all__)
def test_our_errors_arrive_as_what_they_were(name: str) -> None:
    kind = getattr(errors, name)
    fields_of = {
        "file": "f",
        "field": "x",
        "name": "temperature",
        "prompt_tokens": 5,
        "context": 4,
        "seconds": 1.5,
        "last_lines": ("a", "b"),
        "exit_code": -9,
        "model": "m",
    }
    probe = kind("text", hint="hint")
    given_fields = {key: value for key, value in fields_of.items() if key in vars(probe)}
    error = kind("text", hint="hint", **given_fields)
    fault = to_fault(error)
    assert decode(encode(protocol.Failed(None, fault))[4:]) == protocol.Failed(None, fault)
    rebuilt = from_fault(fault)
    assert type(rebuilt) is kind
    assert str(rebuilt) == "text"
    assert vars(rebuilt) == vars(error)


def test_errors_of_the_system_keep_class_number_and_file() -> None:
    rebuilt = from_fault(to_fault(FileNotFoundError(2, "No such file or directory", "/x")))
    assert type(rebuilt) is FileNotFoundError
    assert (rebuilt.errno, rebuilt.filename) == (2, "/x")
    assert type(from_fault(to_fault(PermissionError(13, "Permission denied")))) is PermissionError
    assert type(from_fault(to_fault(OSError("odd")))) is OSError


def test_other_errors_are_named() -> None:
    assert type(from_fault(to_fault(ValueError("v")))) is ValueError
    assert type(from_fault(to_fault(MemoryError()))) is MemoryError
    rebuilt = from_fault(to_fault(KeyError("k")))
    assert type(rebuilt) is RunnerError
    assert str(rebuilt) == "KeyError: 'k'"
    try:
        "\ud800".encode()
    except UnicodeEncodeError as error:
        assert type(from_fault(to_fault(error))) is TokenizerError


@FEW
@given(instances(protocol.Fault))
def test_a_hostile_fault_is_still_an_exception(fault: protocol.Fault) -> None:
    assert isinstance(from_fault(fault), Exception)


@FEW
@given(st.sampled_from(errors.__all__), st.dictionaries(st.sampled_from(["hint", "model", "last_lines", "self"]), JSON))
def test_hostile_attributes_make_no_other_class(name: str, attributes: dict[str, Any]) -> None:
    rebuilt = from_fault(protocol.Fault(name, "m", attributes))
    assert isinstance(rebuilt, RsllmError)
    if isinstance(rebuilt, RunnerCrashedError):
        assert isinstance(rebuilt.last_lines, tuple)


def test_logprobs_survive_json() -> None:
    entry = {"id": 1, "text": "\ufffd", "bytes": b"\xff", "logprob": -0.5}
    entries = [{**entry, "top": [{**entry, "logprob": -math.inf, "top": []}]}]
    packed = pack_logprobs(entries)
    assert json.loads(json.dumps(packed, allow_nan=False)) == packed
    assert unpack_logprobs(packed) == entries
    assert pack_logprobs(None) is None
    assert unpack_logprobs(None) is None
    for bad in ([{}], [{**packed[0], "bytes": [300]}], [{**packed[0], "logprob": "x"}]):  # type: ignore[index]
        with pytest.raises(ProtocolError, match="logprobs that are none"):
            unpack_logprobs(bad)  # type: ignore[arg-type]


def test_biases_survive_json_and_texts_become_tokens() -> None:
    options = {"logit_bias": [(5, 1.5), ("ab", -math.inf)], "seed": 2**64 - 1}
    packed = pack_options(options)
    arrived = json.loads(json.dumps(packed, allow_nan=False))
    unpacked = unpack_options(arrived, lambda text: list(text.encode()))
    assert unpacked == {"logit_bias": [(5, 1.5), (97, -math.inf), (98, -math.inf)], "seed": 2**64 - 1}
    assert unpack_options(pack_options({"seed": 1}), lambda text: []) == {"seed": 1}
    for bad in ([1], [[1]], [[1, "x"]], [[None, 1]], 5):
        with pytest.raises(ProtocolError, match="logit_bias"):
            unpack_options({"logit_bias": bad}, lambda text: [])
