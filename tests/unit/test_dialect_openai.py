"""OpenAI's chat, completions, embeddings and models: single fields, refusals, shapes of errors."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsllm.server.dialects import anthropic, completions, openai, responses
from rsllm.server.dialects.several import numbered
from rsllm.server.errors import ApiError

USER = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}


def chat(**fields: Any) -> dict[str, Any]:
    return openai.chat_request({"model": "m", "messages": USER, **fields}).native


def refusal(**fields: Any) -> str:
    with pytest.raises(ApiError) as caught:
        chat(**fields)
    assert caught.value.status == 400
    return str(caught.value)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"messages": []}, "[] is too short - 'messages'"),
        ({"n": 0}, "n must be from 1 to 16, not 0"),
        ({"n": 17}, "n must be from 1 to 16, not 17"),
        ({"reasoning_effort": "huge"}, 'invalid reasoning value: "huge" (must be "minimal", "low", "medium", "high", '
                                       '"xhigh", "ultra", "max", or "none")'),
        ({"messages": [{"role": "user", "content": None}]}, "invalid message content type: <nil>"),
        ({"messages": [{"role": "user"}]}, "invalid message content type: <nil>"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "invalid message format"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "audio input is not supported"),
        ({"response_format": {"type": "xml"}},
         "response_format.type must be text, json_object or json_schema, not 'xml'"),
        ({"response_format": {"type": "json_schema"}},
         "field 'response_format.json_schema.schema' must be an object, not null"),
        ({"tools": [{"type": "custom", "name": "x"}]},
         "tools[0] has no function: only tools of type function are supported"),
        ({"tools": [{"function": {}}]}, "tools[0] has no name"),
        ({"tool_choice": "required"}, "tool_choice requires a tool call, and there are no tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}},
         "tool_choice names the tool 'x', which is not in tools"),
        ({"tools": [TOOL], "tool_choice": "sometimes"},
         'tool_choice must be none, auto, required or the name of a function, not "sometimes"'),
        ({"tools": [TOOL], "tool_choice": "required", "response_format": {"type": "json_object"}},
         "a tool call cannot be required and the format of the answer set at the same time"),
        ({"stop": [1]}, "field 'stop' must be a text or a list of texts, not a list"),
        ({"temperature": "hot"}, "field 'temperature' must be a number, not a text"),
        ({"logit_bias": [1]}, "field 'logit_bias' must be an object, not a list"),
    ],
)  # fmt: skip
def test_refusals(fields: dict[str, Any], text: str) -> None:
    assert refusal(**fields) == text


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("https://example.org/a.png",
         "image URLs are not currently supported, please use base64 encoded data instead"),
        ("data:image/gif;base64,AAAA", "invalid image input"),
        ("data:image/png;base64,!", "invalid image input"),
        (None, "invalid image input"),
    ],
)  # fmt: skip
def test_images(url: Any, text: str) -> None:
    parts = [{"type": "image_url", "image_url": {"url": url}}]
    assert refusal(messages=[{"role": "user", "content": parts}]) == text


def test_image_as_a_bare_url() -> None:
    parts = [{"type": "image_url", "image_url": "data:;base64,AAAA"}]
    [message] = chat(messages=[{"role": "user", "content": parts}])["messages"]
    assert message == {"role": "user", "content": "", "images": ["AAAA"]}


@pytest.mark.parametrize("arguments", ["[1]", "nonsense", None, {"a": 1}, "[" * 100_000])
def test_arguments_in_the_history_are_the_text_of_an_object(arguments: Any) -> None:
    call = {"id": "1", "function": {"name": "clock", "arguments": arguments}}
    assert refusal(messages=[{"role": "assistant", "tool_calls": [call]}]) == "invalid tool call arguments"


def test_a_message_without_content_beside_calls_or_thoughts() -> None:
    call = {"id": "1", "function": {"name": "clock", "arguments": "{}"}}
    history = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "assistant", "content": None, "reasoning_content": "Done."},
    ]
    first, second = chat(messages=history)["messages"]
    assert first["content"] == "" and first["tool_calls"][0]["function"] == {"name": "clock", "arguments": {}}
    assert second == {"role": "assistant", "content": "", "thinking": "Done."}


@pytest.mark.parametrize(
    ("word", "think"),
    [("none", False), ("minimal", "low"), ("low", "low"), ("high", "high"), ("xhigh", "max"), ("ultra", "max")],
)
def test_effort(word: str, think: Any) -> None:
    assert chat(reasoning_effort=word)["think"] == think
    assert chat(reasoning={"effort": word}, reasoning_effort="medium")["think"] == think
    assert "think" not in chat()


def test_options() -> None:
    assert chat()["options"] == {"temperature": 1.0, "top_p": 1.0}
    assert chat(temperature=None, stop="a", max_tokens=3)["options"] == {
        "temperature": 1.0, "top_p": 1.0, "stop": ["a"], "num_predict": 3,
    }  # fmt: skip
    assert chat(response_format={"type": "json_object"})["format"] == "json"
    assert "format" not in chat(response_format={"type": "text"})


def test_tool_choice() -> None:
    other = {"type": "function", "function": {"name": "weather", "parameters": {"$defs": {"A": {"type": "string"}}}}}
    assert "tools" not in chat(tools=[TOOL], tool_choice="none")
    assert "format" not in chat(tools=[TOOL], tool_choice="auto")
    schema = chat(tools=[TOOL, other], tool_choice="required")["format"]
    assert [branch["properties"]["name"] for branch in schema["anyOf"]] == [{"const": "clock"}, {"const": "weather"}]
    assert schema["$defs"] == {"A": {"type": "string"}}
    third = {"type": "function", "function": {"name": "z", "parameters": {"$defs": {"A": {"type": "null"}}}}}
    assert "define $defs/A differently" in refusal(tools=[other, third], tool_choice="required")


def test_a_field_without_effect_is_said_and_one_that_says_the_usual_is_not() -> None:
    body = {"model": "m", "messages": USER, "user": "u", "parallel_tool_calls": True, "store": False, "metadata": None}
    assert openai.chat_request(body).warnings == ("field 'user' has no effect",)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (404, "not_found_error"), (500, "api_error"), (503, "api_error")],
)
def test_errors(status: int, kind: str) -> None:
    reply = openai.error_reply(status, {"error": "no", "hint": "do"})
    assert reply == {"error": {"message": "no", "type": kind, "param": None, "code": None, "hint": "do"}}


def test_an_empty_answer_streams_its_role() -> None:
    stream = openai.ChatStream(openai.chat_request({"model": "m", "messages": USER}))
    events = [event.data for event in stream.feed({"message": {"content": ""}, "done": True, "done_reason": "stop"})]
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}  # type: ignore[index]
    assert events[1]["choices"][0]["finish_reason"] == "stop"  # type: ignore[index]
    assert events[2] == "[DONE]"


def test_completions() -> None:
    native = completions.completion_request({"model": "m", "prompt": "a", "top_p": 0, "logprobs": 0}).native
    assert native["options"] == {
        "frequency_penalty": 0.0, "presence_penalty": 0.0, "temperature": 1.0, "top_p": 1.0,
    }  # fmt: skip
    assert "logprobs" not in native
    for fields in ({"prompt": "a", "best_of": 2}, {"prompt": "a", "n": 0}, {"prompt": ["a"] * 9, "n": 16}):
        with pytest.raises(ApiError):
            completions.completion_request({"model": "m", **fields})


@pytest.mark.parametrize(
    "prompt", [[], [[]], ["a", 1], [1, "a"], [[1], "a"], [-1], [2**32], [True], [1.5], {}, 3, [None]]
)
def test_what_is_no_prompt(prompt: Any) -> None:
    with pytest.raises(ApiError, match=r"^prompt must be a text, a list of texts, a list of token ids"):
        completions.completion_request({"model": "m", "prompt": prompt})


def test_several_answers_have_several_seeds() -> None:
    request = openai.chat_request({"model": "m", "messages": USER, "n": 3, "seed": 7})
    assert [numbered(request, index)["options"].get("seed") for index in range(3)] == [7, 8, 9]
    assert "seed" not in numbered(openai.chat_request({"model": "m", "messages": USER, "n": 3}), 2)["options"]


def test_several_prompts_are_several_requests() -> None:
    body = {"model": "m", "prompt": ["a", "b"], "n": 2, "seed": 7}
    request = completions.completion_request(body)
    asked = [numbered(request, index) for index in range(request.answers)]
    assert [(one["prompt"], one["options"]["seed"]) for one in asked] == [("a", 7), ("a", 8), ("b", 7), ("b", 8)]
    request = completions.completion_request({"model": "m", "prompt": [[1, 2], [3]]})
    assert "prompt" not in numbered(request, 0)
    assert [request.unsaid(index) for index in range(2)] == [{"prompt_ids": (1, 2)}, {"prompt_ids": (3,)}]
    assert completions.completion_request({"model": "m", "prompt": [1, 2]}).prompts == ((1, 2),)
    assert completions.completion_request({"model": "m", "prompt": "a", "n": 2, "best_of": 2}).copies == 2


def test_embeddings() -> None:
    request = completions.embeddings_request({"model": "m", "input": ["a"], "encoding_format": "base64", "user": "u"})
    assert request.native == {"model": "m", "input": ["a"]}
    native = {"embeddings": [[0.5, -1.0]], "prompt_eval_count": 3, "warnings": ["w"]}
    reply = completions.embeddings_reply(native, request)
    assert struct.unpack("<2f", base64.b64decode(reply["data"][0]["embedding"])) == (0.5, -1.0)
    assert reply["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    assert reply["warnings"] == ["field 'user' has no effect", "w"]
    plain = completions.embeddings_request({"model": "m", "input": "a", "dimensions": 8})
    assert plain.native["dimensions"] == 8
    assert completions.embeddings_reply(native, plain)["data"][0]["embedding"] == [0.5, -1.0]


@pytest.mark.parametrize("value", [None, "", [], [1, 2], 3])
def test_embeddings_of_nothing(value: Any) -> None:
    with pytest.raises(ApiError, match=r"^invalid input$"):
        completions.embeddings_request({"model": "m", "input": value})


def test_embeddings_in_another_encoding() -> None:
    with pytest.raises(ApiError) as caught:
        completions.embeddings_request({"model": "m", "input": "a", "encoding_format": "int8"})
    assert str(caught.value) == "Invalid value for 'encoding_format' = int8. Supported values: ['float', 'base64']."


def test_models() -> None:
    times = ["2023-11-14T22:13:20.123456789Z", "2023-11-14T23:13:20+01:00", "nonsense"]
    names = ["llama3.2:latest", "someone/m:7b", "hf.co/org/repo:Q4_K_M"]
    tags = {"models": [{"name": name, "modified_at": time} for name, time in zip(names, times, strict=True)]}
    reply = completions.models_reply(tags)
    assert [(model["owned_by"], model["created"]) for model in reply["data"]] == [
        ("library", 1_700_000_000), ("someone", 1_700_000_000), ("org", 0),
    ]  # fmt: skip
    assert completions.models_reply({"models": []}) == {"object": "list", "data": []}
    assert completions.model_reply(tags["models"][0], "llama3.2")["id"] == "llama3.2"


KEYS = (
    "type role content text function name arguments input tool_calls id source image_url tool_use_id parameters "
    "input_schema call_id output summary format effort $defs tools"
).split()
WORDS = "user tool text function tool_use tool_result message image_url m required any".split()
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 2**40), st.text(max_size=6), st.sampled_from(WORDS)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)
FIELDS = (
    "model messages input prompt tools tool_choice stream system text stop response_format reasoning thinking "
    "logit_bias n logprobs stream_options"
).split()
TRANSLATORS = [
    openai.chat_request, completions.completion_request, completions.embeddings_request, anthropic.message_request,
    responses.response_request,
]  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(translate=st.sampled_from(TRANSLATORS), body=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6))
def test_any_body_is_translated_or_refused(translate: Any, body: dict[str, Any]) -> None:
    try:
        translate({"model": "m", "max_tokens": 5, **body})
    except ApiError as error:
        assert error.status == 400


def test_a_prompt_that_is_too_long_is_an_error_unless_asked_otherwise() -> None:
    asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    assert openai.chat_request(asked).native["truncate"] is False
    assert openai.chat_request({**asked, "truncate": True}).native["truncate"] is True
    native = {"error": "too long", "kind": "ContextLengthError", "prompt_tokens": 4031, "context": 2048}
    said = openai.error_reply(400, native)["error"]
    assert (said["code"], said["type"]) == ("context_length_exceeded", "invalid_request_error")
    assert said["message"] == "This model's maximum context length is 2048 tokens, and the prompt has 4031"
    told = anthropic.error_reply(400, native)["error"]
    assert told["message"] == "prompt is too long: 4031 tokens > 2047 maximum"
    for truncation, truncate in ((None, False), ("disabled", False), ("auto", True)):
        body = {"model": "m", "input": "hi", "truncation": truncation}
        assert responses.response_request(body).native["truncate"] is truncate
    with pytest.raises(ApiError, match="truncation must be"):
        responses.response_request({"model": "m", "input": "hi", "truncation": "some"})
