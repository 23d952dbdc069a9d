"""Modelfiles: every instruction, every way of quoting, and what is said of mistakes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsllm.errors import ModelfileError
from rsllm.store.modelfile import COMMANDS, Instruction, Modelfile, parse
from rsllm.store.parameters import TYPES, typed

FULL = '''# a comment
FROM llama3.2
from ./mmproj.gguf
 PARAMETER  temperature 0.7
PARAMETER stop "<|eot_id|>"
PARAMETER stop a b # no comment
PARAMETER num_ctx 4096
PARAMETER use_mmap T
PARAMETER mirostat 1
TEMPLATE """{{ .System }}
"quoted" {{ .Prompt }}"""
SYSTEM "You are
two lines."
ADAPTER ./lora.gguf
DRAFT ./draft.gguf
LICENSE MIT
LICENSE """
second
"""
MESSAGE user Hi "there"
MESSAGE assistant "Hello."
RENDERER qwen3
PARSER qwen3
REQUIRES v0.14.0
'''


def test_every_instruction() -> None:
    file = parse(FULL)
    assert file.all("from") == ["llama3.2", "./mmproj.gguf"]
    assert file.last("adapter") == "./lora.gguf"
    assert file.to_request() == {
        "template": '{{ .System }}\n"quoted" {{ .Prompt }}',
        "system": "You are\ntwo lines.",
        "renderer": "qwen3",
        "parser": "qwen3",
        "requires": "0.14.0",
        "license": ["MIT", "\nsecond\n"],
        "parameters": {
            "temperature": 0.7,
            "stop": ["<|eot_id|>", "a b # no comment"],
            "num_ctx": 4096,
            "use_mmap": True,
        },
        "messages": [{"role": "user", "content": 'Hi "there"'}, {"role": "assistant", "content": "Hello."}],
    }
    assert file.warnings == ["warning: parameter mirostat is deprecated"]
    assert parse(str(file)) == file


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('SYSTEM ""', ""),
        ('SYSTEM """"""', ""),
        ("SYSTEM 'single'", "'single'"),
        ('SYSTEM a "b"', 'a "b"'),
        ('SYSTEM """a"""  ', "a"),
        ('SYSTEM """a\r\nb"""\r\n', "a\r\nb"),
        ("SYSTEM \t a b \t", "a b"),
        ('SYSTEM "a" b\nc"', 'a" b\nc'),
        ('SYSTEM """"quoted" text"""', '"quoted" text'),
        ("SYSTEM a\x00b\x07c", "abc"),
        ('SYSTEM """x """ y\nz"""', 'x """ y\nz'),
    ],
)
def test_quoting(text: str, value: str) -> None:
    assert parse(f"FROM a\n{text}").last("system") == value


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_the_last_parameter_needs_no_newline(end: str) -> None:
    """STO-10."""
    assert parse(f'FROM a\nPARAMETER stop "<|eot_id|>"{end}').parameters == {"stop": ["<|eot_id|>"]}


def test_a_quoted_from() -> None:
    """STO-11."""
    assert parse('FROM "./x.gguf"').all("from") == ["./x.gguf"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings(encoding: str) -> None:
    """STO-13."""
    assert parse("FROM a\r\nSYSTEM Grüße 👩‍🚀\r\n".encode(encoding)).last("system") == "Grüße 👩‍🚀"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", "no FROM line", "FROM"),
        ("SYSTEM a", "no FROM line", ""),
        ('FROM a\nSYSTEM """b"""\nIt goes on.', '(line 3): command must be one of "from", "license"', "It goes on."),
        ("Last login: today\nFROM a", "(line 1): command must be one of", "Last login"),
        ("FROM a\nSYSTEM", "unexpected EOF", "line 2"),
        ('FROM a\nSYSTEM """b\nc', "unexpected EOF", "line 2"),
        ('FROM a\nSYSTEM "b" c', "unexpected EOF", "line 2"),
        ("FROM a\nPARAMETER stop", "unexpected EOF", "line 2"),
        ("FROM a\nMESSAGE tool x", 'message role must be one of "system", "user", or "assistant"', "tool"),
        ("FROM a\nFROM: b", "(line 2): command must be one of", "FROM: b"),
        (b"FROM a\n\xff\xfa", "(line 2): the Modelfile is not UTF-8", "UTF-8"),
    ],
)
def test_mistakes(text: str | bytes, message: str, hint: str) -> None:
    """STO-12, STO-13."""
    with pytest.raises(ModelfileError) as caught:
        parse(text)
    assert str(caught.value).startswith(message)
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("num_ctx", "many", "invalid int value [many]"),
        ("num_ctx", "9" * 5000, f"invalid int value [{'9' * 5000}]"),
        ("temperature", "warm", "invalid float value [warm]"),
        ("temperature", "nan", "invalid float value [nan]"),
        ("temperature", "1e99", "invalid float value [1e99]"),
        ("use_mmap", "yes", "invalid bool value [yes]"),
        ("numa", "1", "unknown parameter 'numa'"),
        ("temprature", "1", "unknown parameter 'temprature'"),
    ],
)
def test_parameters_have_types(name: str, value: str, message: str) -> None:
    with pytest.raises(ModelfileError) as caught:
        _ = parse(f"FROM a\n\nPARAMETER {name} {value}").parameters
    assert (str(caught.value), caught.value.line) == (message, 3)


def test_requires_is_a_version() -> None:
    with pytest.raises(ModelfileError, match="requires must be a valid semver"):
        parse("FROM a\nREQUIRES soon").to_request()


@given(st.floats(-1e6, 1e6, width=32))
def test_floats_have_the_fewest_digits(value: float) -> None:
    read = typed("temperature", repr(value))
    assert read == pytest.approx(value, rel=1e-6, abs=1e-44)
    assert len(repr(read)) <= len(repr(value))


@pytest.mark.parametrize(
    "value",
    [
        'a\n"""\nb',
        'x"""\ny',
        'code:\n```py\n"""Doc."""\n```',
        "\x00",
        "a\rb",
        '"',
        '"""',
        " a ",
        "#",
        "\ufeffa",
        "\ud800",
    ],
)
def test_any_text_can_be_written(value: str) -> None:
    """STO-15."""
    file = Modelfile((Instruction("from", "a"), Instruction("template", value)))
    assert parse(str(file)) == file


def test_what_ollama_cannot_read_is_marked() -> None:
    text = str(Modelfile((Instruction("from", "a"), Instruction("template", 'x"""\ny'))))
    assert text == 'FROM a\n# rsllm: the next value is JSON\nTEMPLATE "x\\"\\"\\"\\ny"\n'
    # Whereas three quotes that end no line need no such thing.
    assert str(Instruction("template", 'x""" y\nz')) == 'TEMPLATE """x""" y\nz"""'


VALUES = st.text(st.sampled_from('ab "\n\r\t#{}é\u00a0\u2028\\')) | st.text()
INSTRUCTIONS = st.one_of(
    st.builds(
        Instruction, st.sampled_from([name for name in COMMANDS if name not in ("parameter", "message")]), VALUES
    ),
    st.builds(Instruction, st.just("parameter"), VALUES, st.sampled_from(sorted(TYPES))),
    st.builds(Instruction, st.just("message"), VALUES, st.sampled_from(["system", "user", "assistant"])),
)


@given(st.lists(INSTRUCTIONS, max_size=6))
@settings(deadline=None)
def test_round_trip(instructions: list[Instruction]) -> None:
    file = Modelfile((Instruction("from", "a"), *instructions))
    assert parse(str(file)) == file


@given(
    st.binary()
    | st.lists(st.sampled_from([b"FROM a", b"\n", b'"', b'"""', b"SYSTEM ", b"#", b"\xff\xfe"])).map(b"".join)
)
@settings(deadline=None)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        file = parse(data)
    except ModelfileError:
        return
    assert parse(str(file)) == file
