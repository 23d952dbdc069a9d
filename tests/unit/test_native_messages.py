"""Native messages as Jinja templates know them."""

from __future__ import annotations

from typing import Any

import pytest

from rsllm.chat.native import jinja_messages, jinja_variables

CALL = {"function": {"name": "clock", "arguments": {"b": 1, "a": 2}}}


def test_names_and_shapes() -> None:
    [message, result] = jinja_messages(
        "",
        [
            {"role": "assistant", "content": "", "thinking": "hm", "images": [], "tool_calls": [{**CALL, "id": "own"}]},
            {"role": "tool", "content": "3", "tool_name": "clock"},
        ],
    )
    assert message == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "hm",
        "tool_calls": [{"id": "own", "type": "function", "function": CALL["function"]}],
    }
    assert list(message["tool_calls"][0]["function"]["arguments"]) == ["b", "a"]
    assert result == {"role": "tool", "content": "3", "tool_call_id": "own", "name": "clock"}


@pytest.mark.parametrize("source", ["{{ m.thinking }}", "{{ m['thinking'] }}", '{% if "thinking" in m %}'])
def test_templates_that_call_thoughts_thinking(source: str) -> None:
    [message] = jinja_messages(source, [{"role": "assistant", "content": "x", "thinking": "hm"}])
    assert message["thinking"] == message["reasoning_content"] == "hm"


def test_results_find_their_calls() -> None:
    two = {"role": "assistant", "tool_calls": [{**CALL, "id": "one"}, {"id": "two", "function": {"name": "weather"}}]}

    def found(*results: dict[str, Any]) -> list[tuple[Any, Any]]:
        messages = jinja_messages("", [two, *({"role": "tool", **result} for result in results)])
        return [(message.get("tool_call_id"), message.get("name")) for message in messages[1:]]

    assert found({}, {}) == [("one", "clock"), ("two", "weather")]
    assert found({"tool_name": "weather"}, {}) == [("two", "weather"), ("one", "clock")]
    assert found({"tool_call_id": "two"}, {}) == [("two", "weather"), ("one", "clock")]
    assert found({"tool_call_id": "none"}, {"tool_name": "other"}, {}) == [
        ("none", None),
        (None, "other"),
        ("one", "clock"),
    ]


def test_ids_that_are_made_up_depend_on_the_place_alone() -> None:
    messages = [{"role": "assistant", "tool_calls": [CALL, CALL]}, {"role": "assistant", "tool_calls": [CALL]}]
    ids = [call["id"] for message in jinja_messages("", messages) for call in message["tool_calls"]]
    assert len(set(ids)) == 3 and all(len(id) == 13 for id in ids)
    again = jinja_messages("", [*messages, {"role": "user", "content": "x"}])
    assert [call["id"] for message in again[:2] for call in message["tool_calls"]] == ids
    nine = jinja_messages("{% if id|length != 9 %}", messages)
    assert {len(call["id"]) for message in nine for call in message["tool_calls"]} == {9}


def test_developers_are_systems_to_templates_that_know_no_developers() -> None:
    messages = [{"role": "developer", "content": "x"}]
    assert jinja_messages("", messages)[0]["role"] == "system"
    assert jinja_messages("{{ 'developer' }}", messages)[0]["role"] == "developer"


@pytest.mark.parametrize(
    ("source", "think", "expected"),
    [
        ("", None, {}),
        ("", True, {"enable_thinking": True}),
        ("", False, {"enable_thinking": False}),
        ("", "low", {"enable_thinking": True, "reasoning_effort": "low"}),
        ("<|channel|>", "max", {"enable_thinking": True, "reasoning_effort": "high"}),
        ("", "max", {"enable_thinking": True, "reasoning_effort": "max"}),
        ("{% if thinking %}", True, {"enable_thinking": True, "thinking": True}),
        ("{% if thinking and enable_thinking %}", True, {"enable_thinking": True}),
        ("{{ m.thinking }}", True, {"enable_thinking": True}),
    ],
)
def test_what_templates_are_told_of_thinking(source: str, think: Any, expected: dict[str, Any]) -> None:
    assert jinja_variables(source, think) == expected


def test_tools_under_another_name() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert jinja_variables("{{ xml_tools }}", None, tools) == {"xml_tools": tools}
    assert jinja_variables("{{ tools }}", None, tools) == {}
