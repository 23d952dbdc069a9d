"""Constrained generation on a real model: what comes out always is what was asked for."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import rsllm
from rsllm.errors import OptionError
from tests.support import assets

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(120)]

# Each but two allows no endless text, so that a generation always comes to its end.
TEXT = {"type": "string", "maxLength": 12}
SMALL = {"type": "integer", "minimum": -5, "maximum": 1000}
SCHEMAS: dict[str, dict[str, Any]] = {
    "person": {
        "type": "object",
        "properties": {
            "name": TEXT,
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "student": {"type": "boolean"},
        },
        "required": ["name", "age", "student"],
    },
    "optional": {"properties": {"a": TEXT, "b": SMALL, "c": {"type": "null"}}},
    "enum": {"enum": ["red", "green", 'say "blue"', 5, None, [1, {"x": "é"}]]},
    "const": {"properties": {"kind": {"const": "cat"}, "lives": {"const": 9}}, "required": ["kind", "lives"]},
    "array": {"type": "array", "items": SMALL, "minItems": 2, "maxItems": 5},
    "empty array": {
        "properties": {"colours": {"items": TEXT, "maxItems": 0, "type": "array"}},
        "required": ["colours"],
    },
    "tuple": {"type": "array", "prefixItems": [SMALL, {"type": "boolean"}, TEXT], "minItems": 3, "maxItems": 3},
    "bounds": {
        "type": "array",
        "items": {"type": "integer", "minimum": -123, "maximum": 42},
        "minItems": 3,
        "maxItems": 3,
    },
    "union": {"properties": {"v": {"anyOf": [SMALL, {"type": "null"}, TEXT]}}, "required": ["v"]},
    "types": {"type": "array", "items": {"type": ["boolean", "null"]}, "minItems": 1, "maxItems": 4},
    "one of": {
        "oneOf": [
            {"properties": {"a": SMALL}, "required": ["a"]},
            {"properties": {"b": {"type": "boolean"}}, "required": ["b"]},
        ]
    },
    "all of": {
        "allOf": [{"$ref": "#/$defs/Base"}, {"properties": {"b": SMALL}, "required": ["b"]}],
        "$defs": {"Base": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}},
    },
    "references": {
        "type": "array",
        "items": {"$ref": "#/$defs/TALK"},
        "minItems": 3,
        "maxItems": 3,
        "$defs": {
            "TALK": {"type": "object", "properties": {"who": {"$ref": "#/$defs/WHO"}}, "required": ["who"]},
            "WHO": {"enum": ["Alice", "Biff"]},
        },
    },
    "recursive": {
        "type": "object",
        "properties": {"v": {"type": "boolean"}, "kids": {"type": "array", "items": {"$ref": "#"}, "maxItems": 1}},
        "required": ["v"],
    },
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{1,3}$"},
    "searched pattern": {"type": "string", "pattern": "[0-9]", "maxLength": 8},
    "formats": {
        "properties": {"day": {"type": "string", "format": "date"}, "at": {"type": "string", "format": "ipv4"}},
        "required": ["day", "at"],
    },
    "escaped": {"type": "string", "pattern": "^hello there indeed\\!$"},
    "odd names": {"properties": {'a"b': SMALL, "é": SMALL, "": SMALL}, "required": ['a"b', "é", ""]},
    "open": {
        "type": "object",
        "properties": {"a": SMALL},
        "required": ["a"],
        "additionalProperties": {"type": "boolean"},
        "maxProperties": 3,
    },
    "multiples": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 100},
}
ENDLESS = {"recursive", "open"}
PROMPT = "Answer in JSON.\nAnswer: "


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> Iterator[rsllm.Model]:
    with rsllm.load(smollm2_path, context=1024) as model:
        yield model


@pytest.mark.parametrize("name", SCHEMAS)
def test_json_is_valid_under_its_schema(model: rsllm.Model, name: str) -> None:
    schema = SCHEMAS[name]
    for options in (
        {"temperature": 0},
        {"temperature": 1, "seed": 1},
        {"temperature": 1.5, "seed": 2, "top_k": 0, "top_p": 1.0},
    ):
        reply = model.generate(PROMPT, schema=schema, max_tokens=60 if name in ENDLESS else 300, **options)
        assert reply.finish_reason == "stop" or name in ENDLESS, reply.text
        if reply.finish_reason == "stop":
            jsonschema.validate(json.loads(reply.text), schema)


def test_any_object_is_an_object(model: rsllm.Model) -> None:
    for seed in range(4):
        reply = model.generate(PROMPT, schema="json", max_tokens=200, temperature=0.7, seed=seed)
        if reply.finish_reason == "stop":
            assert isinstance(json.loads(reply.text), dict)
        assert reply.text.startswith("{")
        assert "\n\n\n" not in reply.text


def test_a_class_that_makes_a_schema_is_one(model: rsllm.Model) -> None:
    class Answer:
        @staticmethod
        def model_json_schema() -> dict[str, Any]:
            return {"properties": {"yes": {"type": "boolean"}}, "required": ["yes"], "type": "object"}

    reply = model.chat().generate("Is water wet?", schema=Answer, temperature=0)
    assert set(json.loads(reply.text)) == {"yes"}


@pytest.mark.parametrize(
    "regex", [r"[A-Z][a-z]{1,8}", r"^\d{4}-\d{2}-\d{2}$", "(yes|no|don't know)", "(ab){2}|é{1,3}?x", "(?i)paris", ""]
)
def test_a_text_matches_its_regular_expression_as_a_whole(model: rsllm.Model, regex: str) -> None:
    for seed in range(3):
        reply = model.generate("The capital of France is", regex=regex, max_tokens=100, temperature=1, seed=seed)
        assert reply.finish_reason == "stop"
        assert re.fullmatch(regex, reply.text), reply.text


GRAMMARS = [
    ('root ::= item{2,3}\nitem ::= "- " [a-z]{2,9} "\\n"\n', r"(- [a-z]{2,9}\n){2,3}"),
    ('root ::= expr " = " num\nexpr ::= num " " [-+*/] " " num\nnum ::= [1-9] [0-9]{0,2}\n', r"\d+ [-+*/] \d+ = \d+"),
    ('start: WORD (" " WORD)~0..3 "."\nWORD: /[a-z]{1,9}/\n', r"[a-z]{1,9}( [a-z]{1,9}){0,3}\."),
]


@pytest.mark.parametrize(("grammar", "expected"), GRAMMARS)
def test_a_text_obeys_its_grammar(model: rsllm.Model, grammar: str, expected: str) -> None:
    for seed in range(3):
        reply = model.generate("A list:\n", grammar=grammar, max_tokens=100, temperature=1, seed=seed)
        assert reply.finish_reason == "stop"
        assert re.fullmatch(expected, reply.text), reply.text


@pytest.mark.parametrize("name", ["arithmetic", "c", "chess", "english", "japanese", "json", "json_arr", "list"])
def test_published_grammars_work(model: rsllm.Model, name: str) -> None:
    grammar = (assets.grammars_dir() / f"{name}.gbnf").read_text()
    checks = {
        "arithmetic": r"[-+*/=a-z0-9_() \t\n]*",
        "chess": r"[1-9a-hxKQRBNO0-9+#=. \n-]*",
        "english": r"[ -~\n\r\t\u2010-\u2030]*",
        "list": r"(- [^\n]*\n?)*-?",
    }
    for seed in range(2):
        reply = model.generate("Here it is:\n", grammar=grammar, max_tokens=40, temperature=1, seed=seed, top_k=0)
        assert reply.stats.generated_tokens > 0
        if name in checks:
            assert re.fullmatch(checks[name], reply.text), reply.text
        if name in ("json", "json_arr") and reply.finish_reason == "stop":
            json.loads(reply.text)


@pytest.mark.parametrize(
    ("options", "name", "message"),
    [
        ({"schema": {"type": "object", "not": {}}}, "schema", "`not` at #"),
        ({"schema": {"properties": {"a": {"format": "phone"}}}}, "schema", "phone"),
        ({"schema": '{"type": "object"'}, "schema", "not JSON"),
        ({"schema": {"$ref": "#/$defs/nowhere"}}, "schema", "nowhere"),
        ({"schema": {"pattern": "(?<=x)*"}}, "schema", "cannot be enforced"),
        ({"schema": {"enum": list(range(100_000))}}, "schema", "limit"),
        ({"regex": "*"}, "regex", "cannot be enforced"),
        ({"regex": "(" * 100_000}, "regex", "limit"),
        ({"grammar": "Root ::= [^\n]+"}, "grammar", "line 1, column 12"),
        ({"grammar": 'rout::="route"'}, "grammar", "no rule `root`"),
        ({"grammar": ':== "x"'}, "grammar", "line 1, column 1"),
        ({"grammar": "%llguidance {}"}, "grammar", "start"),
        ({"grammar": 'root ::= root "a"'}, "grammar", "left-recursive"),
        ({"grammar": "root ::= " + "(" * 100_000}, "grammar", "limit"),
    ],
)
def test_what_cannot_be_enforced_is_an_error_before_the_first_token(
    model: rsllm.Model, options: dict[str, Any], name: str, message: str
) -> None:
    start = time.monotonic()
    with pytest.raises(OptionError) as caught:
        model.stream(PROMPT, **options)
    assert caught.value.name == name
    assert message in str(caught.value)
    assert time.monotonic() - start < 20
    assert model.generate("Hi", max_tokens=1).tokens  # life goes on


def test_log_probabilities_are_those_of_the_model(model: rsllm.Model) -> None:
    free = model.generate("The capital of France is", temperature=0, max_tokens=1, logprobs=3)
    bound = model.generate("The capital of France is", temperature=0, max_tokens=1, logprobs=3, regex=" [a-z]+")
    assert free.logprobs is not None
    assert bound.logprobs is not None
    assert [rival.id for rival in bound.logprobs[0].top] == [rival.id for rival in free.logprobs[0].top]
    assert bound.logprobs[0].logprob < free.logprobs[0].logprob


def test_biases_ban_and_favour_tokens(model: rsllm.Model) -> None:
    prompt = "The capital of France is"
    plain = model.generate(prompt, temperature=0, max_tokens=1)
    banned = model.generate(prompt, temperature=0, max_tokens=1, logit_bias={plain.tokens[0]: False})
    assert banned.tokens != plain.tokens
    assert model.generate(prompt, temperature=0, max_tokens=1, logit_bias={plain.text: -100}).tokens == banned.tokens
    favoured = model.generate(prompt, temperature=1, max_tokens=3, logit_bias={" banana": 1000.0})
    assert favoured.text == model.detokenize(model.tokenize(" banana")[:1] * 3) or " banana" in favoured.text
    with pytest.raises(OptionError) as caught:
        model.generate(prompt, logit_bias={10**8: 1})
    assert caught.value.name == "logit_bias"


def test_many_constrained_generations_at_once(model: rsllm.Model) -> None:
    streams = [
        model.stream(PROMPT, schema=SCHEMAS["person"], temperature=1, seed=seed, max_tokens=100) for seed in range(4)
    ]
    for stream in streams:
        jsonschema.validate(json.loads("".join(stream)), SCHEMAS["person"])
