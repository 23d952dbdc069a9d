"""What templates can do, which of two is to be used, and which known one a text resembles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsllm.chat.rendering import (
    Capabilities,
    closest_template,
    go_capabilities,
    jinja_capabilities,
    prefers_go,
)

CHATML = "{{ range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end }}<|im_start|>assistant\n"
TURNS = "{{ if .System }}<s>{{ .System }}</s>{{ end }}<u>{{ .Prompt }}</u><a>{{ .Response }}</a>\n"
TOOLS = (
    "{{ .Tools }}{{ range .Messages }}{{ if .Thinking }}<think>{{ .Thinking }}</think>{{ end }}"
    '{{ if .ToolCalls }}<tool_call>{{ .ToolCalls }}{{ else if eq .Role "tool" }}{{ .Content }}{{ end }}{{ end }}'
)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (CHATML, Capabilities()),
        (TURNS, Capabilities()),
        (TOOLS, Capabilities(tools=True, thinking=True, returns_tools=True)),
        ("{{ .Tools }}{{ range .Messages }}{{ .Content }}{{ end }}", Capabilities(tools=True)),
        ("{{ .Prompt }}{{ .Suffix }}", Capabilities(insert=True)),
        ("<|start|>{{ range .Messages }}{{ .Content }}<|end|>{{ end }}", Capabilities(thinking=True)),
        ("{{/* .Tools */}}{{ `.Tools` }}{{ range .Messages }}{{ end }}", Capabilities()),
        ("{{ define `t` }}{{ $.Tools }}{{ end }}{{ .Messages }}", Capabilities(tools=True)),
    ],
)
def test_capabilities_are_read_from_what_a_template_mentions(source: str, expected: Capabilities) -> None:
    assert go_capabilities(source) == expected


PLAIN, ALL = Capabilities(), Capabilities(tools=True, thinking=True, returns_tools=True)
ONE_WAY = Capabilities(tools=True)
ROUND_TRIP = Capabilities(tools=True, returns_tools=True)


@pytest.mark.parametrize(
    ("go", "jinja", "setting", "expected"),
    [
        (None, None, None, None),
        (PLAIN, None, None, True),
        (None, PLAIN, None, False),
        (None, PLAIN, True, False),
        (PLAIN, None, False, False),
        (PLAIN, PLAIN, None, True),
        (PLAIN, ALL, None, False),
        (PLAIN, ALL, True, True),
        (ALL, PLAIN, False, False),
        (ALL, PLAIN, None, True),
        (ONE_WAY, ROUND_TRIP, None, False),
        (ROUND_TRIP, ONE_WAY, None, True),
        (ROUND_TRIP, Capabilities(tools=True, thinking=True), None, True),
        (ROUND_TRIP, ROUND_TRIP, None, True),
    ],
)
def test_the_choice_between_two_templates(
    go: Capabilities | None, jinja: Capabilities | None, setting: bool | None, expected: bool | None
) -> None:
    assert prefers_go(go, jinja, setting=setting) is expected


def test_capabilities_of_jinja() -> None:
    assert jinja_capabilities("{% for m in messages %}{{ m.content }}{% endfor %}") == PLAIN
    source = "{% if tools %}{{ tools }}{% endif %}<think></think>{{ m.tool_calls }}{% if m.role == 'tool' %}{% endif %}"
    assert jinja_capabilities(source) == ALL


@given(st.text("ab", max_size=12), st.text("ab", max_size=12))
def test_the_nearest_known_template_is_found_by_its_distance(left: str, right: str) -> None:
    def distance(a: str, b: str) -> int:
        row = list(range(len(b) + 1))
        for x in a:
            new = [row[0] + 1]
            for j, y in enumerate(b, 1):
                new.append(min(row[j] + 1, new[-1] + 1, row[j - 1] + (x != y)))
            row = new
        return row[-1]

    other = "b" * 6
    wanted = "right" if distance(left, right) <= distance(left, other) else "other"
    assert closest_template(left, [(right, "right"), (other, "other")]) == wanted


def test_nothing_near_is_nothing() -> None:
    assert closest_template("a" * 200, [("b" * 200, "far"), ("a" * 301, "longer")]) is None
    assert closest_template("a" * 5000, [("a" * 4901, "near")]) == "near"
