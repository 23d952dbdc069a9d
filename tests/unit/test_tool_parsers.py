"""Tool calls out of a model's text: each notation, whatever the pieces, and nothing lost."""

# ruff: noqa: RUF001 (the bars of DeepSeek's tags are full-width)

from __future__ import annotations

import itertools
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsllm.chat.parsers import OutputParser, Part, choose_parser, merged
from rsllm.chat.parsers.formats import FORMATS, GENERIC
from rsllm.chat.parsers.parts import new_call_id
from rsllm.control import reveal
from rsllm.streams import Token
from tests.support import assets

PROPERTIES = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "exact": {"type": "boolean"},
    "tags": {"type": ["array", "null"]},
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": PROPERTIES}}}
    for name in ("weather", "clock", "get-time")
]
WEATHER = ("weather", {"city": "Paris", "days": 3})
CLOCK = ("clock", {})

# Format -> a text that stands in its templates, and what such a model writes: two calls, `WEATHER` and `CLOCK`.
SAMPLES = {
    "hermes": (
        "<tool_call>",
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>\n'
        '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>',
    ),
    "qwen-xml": (
        "<tool_call><function=<parameter=",
        "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
        "</function>\n</tool_call>\n<function=clock>\n</function>",
    ),
    "seed": (
        "<seed:tool_call>",
        "<seed:tool_call>\n<function=weather>\n<parameter=city>Paris</parameter>\n<parameter=days>3</parameter>\n"
        "</function>\n<function=clock></function></seed:tool_call>",
    ),
    "llama": (
        "<|python_tag|>",
        '<|python_tag|>{"name": "weather", "parameters": {"city": "Paris", "days": 3}}; '
        '{"type": "function", "function": {"name": "clock"}}',
    ),
    "mistral": (
        "[TOOL_CALLS]",
        '[TOOL_CALLS]weather[ARGS]{"city": "Paris", "days": 3}[TOOL_CALLS]clock[CALL_ID]a1B2[ARGS]{}',
    ),
    "deepseek": (
        "<｜tool▁call▁begin｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        '{"city": "Paris", "days": 3}\n```<｜tool▁call▁end｜>\n'
        "<｜tool▁call▁begin｜>clock<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "dsml": (
        "｜DSML｜",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" string="true">Paris'
        '</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="clock">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
    ),
    "kimi": (
        "<|tool_call_argument_begin|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        '{"city": "Paris", "days": 3}<|tool_call_end|><|tool_call_begin|>functions.clock:1'
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    "minimax": (
        "<minimax:tool_call>",
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Paris</parameter>\n'
        '<parameter name="days">3</parameter>\n</invoke>\n<invoke name="clock">\n</invoke>\n</minimax:tool_call>',
    ),
    "glimmer": (
        "<atem:function_calls>",
        '<atem:function_calls>\n<atem:invoke name="weather">\n<atem:parameter name="city">Paris</atem:parameter>\n'
        '<atem:parameter name="days">3</atem:parameter>\n</atem:invoke>\n<atem:invoke name="clock">\n</atem:invoke>\n'
        "</atem:function_calls>",
    ),
    "gemma4": (
        "<|tool_call>call:",
        '<|tool_call>call:weather{city:<|"|>Paris<|"|>,days:3}<tool_call|><|tool_call>call:clock{}<tool_call|>',
    ),
    "functiongemma": (
        "<start_function_call>",
        "<start_function_call>call:weather{city:<escape>Paris<escape>,days:3}<end_function_call>"
        "<start_function_call>call:clock{}<end_function_call>",
    ),
    "glm": (
        "<tool_call><arg_key>",
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>3</arg_value>\n</tool_call>\n<tool_call>clock\n</tool_call>",
    ),
    "granite": (
        "<|tool_call|>",
        '<|tool_call|>[{"name": "weather", "arguments": {"city": "Paris", "days": 3}}, {"name": "clock"}]',
    ),
    "command-r7b": (
        "<|START_ACTION|>",
        '<|START_ACTION|>[\n{"tool_call_id": "0", "tool_name": "weather", '
        '"parameters": {"city": "Paris", "days": 3}},\n'
        '{"tool_call_id": "1", "tool_name": "clock", "parameters": {}}\n]<|END_ACTION|>',
    ),
    "command-r": (
        "Action: tool_name",
        'Action:\n```json\n[\n    {\n        "tool_name": "weather",\n'
        '        "parameters": {"city": "Paris", "days": 3}\n'
        '    },\n    {"tool_name": "clock", "parameters": {}}\n]\n```',
    ),
    "nemotron": (
        "<TOOLCALL>",
        '<TOOLCALL>[{"name": "weather", "arguments": {"city": "Paris", "days": 3}}, {"name": "clock"}]</TOOLCALL>',
    ),
    "apertus": (
        "<|tools_prefix|>",
        '<|tools_prefix|>[{"weather": {"city": "Paris", "days": 3}}, {"clock": {}}]<|tools_suffix|>',
    ),
    "lfm2": ("<|tool_call_start|>", "<|tool_call_start|>[weather(city='Paris', days=3), clock()]<|tool_call_end|>"),
    "olmo": ("<function_calls>", '<function_calls>weather(city="Paris", days=3)\nclock()</function_calls>'),
    "functools": (
        "functools[",
        ' functools[{"name": "weather", "arguments": {"city": "Paris", "days": 3}}, {"name": "clock"}]',
    ),
    "functionary-3.1": (
        "<function=</function>",
        '<function=weather>{"city": "Paris", "days": 3}</function><function=clock>{}</function>',
    ),
    "functionary-3.2": (">>>${recipient}", 'weather\n{"city": "Paris", "days": 3}>>>clock\n{}'),
    "gigachat": (
        "<|function_call|>",
        '<|function_call|>{"name": "weather", "arguments": {"city": "Paris", "days": 3}}\n{"name": "clock"}',
    ),
    "apriel": (
        "<tool_calls></tool_calls>",
        '<tool_calls>[{"name": "weather", "arguments": {"city": "Paris", "days": 3}}, {"name": "clock"}]</tool_calls>',
    ),
    "harmony": (
        "<|channel|><|message|>",
        '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Paris", "days": 3}<|call|>'
        "<|start|>assistant to=functions.clock<|channel|>commentary json<|message|>{}<|call|>",
    ),
    "generic": (
        "{{ messages }}",
        '{"name":"weather","arguments":{"city":"Paris","days":3}} {"name":"clock","arguments":{}}',
    ),
}


def start(template: str, **options: object) -> OutputParser:
    return choose_parser(template, TOOLS).start(**options)  # type: ignore[arg-type]


def parse(parser: OutputParser, pieces: list[str]) -> list[Part]:
    parts = [part for piece in pieces for part in parser.feed(piece)]
    return merged([*parts, *parser.finish()])


def plain(parts: list[Part]) -> list[object]:
    """Parts without the ids of calls, which are random."""
    return [
        (part.kind, part.raw, [(call.index, call.name, json.dumps(call.arguments)) for call in part.calls])
        for part in parts
    ]


def calls(parts: list[Part]) -> list[tuple[str, dict]]:
    return [(call.name, call.arguments) for part in parts for call in part.calls]


def content(parts: list[Part]) -> str:
    return "".join(part.text for part in parts)


@pytest.mark.parametrize("name", SAMPLES)
def test_two_calls_in_each_notation(name: str) -> None:
    template, text = SAMPLES[name]
    chosen = choose_parser(template, TOOLS)
    assert chosen.format.name == name
    parser = chosen.start()
    parts = parse(parser, [text])
    assert calls(parts) == [WEATHER, CLOCK]
    assert [list(arguments) for _, arguments in calls(parts)] == [["city", "days"], []]
    assert content(parts) == "" and parser.warnings == []
    found = [call for part in parts for call in part.calls]
    assert [call.index for call in found] == [0, 1]
    assert len({call.id for call in found}) == 2
    assert all(re.fullmatch(r"call_[a-z0-9]{8}", call.id) for call in found)


def test_all_formats_have_a_sample() -> None:
    assert {found.name for found in (*FORMATS, GENERIC)} == set(SAMPLES)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_character_alone_and_every_cut(name: str) -> None:
    template, text = SAMPLES[name]
    whole = plain(parse(start(template), [text]))
    assert plain(parse(start(template), list(text))) == whole
    for cut in range(1, len(text), 3):
        assert plain(parse(start(template), [text[:cut], text[cut:]])) == whole


@pytest.mark.parametrize("name", SAMPLES)
def test_a_call_cut_off_anywhere_loses_no_text(name: str) -> None:
    template, text = SAMPLES[name]
    for end in range(0, len(text), 2):
        parts = parse(start(template), [text[:end]])
        assert "".join(part.raw for part in parts) == text[:end]


@pytest.mark.parametrize("name", SAMPLES)
def test_a_call_without_end_in_each_notation_is_content_with_a_warning(name: str) -> None:
    template, text = SAMPLES[name]
    parser = start(template)
    parts = parse(parser, [text[: len(text) * 2 // 5]])
    assert calls(parts) == [] and content(parts)
    [warning] = parser.warnings
    assert warning.startswith("what looked like a tool call was left in the content: ")


# Fragments that make trouble in any order.
FRAGMENTS = [
    *sorted({piece for _, text in SAMPLES.values() for piece in re.findall(r"<[^<>]*>|\[[A-Z_/]+\]|>>>\w+\n", text)}),
    "<think>", "</think>", "<|end|>", "<|return|>", "{", "}", "[", "]", '"', "```", "```json\n", "\n", " ", ",", ";",
    '{"name": "weather"', '{"name": "clock"}', '"arguments": {}', "weather", "clock", "call:clock{}", "all\n",
    "tool_name",
    "Action:",
    "functools", "to=functions.clock", "a", "é", "\\", "'", "clock()", "1e", "null", "assistant", "<", "<|",
]  # fmt: skip
TEMPLATES = [template + thinking for template, _ in SAMPLES.values() for thinking in ("", "<think></think>")]


@settings(max_examples=600, deadline=None)
@given(
    template=st.sampled_from(TEMPLATES),
    pieces=st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=14),
    cuts=st.lists(st.integers(min_value=1, max_value=9), min_size=1, max_size=8),
    inside=st.booleans(),
)
def test_any_text_in_any_pieces_gives_the_same_and_loses_nothing(
    template: str, pieces: list[str], cuts: list[int], inside: bool
) -> None:
    text = "".join(pieces)
    prompt = "<think>\n" if inside else ""
    whole = start(template, prompt=prompt)
    expected = parse(whole, [text])
    assert "".join(part.raw for part in expected) == text
    cut, position, lengths = [], 0, itertools.cycle(cuts)
    while position < len(text):
        length = next(lengths)
        cut.append(text[position : position + length])
        position += length
    other = start(template, prompt=prompt)
    assert plain(parse(other, cut)) == plain(expected)
    assert other.warnings == whole.warnings
    assert [call.index for part in expected for call in part.calls] == list(range(len(calls(expected))))


@pytest.mark.parametrize("name", SAMPLES)
def test_tags_that_are_control_tokens_are_put_back_from_their_ids(name: str) -> None:
    """As the server does it for a runner's pieces, and `Model.chat` for its own."""
    template, text = SAMPLES[name]
    chosen = choose_parser(template, TOOLS)
    texts = sorted(set(chosen.special_texts), key=len, reverse=True)
    control = dict(enumerate(texts, start=1000))
    pieces = [piece for piece in re.split("(" + "|".join(map(re.escape, texts)) + ")", text) if piece]
    hidden = {piece: id for id, piece in control.items()}
    tokens = [Token("" if piece in hidden else piece, (hidden.get(piece, 7),)) for piece in pieces]
    here = chosen.start(control=control)
    there = chosen.start()
    parts = merged([*(part for token in tokens for part in here.feed(token)), *here.finish()])
    shown = [reveal(token, token.ids, control) for token in tokens]
    assert "".join(shown) == text
    assert plain(parts) == plain(parse(there, shown)) == plain(parse(chosen.start(), [text]))
    assert calls(parts) == [WEATHER, CLOCK]


def test_without_tools_nothing_is_a_call() -> None:
    for name, (template, text) in SAMPLES.items():
        parts = parse(choose_parser(template).start(), [text])
        assert calls(parts) == []
        if name != "harmony":
            assert content(parts) == text


def test_content_streams_at_once_and_only_a_possible_tag_waits() -> None:
    parser = start("<tool_call>")
    assert content(parser.feed("Let me see. ")) == "Let me see. "
    assert content(parser.feed("a <too")) == "a "
    assert content(parser.feed("l> b")) == "<tool> b"
    assert content(parser.feed(" <tool_call")) == " "
    assert parser.feed('>{"name": "clock"') == []
    [part] = parser.feed("}</tool_call>")
    assert [call.name for call in part.calls] == ["clock"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('<tool_call>{"name": "weather", "arguments": {"city": oops}}</tool_call>', "broken"),
        ('<tool_call>{"name": "nobody", "arguments": {}}</tool_call>', "no tool 'nobody'"),
        ('<tool_call>{"name": "weather", "arguments": [1]}</tool_call>', "not an object"),
        ('<tool_call>{"name": "weather", "arguments": "{1"}</tool_call>', "not JSON"),
        ('<tool_call>{"name": "weather", "arguments": {"city": "Pa', "no end"),
        ("<tool_call></tool_call>", "no tool"),
        ("<tool_call>" + "[" * 100_000, "broken"),
        ("<tool_call>" + '{"name":' * 1000, "broken"),
        ("<tool_call>nobody</tool_call>", "no tool"),
        ("<tool_call>weather<arg_key>a</arg_key></tool_call>", "pairs"),
        ("<tool_call><function=weather><parameter=city>Par", "no end"),
    ],
)
def test_a_malformed_call_is_content_with_a_warning(text: str, problem: str) -> None:
    parser = start("<tool_call>")
    parts = parse(parser, ["So: ", text])
    assert calls(parts) == []
    assert content(parts) == "So: " + text
    assert len(parser.warnings) == 1 and problem in parser.warnings[0]


def test_what_stands_around_calls() -> None:
    parts = parse(start("<tool_call>"), ['Sure.\n<tool_call>{"name": "clock"}</tool_call>\n Then, more.'])
    assert [part.kind for part in parts] == ["content", "call", "content"]
    assert [part.raw for part in parts][::2] == ["Sure.\n", "\n Then, more."]


def test_a_closing_tag_within_a_text_does_not_close() -> None:
    text = '<tool_call>{"name": "weather", "arguments": {"city": "a </tool_call> b"}}</tool_call>'
    assert calls(parse(start("<tool_call>"), [text])) == [("weather", {"city": "a </tool_call> b"})]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('```json\n{"name": "weather", "arguments": {"city": "X"}}\n```', [("weather", {"city": "X"})]),
        ('{"name": "weather", "parameters": {"city": "X"}}', [("weather", {"city": "X"})]),
        (
            '{"type": "function", "function": {"name": "weather", "arguments": {"city": "X"}}}',
            [("weather", {"city": "X"})],
        ),
        ('[{"name": "clock"}, {"name": "weather", "args": {}}]', [CLOCK, ("weather", {})]),
        ('{"tool_call": {"name": "clock", "arguments": null}}', [CLOCK]),
        ('{"name": "weather", "arguments": "{\\"city\\": \\"X\\"}"}', [("weather", {"city": "X"})]),
        ('{"name": "clock"}', [CLOCK]),
    ],
)
def test_calls_without_a_tag(text: str, found: list[object]) -> None:
    """TOOL-04, TOOL-06."""
    for template in ("{{ messages }}", "<tool_call>", "[TOOL_CALLS]"):
        parts = parse(start(template), [text])
        assert calls(parts) == found
        assert content(parts) == ""


@pytest.mark.parametrize(
    "text",
    [
        'Use {"name": "clock"} as an example.',
        '{"name": "Alice"}',
        '{"answer": 42}',
        '```json\n{"name": "nobody", "age": 3}\n```',
        '```python\nprint("x")\n```',
        "{ this is a set }",
        "[1, 2, 3]",
        "[weather](https://example.org)",
    ],
)
def test_text_that_merely_looks_like_a_call(text: str) -> None:
    """TOOL-07."""
    parser = start("{{ messages }}")
    parts = parse(parser, [text])
    assert calls(parts) == [] and content(parts) == text and parser.warnings == []


def test_an_answer_in_json_streams_from_its_first_key_on() -> None:
    parser = start("<tool_call>")
    assert content(parser.feed('{"answ')) == '{"answ'


def test_a_tool_that_is_not_declared_is_said() -> None:
    parser = start("{{ messages }}")
    text = '{"name": "nobody", "arguments": {}}'
    assert content(parse(parser, [text])) == text
    assert parser.warnings == ["what looked like a tool call was left in the content: there is no tool 'nobody'"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('nobody\n{"city": "X"}', "no tool 'nobody'"),
        ('all\nSo.>>>nobody\n {"city": "X"} and more', "no tool 'nobody'"),
        ("weather\nis fine", "no JSON"),
        ('weather\n{"city": "X', "no end"),
        ("all\nSee >>> print(1)\n>>>x\n1", ""),
        (">>>{", ""),
        ("Well\nyes", ""),
        ("Well", ""),
        ("Well, {", ""),
        ('{"answer": 1}', ""),
    ],
)
def test_recipients_that_are_no_tools(text: str, problem: str) -> None:
    """What functionary writes: a recipient, a line break, arguments."""
    for pieces in ([text], list(text)):
        parser = start(">>>${recipient}")
        parts = parse(parser, pieces)
        assert calls(parts) == [] and content(parts) == text.removeprefix("all\n")
        assert [problem in warning for warning in parser.warnings] == ([True] if problem else [])
    parts = parse(start(">>>${recipient}"), ['{"name": "clock"}>>>clock\n{}'])
    assert calls(parts) == [CLOCK, CLOCK]


@pytest.mark.parametrize(
    ("value", "expected"),
    [("true", True), ("7", 7), ("NULL", None), ("\n[1]\n", [1])],
)
def test_values_in_tags_get_the_types_of_the_schema(value: str, expected: object) -> None:
    key = {bool: "exact", int: "days", type(None): "city", list: "tags"}[type(expected)]
    text = f"<tool_call><function=weather><parameter={key}>{value}</parameter></function></tool_call>"
    assert calls(parse(start("<tool_call><function=<parameter="), [text])) == [("weather", {key: expected})]


def test_values_that_do_not_fit_stay_texts_and_line_breaks_inside_are_kept() -> None:
    text = (
        "<tool_call><function=weather><parameter=city>\n\n3\n\n</parameter><parameter=days>soon</parameter>"
        "<parameter=exact>perhaps</parameter><parameter=other>4</parameter></function></tool_call>"
    )
    expected = {"city": "\n3\n", "days": "soon", "exact": False, "other": "4"}
    assert calls(parse(start("<tool_call><function=<parameter="), [text])) == [("weather", expected)]


def test_numbers_without_a_fraction_are_whole_and_halves_of_pairs_are_replaced() -> None:
    text = '{"name": "weather", "arguments": {"days": 3.0, "city": "\\ud83d!"}}'
    assert calls(parse(start("{{ messages }}"), [text])) == [("weather", {"days": 3.0, "city": "\ufffd!"})]


def test_harmony_thinks_on_a_channel_and_answers_on_another() -> None:
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        '<|start|>assistant<|channel|>commentary to=functions.get_time json<|message|>{"a": 1}<|call|>'
        "<|start|>assistant<|channel|>final<|message|>Done.<|return|>"
    )
    parts = parse(start("<|channel|><|message|>"), [text])
    assert [(part.kind, part.text) for part in parts if part.kind != "markup"] == [
        ("thinking", "Hm."), ("content", "I look."), ("call", ""), ("content", "Done."),
    ]  # fmt: skip
    assert calls(parts) == [("get-time", {"a": 1})]


def test_harmony_without_any_channel_is_content() -> None:
    assert content(parse(start("<|channel|><|message|>"), list("Just text."))) == "Just text."


def test_long_arguments_in_small_pieces_are_read_once() -> None:
    text = '<tool_call>{"name": "weather", "arguments": {"city": "' + "x" * 200_000 + '"}}</tool_call>'
    pieces = [text[index : index + 4] for index in range(0, len(text), 4)]
    assert len(calls(parse(start("<tool_call>"), pieces))) == 1


def test_ids_use_the_whole_alphabet() -> None:
    assert new_call_id(lambda letters: letters[-1]) == "call_99999999"


def test_go_templates_show_their_tag() -> None:
    go = (
        '{{ range .Messages }}{{ if .ToolCalls }}%s{{ range .ToolCalls }}{"name": "{{ .Function.Name }}"}'
        "{{ end }}{{ end }}{{ end }}"
    )
    for tag, name in (
        ("<tool_call>\n", "hermes"), ("[TOOL_CALLS] [", "mistral"), ("<|python_tag|>", "llama"), ("", "generic"),
        ("<call>", "tag"),
    ):  # fmt: skip
        assert choose_parser(go % tag, TOOLS).format.name == name
    parts = parse(start(go % "<call>"), ['Yes. <call>{"name": "clock", "arguments": {}}</call>'])
    assert calls(parts) == [CLOCK] and content(parts) == "Yes. "


def test_published_templates() -> None:
    found = {
        path.stem: choose_parser(path.read_text(encoding="utf-8")).format.name
        for path in assets.templates_dir().glob("*.jinja")
    }
    expected = {
        "Qwen-Qwen3-0.6B": "hermes", "Qwen3-Coder": "qwen-xml", "meta-llama-Llama-3.1-8B-Instruct": "llama",
        "mistralai-Mistral-Nemo-Instruct-2407": "mistral", "deepseek-ai-DeepSeek-V3.1": "deepseek",
        "google-gemma-4-31B-it": "gemma4", "GLM-4.6": "glm", "ibm-granite-granite-3.3-2B-Instruct": "granite",
        "CohereForAI-c4ai-command-r-plus-tool_use": "command-r", "openai-gpt-oss-120b": "harmony",
        "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "command-r7b",
        "meetkai-functionary-medium-v3.2": "functionary-3.2",
        "meetkai-functionary-medium-v3.1": "functionary-3.1", "moonshotai-Kimi-K2": "kimi", "LFM2-8B-A1B": "lfm2",
        "fireworks-ai-llama-3-firefunction-v2": "functools", "NVIDIA-Nemotron-Nano-v2": "nemotron",
        "google-gemma-2-2b-it": "generic",
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
