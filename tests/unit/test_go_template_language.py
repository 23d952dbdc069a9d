"""Go's template language: what Go itself puts out, errors with their lines, and templates that run wild."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rsllm.chat.go.evaluator import execute
from rsllm.chat.go.functions import NAMES
from rsllm.chat.go.parser import MAIN, parse
from rsllm.chat.go.template import GoTemplate
from rsllm.errors import TemplateError

GOLDEN = Path(__file__).parents[1] / "golden" / "go_templates" / "language.json"
CASES = json.loads(GOLDEN.read_text(encoding="utf-8"))
# On purpose not as in Go: a key of nothing is nothing, and there are no complex numbers.
DIFFERENT = {"{{ .Missing.Deep }}": "<no value>", "{{ .Nest.none.x }}": "<no value>", "{{ 1i }}": None}


def run(source: str, data: Any = None) -> str:
    """Without the `{{ .Response }}` that a chat template gets."""
    templates = parse(source, NAMES)
    return execute(templates, templates[MAIN], data)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["template"][:60])
def test_what_go_puts_out_comes_out_and_what_it_refuses_is_refused(case: dict[str, Any]) -> None:
    wanted = DIFFERENT.get(case["template"], case["output"])
    if wanted is None:
        with pytest.raises(TemplateError) as caught:
            run(case["template"], case["data"])
        assert caught.value.line is not None
    else:
        assert run(case["template"], case["data"]) == wanted


@pytest.mark.parametrize(
    ("source", "line", "reason"),
    [
        ("a\n{{ if .X }}\n", 2, "{{if}} has no {{end}}"),
        ("a\nb{{ nope }}", 2, "function 'nope' is not defined"),
        ("\n\n{{ $x }}", 3, "undefined variable '$x'"),
        ("{{/* a\nb */}}\n{{ .X", 3, "an action is not closed"),
        ("\n{{ end }}", 2, "unexpected {{end}}"),
        ("{{ if\n true }}{{ break }}{{ end }}", 2, "{{break}} outside of {{range}}"),
        ("{{ .X\n | index 1 }}", 1, "index: int has no index"),
        ("x\n{{ range .L }}\n{{ len . }}{{ end }}", 3, "len: len of type int"),
        ("\n{{ template `t` }}", 2, "template 't' is not defined"),
        ("\n{{ eq 1 `a` }}", 2, "incompatible types for comparison: int and string"),
    ],
)
def test_errors_name_the_line_and_the_reason(source: str, line: int, reason: str) -> None:
    with pytest.raises(TemplateError) as caught:
        run(source, {"L": [1], "X": "x"})
    assert caught.value.line == line
    assert reason in str(caught.value)
    assert f"line {line}" in str(caught.value)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ range 1000000000000 }}{{ end }}", "ran longer"),
        ("{{ range 1000000000 }}{{ range 1000000000 }}x{{ end }}{{ end }}", "ran longer"),
        ('{{ define "t" }}{{ template "t" . }}{{ end }}{{ template "t" . }}', "nested more than"),
        (
            '{{ define "a" }}{{ template "b" }}{{ end }}{{ define "b" }}{{ template "a" }}{{ end }}{{ template "a" }}',
            None,
        ),
        ("{{ if true }}" * 61 + "{{ end }}" * 61, "nested more than 60 deep"),
        ("{{ if true }}" * 20_000, "nested more than 60 deep"),
        ("{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}", "nested more than 60 deep"),
        ("{{ if false }}" + "{{ else if false }}" * 20_000 + "{{ end }}", "nested more than 60 deep"),
        ('{{ $x := "aaaaaaaa" }}{{ range 100 }}{{ $x = print $x $x }}{{ end }}', "characters"),
        ('{{ $x := "aaaaaaaa" }}{{ range 100 }}{{ $x = printf "%s%s%q" $x $x $x }}{{ end }}', "characters"),
        ("{{ $x := `\\` }}{{ range 100 }}{{ $x = js $x }}{{ end }}", "characters"),
        ('{{ $x := printf "%9999s" "a" }}{{ range 100000 }}{{ $x }}{{ end }}', "puts out more than"),
        ('{{ printf "%1000000000d" 1 }}', "pads to"),
        ('{{ printf "%.1000000000f" 1.0 }}', "pads to"),
        ('{{ printf "%*d" 1000000000 1 }}', "pads to"),
        ("{{ " + "9" * 5000 + " }}", "too long"),
        ('{{ printf "%[1]d" 1 }}', "not supported"),
    ],
    ids=range(17),
)
def test_templates_that_run_wild_are_stopped(source: str, reason: str | None) -> None:
    with pytest.raises(TemplateError, match=reason):
        run(source)


PIECES = st.lists(
    st.sampled_from(
        [
            "{{", "}}", "{{-", "-}}", " ", "\n", "if", "else", "end", "range", "with", "define", "template", "block",
            "break", "continue", ".", ".A", ".L", "$", "$x", ":=", "=", "|", "(", ")", ",", '"a"', "`b`", "'c'", "1",
            "-2.5", "nil", "true", "print", "printf", '"%5.1f%v"', "index", "slice", "len", "eq", "lt", "and", "or",
            "json", "html", "js", "urlquery", "toTypeScriptType", "/*", "*/", "text", "é", "{{ end }}", "{{ .A }}",
            "{{ if .A }}", "{{ range .L }}", "{{ else }}", '"', "\\", "0x", "1e", "..", "{{ range $i, $v := .M }}",
        ]
    ),
    max_size=25,
).map("".join)  # fmt: skip


@given(PIECES | st.text(max_size=60), st.sampled_from([None, "x", 3, {"A": 1, "L": [1, "b", None], "M": {"k": {}}}]))
@example("{{-}}", None)
@example("{{/**/-}}", None)
@example("{{ printf `%\U000f0041` 1 }}", None)
def test_any_text_is_a_template_or_a_template_error(source: str, data: Any) -> None:
    try:
        GoTemplate(source).execute(data if isinstance(data, dict) else {"A": data}, cut=len(source) % 2 == 1)
    except TemplateError:
        pass


@given(st.sampled_from(sorted(NAMES)), st.lists(st.sampled_from([".A", ".L", ".M", ".N", "1", "-1", '"%d"', "2.5"])))
def test_any_arguments_of_a_function_give_text_or_a_template_error(name: str, arguments: list[str]) -> None:
    data = {"A": "é<", "L": [1, None, "x"], "M": {"a": 1.5}, "N": None}
    try:
        run(f"{{{{ {name} {' '.join(arguments)} }}}}", data)
    except TemplateError:
        pass


def test_functions_of_dates_take_the_clock_that_they_are_given() -> None:
    from datetime import datetime

    template = GoTemplate('{{ currentDate }} {{ currentDate "2006" }} {{ yesterdayDate }}{{ .Response }}')
    text = template.execute({"Response": "!"}, now=lambda: datetime(2024, 3, 1))
    assert text == "2024-03-01 2024-03-01 2024-02-29!"
