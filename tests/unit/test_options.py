"""The table of options: names, ranges, defaults, and the texts of its errors."""

from __future__ import annotations

import math
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsllm.errors import OptionError
from rsllm.options import OPTIONS, parse_option, validate


def test_nothing_given_means_the_defaults() -> None:
    checked = validate({})
    assert checked.keys() == OPTIONS.keys()
    assert checked["temperature"] == 0.8
    assert checked["repeat_penalty"] == 1.0
    assert checked["stop"] == []
    assert checked["max_tokens"] is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 999999.0),
        ("temperature", math.nan),
        ("temperature", -0.1),
        ("temperature", math.inf),
        ("temperature", "0.5"),
        ("temperature", None),
        ("temperature", True),
        ("temperature", 10**400),
        ("top_p", -1.0),
        ("top_p", 1.0001),
        ("top_k", -1),
        ("top_k", 2**31),
        ("top_k", 3.0),
        ("min_p", 2),
        ("typical_p", 0),
        ("repeat_penalty", 0.0),
        ("repeat_last_n", -2),
        ("presence_penalty", 1e9),
        ("max_tokens", -1),
        ("max_tokens", 2.5),
        ("seed", -1),
        ("seed", 2**64),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", 5),
        ("stop", ["x"] * 257),
        ("logprobs", -1),
        ("logprobs", 129),
        ("ignore_eos", 1),
    ],
)
def test_a_value_out_of_range_is_an_error_naming_option_and_range(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=f"option {name} must be ") as caught:
        validate({name: value})
    assert caught.value.name == name
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("wrong", "right"), [("temprature", "temperature"), ("num_predict", "max_tokens"), ("topk", "top_k")]
)
def test_an_unknown_name_is_an_error_suggesting_the_closest(wrong: str, right: str) -> None:
    with pytest.raises(OptionError, match=f"unknown option '{wrong}'; did you mean '{right}'"):
        validate({wrong: 1})


def test_an_unknown_name_like_no_other_lists_them_all() -> None:
    with pytest.raises(OptionError) as caught:
        validate({"zzz": 1})
    assert caught.value.hint is not None
    assert "temperature" in caught.value.hint


@pytest.mark.parametrize("name", ["schema", "regex", "grammar"])
def test_constraints_are_texts_and_exclude_each_other(name: str) -> None:
    assert validate({name: None}) == validate({})
    assert validate({name: "x"})[name] == "x"
    with pytest.raises(OptionError, match=f"option {name} must be"):
        validate({name: 5})
    with pytest.raises(OptionError, match="exclude each other"):
        validate({"schema": "{}", "regex": "x", "grammar": None} if name != "grammar" else {"regex": "", "grammar": ""})


def test_a_schema_may_be_a_dict_or_a_class_that_makes_one() -> None:
    class Person:
        @classmethod
        def model_json_schema(cls) -> dict[str, Any]:
            return {"type": "object", "properties": {"name": {}, "age": {}}}

    assert validate({"schema": Person})["schema"] == validate({"schema": Person.model_json_schema()})["schema"]
    assert validate({"schema": {"enum": [1, "é"]}})["schema"] == '{"enum": [1, "\\u00e9"]}'
    recursive: dict[str, Any] = {}
    recursive["items"] = recursive
    for wrong in ({"enum": {1, 2}}, {"minimum": math.nan}, recursive):
        with pytest.raises(OptionError, match="option schema is no JSON"):
            validate({"schema": wrong})


def test_biases_go_by_id_or_text_and_false_bans() -> None:
    checked = validate({"logit_bias": {5: 1, "no": -2.5, numpy.int64(7): False}})["logit_bias"]
    assert checked == [(5, 1.0), ("no", -2.5), (7, False)]
    assert validate({"logit_bias": {5: -math.inf}})["logit_bias"] == [(5, False)]
    assert parse_option("logit_bias", '{"12": -1, "x": 2}') == ("logit_bias", [(12, -1.0), ("x", 2.0)])
    for wrong in ({5: math.nan}, {5: math.inf}, {5: True}, {-1: 1}, {"": 1}, {1.5: 1}, {True: 1}, {5: "1"}, [5]):
        with pytest.raises(OptionError, match="option logit_bias must be"):
            validate({"logit_bias": wrong})


def test_values_are_taken_from_numpy_and_int_for_float() -> None:
    checked = validate({"top_k": numpy.int64(5), "temperature": 1, "top_p": numpy.float32(0.5), "stop": "x"})
    assert (checked["top_k"], checked["temperature"], checked["top_p"], checked["stop"]) == (5, 1.0, 0.5, ["x"])
    assert type(checked["top_k"]) is int
    assert type(checked["temperature"]) is float


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("num_predict", "-1", ("max_tokens", None)),
        ("num_predict", "7", ("max_tokens", 7)),
        ("seed", "-1", ("seed", None)),
        ("top_k", "-1", ("top_k", 0)),
        ("temperature", " 0.5 ", ("temperature", 0.5)),
        ("stop", "a\\nb", ("stop", ["a\nb"])),
        ("ignore_eos", "true", ("ignore_eos", True)),
    ],
)
def test_text_becomes_a_value_with_ollamas_names_and_special_values(name: str, text: str, expected: Any) -> None:
    assert parse_option(name, text) == expected


@pytest.mark.parametrize(("name", "text"), [("num_predict", "x"), ("temperature", "nan"), ("ignore_eos", "maybe")])
def test_text_that_is_no_value_is_an_error_naming_what_was_typed(name: str, text: str) -> None:
    with pytest.raises(OptionError, match="must be") as caught:
        parse_option(name, text)
    assert name in str(caught.value)


@given(st.sampled_from(sorted(OPTIONS)), st.one_of(st.integers(), st.floats(), st.text(), st.none(), st.booleans()))
def test_any_value_is_either_taken_or_an_option_error(name: str, value: Any) -> None:
    try:
        checked = validate({name: value})[name]
    except OptionError as error:
        assert error.name == name
    else:
        assert not isinstance(checked, float) or math.isfinite(checked)
