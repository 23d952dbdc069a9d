"""OpenAI's responses: refusals, items, formats. Whole exchanges are golden files."""

from __future__ import annotations

from typing import Any

import pytest

from rsllm.server.dialects import responses
from rsllm.server.errors import ApiError


def request(**fields: Any) -> Any:
    return responses.response_request({"model": "m", "input": "Hi", **fields})


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"input": None}, "input is required: a text or a list of items"),
        ({"input": [{}]}, "input item missing required 'type' field"),
        ({"input": [{"type": "dream"}]}, 'unknown input item type: "dream"'),
        ({"input": [{"role": "user", "content": [{"type": "smell"}]}]}, "unknown content type: smell"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
         "file inputs are not currently supported"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x"}]}]},
         "image URLs are not currently supported, please use base64 encoded data instead"),
        ({"input": [{"type": "function_call", "name": "a", "arguments": "[]"}]}, "invalid tool call arguments"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type must be text, json_object or json_schema, not 'xml'"),
        ({"tool_choice": {"type": "mcp"}}, 'tool_choice is not supported in this form: {"type": "mcp"}'),
        ({"reasoning": {"effort": "x"}}, 'invalid reasoning value: "x" (must be "minimal", "low", "medium", "high", '
                                         '"xhigh", "ultra", "max", or "none")'),
    ],
)  # fmt: skip
def test_refusals(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ApiError) as caught:
        request(**fields)
    assert (caught.value.status, str(caught.value)) == (400, text)


def test_defaults() -> None:
    found = request()
    assert found.native == {
        "model": "m", "stream": False, "messages": [{"role": "user", "content": "Hi"}], "options": {"temperature": 1.0},
        "truncate": False,
    }  # fmt: skip
    assert found.warnings == ()
    assert request(text={"format": {"type": "json_object"}}).native["format"] == "json"
    assert request(top_logprobs=2).native["top_logprobs"] == 2


def test_a_forced_tool() -> None:
    tool = {"type": "function", "name": "clock", "parameters": {"type": "object"}}
    choice = {"type": "function", "name": "clock"}
    assert request(tools=[tool], tool_choice=choice).native["format"]["properties"]["name"] == {"const": "clock"}
    assert "tools" not in request(tools=[tool], tool_choice="none").native


def test_a_reasoning_item_of_another_service_gives_its_summary() -> None:
    items = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"role": "assistant", "content": "Yes."},
    ]
    assert request(input=items).native["messages"] == [{"role": "assistant", "content": "Yes.", "thinking": "Hm."}]


def test_an_answer_cut_short_says_so() -> None:
    found = request()
    native = {"message": {"content": "a"}, "done_reason": "length"}
    reply = responses.response_reply(native, found)
    assert (reply["status"], reply["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    *_, last = responses.ResponseStream(found).feed({**native, "done": True})
    assert last.name == "response.incomplete"


def test_events_are_numbered_from_zero_without_gaps() -> None:
    stream = responses.ResponseStream(request())
    chunks = [{"message": {"content": "a"}}, {"message": {"content": ""}, "done": True, "done_reason": "stop"}]
    events = [event.data for chunk in chunks for event in stream.feed(chunk)]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))  # type: ignore[index]
