"""Anthropic's messages: refusals, thinking, choices of tools, errors. Whole exchanges are golden files."""

from __future__ import annotations

from typing import Any

import pytest

from rsllm.server.dialects import anthropic
from rsllm.server.errors import ApiError

BODY: dict[str, Any] = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
TOOL = {"name": "clock", "input_schema": {"type": "object"}}


def test_a_count_needs_no_limit_and_wants_no_answer() -> None:
    request = anthropic.count_request({"model": "m", "messages": BODY["messages"], "stream": True})
    assert request.count_only and not request.stream
    assert request.unsaid(0) == {"think_is_optional": True, "count_only": True}
    assert anthropic.count_reply({"prompt_eval_count": 9}, request) == {"input_tokens": 9}


def said(*blocks: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(blocks)}]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"model": ""}, "model is required"),
        ({"max_tokens": None}, "max_tokens is required and must be positive"),
        ({"max_tokens": 0}, "max_tokens is required and must be positive"),
        ({"messages": []}, "messages is required"),
        ({"messages": said({"type": "image", "source": {"type": "url", "url": "x"}})}, "invalid image source"),
        ({"messages": said({"type": "tool_use", "name": "a"})}, "tool_use block missing required 'id' field"),
        ({"messages": said({"type": "tool_use", "id": "a"})}, "tool_use block missing required 'name' field"),
        ({"messages": said({"type": "video"})}, "messages[0].content: unknown block type 'video'"),
        ({"messages": [{"role": "user"}]},
         "field 'messages[0].content' must be a text or a list of blocks, not null"),
        ({"system": 3}, "field 'system' must be a text or a list of text blocks, not a number"),
        ({"tool_choice": {"type": "any"}}, "tool_choice requires a tool call, and there are no tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "maybe"}},
         "tool_choice.type must be auto, any, tool or none, not 'maybe'"),
        ({"output_config": {"effort": {}}}, "output_config.effort must be low, medium, high, xhigh or max, not '{}'"),
        ({"output_config": {"effort": "huge"}},
         "output_config.effort must be low, medium, high, xhigh or max, not 'huge'"),
    ],
)  # fmt: skip
def test_refusals(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ApiError) as caught:
        anthropic.message_request({**BODY, **fields})
    assert (caught.value.status, str(caught.value)) == (400, text)


@pytest.mark.parametrize(
    ("fields", "think"),
    [
        ({"thinking": {"type": "enabled"}}, True),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}, False),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "xhigh"}}, "high"),
        ({"output_config": {"effort": "max"}}, "max"),
        ({"thinking": {"type": "adaptive"}}, None),
    ],
)
def test_thinking(fields: dict[str, Any], think: Any) -> None:
    request = anthropic.message_request({**BODY, **fields})
    assert request.native.get("think") == think
    assert request.think_is_optional


def test_choices_of_tools() -> None:
    def native(**choice: Any) -> dict[str, Any]:
        return anthropic.message_request({**BODY, "tools": [TOOL], "tool_choice": choice}).native

    assert "tools" not in native(type="none")
    assert "format" not in native(type="auto")
    assert native(type="tool", name="clock")["format"]["properties"]["name"] == {"const": "clock"}
    request = anthropic.message_request(
        {**BODY, "tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
    )
    assert request.native["parallel_tool_calls"] is False and request.warnings == ()


def test_defaults_are_the_models_own() -> None:
    assert anthropic.message_request(BODY).native["options"] == {"num_predict": 5}


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (401, "authentication_error"), (403, "permission_error"), (404, "not_found_error"),
     (429, "rate_limit_error"), (500, "api_error"), (503, "overloaded_error"), (529, "overloaded_error")],
)  # fmt: skip
def test_errors(status: int, kind: str) -> None:
    reply = anthropic.error_reply(status, {"error": "no"})
    assert reply["type"] == "error" and reply["error"] == {"type": kind, "message": "no"}
    assert reply["request_id"].startswith("req_")


def test_the_format_of_an_answer() -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}}
    asked = {"format": {"type": "json_schema", "schema": schema}, "effort": "low"}
    request = anthropic.message_request({**BODY, "output_config": asked})
    assert (request.native["format"], request.native["think"], request.warnings) == (schema, "low", ())
    for wrong in ("json", {"type": "json"}, {"type": "json_schema"}):
        with pytest.raises(ApiError, match=r"output_config\.format"):
            anthropic.message_request({**BODY, "output_config": {"format": wrong}})
