"""Thoughts told from answers, by the tags that templates know."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsllm.chat.parsers import choose_parser, merged
from rsllm.chat.parsers.formats import FORMATS, GENERIC
from rsllm.chat.parsers.go_tags import is_go_template, thinking_tags, tool_tag
from rsllm.chat.parsers.named import NAMED
from rsllm.control import control_ids, reveal

JINJA = "{{ '<think>' + m.thinking + '</think>' }}"
GO = (
    '{{- range $i, $m := .Messages }}{{ if eq .Role "assistant" }}{{ if and $.IsThinkSet .Thinking }}<think>\n'
    "{{ .Thinking }}\n</think>\n{{ end }}{{ .Content }}{{ end }}{{ end }}"
)


def split(text: str, *, template: str = JINJA, tools: object = (), **options: object) -> list[tuple[str, str]]:
    """What is seen, by kind; the same for each character alone."""
    results = []
    for pieces in ([text], list(text)):
        parser = choose_parser(template, tools).start(**options)  # type: ignore[arg-type]
        parts = merged([*(part for piece in pieces for part in parser.feed(piece)), *parser.finish()])
        assert "".join(part.raw for part in parts) == text
        results.append([(part.kind, part.text) for part in parts if part.text])
    assert results[0] == results[1]
    return results[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>a\nb </think>\n\nYes", [("thinking", "a\nb "), ("content", "Yes")]),
        ("\n <think>\n\na</think>Yes", [("thinking", "a"), ("content", "Yes")]),
        ("<think>\n\n</think>\n\nYes", [("content", "Yes")]),
        ("  Yes", [("content", "  Yes")]),
        ("Yes <think>no</think>", [("content", "Yes <think>no</think>")]),
        ("<think>never ends </thi", [("thinking", "never ends </thi")]),
        ("<thi", [("content", "<thi")]),
        ("<think>a</think>b</think>c", [("thinking", "a"), ("content", "b</think>c")]),
        ("\n", [("content", "\n")]),
        ("", []),
    ],
)
def test_states(text: str, expected: list[tuple[str, str]]) -> None:
    assert split(text) == expected
    assert split(text, template=GO) == expected


@pytest.mark.parametrize("text", ["a</think>\nYes", "\n\na</think>Yes", "<think>a</think>Yes"])
def test_the_prompt_has_opened_the_thoughts(text: str) -> None:
    assert split(text, prompt="<|im_start|>assistant\n<think>\n") == [("thinking", "a"), ("content", "Yes")]


def test_thinking_off_leaves_the_tags_where_they_are() -> None:
    assert split("<think>a</think>Yes", think=False) == [("content", "<think>a</think>Yes")]
    assert split("<think>a</think>Yes", think="low") == [("thinking", "a"), ("content", "Yes")]


def test_a_template_without_thinking() -> None:
    chosen = choose_parser("{{ messages }}")
    assert not chosen.thinks
    assert split("<think>a</think>", template="{{ messages }}") == [("content", "<think>a</think>")]


def test_a_closed_thought_in_the_prompt_is_no_open_one() -> None:
    assert split("Yes", prompt="assistant\n<think>\n\n</think>\n\n") == [("content", "Yes")]


@pytest.mark.parametrize(
    ("opened", "closed"),
    [("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>"), ("<|START_THINKING|>", "<|END_THINKING|>"),
     ("<|channel>thought", "<channel|>"), ("<mm:think>", "</mm:think>"), ("◁think▷", "◁/think▷")],
)  # fmt: skip
def test_other_tags(opened: str, closed: str) -> None:
    assert split(f"{opened}\na{closed}b", template=opened + closed) == [("thinking", "a"), ("content", "b")]


def test_calls_only_count_in_the_answer() -> None:
    call = '<tool_call>{"name": "clock"}</tool_call>'
    tools = [{"function": {"name": "clock"}}]
    parser = choose_parser(JINJA + "<tool_call>", tools).start()
    assert parser.is_thinking
    parts = [*parser.feed(f"<think>{call}</think>\n{call}"), *parser.finish()]
    assert [(part.kind, len(part.calls)) for part in parts if part.kind != "markup"] == [("thinking", 0), ("call", 1)]
    assert not parser.is_thinking


def test_thoughts_stream_at_once() -> None:
    parser = choose_parser(JINJA).start()
    assert parser.feed("<thi") == []
    assert [part.text for part in parser.feed("nk>Hm, ") if part.text] == ["Hm, "]
    assert [part.text for part in parser.feed("a < b </") if part.text] == ["a < b "]


@settings(max_examples=300, deadline=None)
@given(
    pieces=st.lists(st.sampled_from(["<think>", "</think>", "<th", ">", " ", "\n", "a", "é"]) | st.text(max_size=2)),
    inside=st.booleans(),
)
def test_no_text_is_lost_in_any_pieces(pieces: list[str], inside: bool) -> None:
    prompt = "<think>" if inside else ""
    whole = split("".join(pieces), prompt=prompt)
    parser = choose_parser(JINJA).start(prompt=prompt)
    parts = merged([*(part for piece in pieces for part in parser.feed(piece)), *parser.finish()])
    assert [(part.kind, part.text) for part in parts if part.text] == whole


def test_go_templates() -> None:
    assert is_go_template(GO) and not is_go_template(JINJA)
    assert thinking_tags(GO) == ("<think>", "</think>")
    assert thinking_tags("{{ .Thinking }}") is None
    assert thinking_tags("{{ range .Messages }}{{ .Content }}{{ end }}") is None
    assert tool_tag('{{ if .ToolCalls }}{{ range .ToolCalls }}{"name"{{ end }}{{ end }}') == "{"
    assert tool_tag("{{ .Prompt }}") is None
    for damaged in ("{{ end }}{{ end }}", "{{ if .ToolCalls }}", "{{ else }}{{ .Thinking", "{{}}" * 30_000):
        assert thinking_tags(damaged) is None
        tool_tag(damaged)


def test_special_texts_are_the_tags_that_must_be_seen() -> None:
    assert choose_parser(JINJA).special_texts == ("<think>", "</think>")
    tools = [{"function": {"name": "clock"}}]
    assert choose_parser("[TOOL_CALLS]", tools).special_texts == ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
    assert "<|tool_call_end|>" in choose_parser("<|tool_call_argument_begin|>", tools).special_texts
    assert "<|channel|>" in choose_parser("<|channel|><|message|>").special_texts


def test_control_tokens_are_put_back_where_their_ids_were() -> None:
    control = control_ids(["[A]", "[B]", "x"], ["x", "[A]", "[B]", b"\xff", "[A]"], [1, 3, 2, 3, 4])
    assert control == {1: "[A]", 2: "[B]"}
    assert reveal("x", [0], control) == "x"
    assert reveal("x", [1, 2, 0], control) == "[A][B]x"
    assert reveal("x", [1, 0, 2], control) == "[A]x[B]"
    assert reveal("", [1], control) == "[A]"
    assert reveal("x", [1], {}) == "x"


def test_every_parser_of_ollamas_has_a_notation() -> None:
    known = {found.name for found in (*FORMATS, GENERIC)}
    assert {notation for notation, _ in NAMED.values()} <= known
    for name, (notation, tags) in NAMED.items():
        choice = choose_parser("{{ messages }}", [{"function": {"name": "clock"}}], named=name)
        assert (choice.format.name, choice.thinking) == (notation, tags)
        assert len(choice.tools) == (name != "passthrough")
    assert choose_parser("<tool_call>", named="nosuch").format.name == "hermes"
