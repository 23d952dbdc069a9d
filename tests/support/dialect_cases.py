"""Requests and native answers, and what the dialects make of them; run as a program it writes the golden files anew.

python -m tests.support.dialect_cases
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any
from unittest import mock

from rsllm.server.dialects import anthropic, completions, openai, responses, responses_replies
from rsllm.server.dialects.common import Translated

GOLDEN = Path(__file__).parents[1] / "golden" / "dialects"
CREATED = 1_700_000_000

COUNTS = {"prompt_eval_count": 12, "eval_count": 5}
DONE = {"done": True, "done_reason": "stop", **COUNTS}
CALL = {"id": "call_ab12cd34", "function": {"index": 0, "name": "weather", "arguments": {"city": "Zürich", "days": 2}}}
SECOND = {"id": "call_ef56gh78", "function": {"index": 1, "name": "clock", "arguments": {}}}
LOGPROBS = [
    {
        "token": "Hi",
        "logprob": -0.5,
        "bytes": [72, 105],
        "top_logprobs": [{"token": "Hi", "logprob": -0.5, "bytes": []}],
    }
]
WEATHER_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def message(content: str = "", **more: Any) -> dict[str, Any]:
    return {"model": "m", "message": {"role": "assistant", "content": content, **more}, "done": False}


CHUNKS = [
    message(thinking="Let me"),
    message("Hel", thinking=" see."),
    message("lo <b>"),
    message(tool_calls=[CALL]),
    message(tool_calls=[SECOND]),
    {**message(), **DONE, "warnings": ["unknown option 'x' was ignored"]},
]
WHOLE = {**message("Hello <b>", thinking="Let me see.", tool_calls=[CALL, SECOND]), **DONE}
PLAIN = [message("Hi"), {**message(), **DONE, "done_reason": "length"}]
FAILING = [message("Hi"), {"error": "the runner has gone", "kind": "RunnerCrashedError"}]

OPENAI_TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": WEATHER_SCHEMA}},
    {"type": "function", "function": {"name": "clock"}},
]
OPENAI_HISTORY = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "See"}, {"type": "text", "text": "this"},
                                 {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0="}}]},
    {"role": "assistant", "content": None, "reasoning": "Hm.",
     "tool_calls": [{"id": "call_1", "type": "function",
                     "function": {"name": "weather", "arguments": '{"b":1,"a":2}'}}]},
    {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    {"role": "developer", "content": "Go on."},
]  # fmt: skip
ANTHROPIC_TOOLS = [{"name": "weather", "description": "Tells it.", "input_schema": WEATHER_SCHEMA}]
ANTHROPIC_HISTORY = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "x"}, {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"b": 1, "a": 2}}]},
    {"role": "user", "content": [
        {"type": "text", "text": "And now?"},
        {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True,
         "content": [{"type": "text", "text": "rain"},
                     {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0="}}]}]},
]  # fmt: skip
RESPONSES_HISTORY = [
    {"role": "user", "content": "Hello"},
    {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
    {"type": "reasoning", "encrypted_content": "Hm.", "summary": []},
    {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city":"Bern"}'},
    {"type": "function_call", "call_id": "call_2", "name": "clock", "arguments": ""},
    {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
    {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "noon"}]},
    {"type": "web_search_call", "id": "ws_1"},
]
RESPONSES_TOOLS = [
    {"type": "function", "name": "weather", "description": "Tells it.", "parameters": WEATHER_SCHEMA, "strict": True},
    {"type": "namespace", "name": "os", "tools": [{"type": "function", "name": "clock"}]},
    {"type": "web_search"},
]

# Name -> translator of the request, its body, translator of the reply, stream, the native reply, native chunks.
CASES: dict[str, tuple[Any, dict[str, Any], Any, Any, dict[str, Any], list[dict[str, Any]]]] = {
    "openai-chat": (
        openai.chat_request,
        {
            "model": "m", "messages": OPENAI_HISTORY, "stream": True, "stream_options": {"include_usage": True},
            "max_completion_tokens": 64, "max_tokens": 32, "seed": 7, "stop": "END", "logit_bias": {"50256": -100},
            "frequency_penalty": 0.5, "presence_penalty": None, "reasoning_effort": "minimal", "tools": OPENAI_TOOLS,
            "tool_choice": "auto", "parallel_tool_calls": False, "n": 1, "user": "u", "metadata": {}, "store": False,
        },
        openai.chat_reply, openai.ChatStream, WHOLE, CHUNKS,
    ),
    "openai-chat-plain": (
        openai.chat_request,
        {
            "model": "m", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "logprobs": True,
            "top_logprobs": 1, "response_format": {"type": "json_schema", "json_schema": {"schema": WEATHER_SCHEMA}},
        },
        openai.chat_reply, openai.ChatStream, {**message("Hi"), **DONE, "done_reason": "length", "logprobs": LOGPROBS},
        [{**message("Hi"), "logprobs": LOGPROBS}, {**message(), **DONE, "done_reason": "length", "cached_tokens": 8}],
    ),
    "openai-chat-forced": (
        openai.chat_request,
        {
            "model": "m", "messages": [{"role": "user", "content": "Hi"}], "tools": OPENAI_TOOLS,
            "tool_choice": {"type": "function", "function": {"name": "weather"}},
        },
        openai.chat_reply, openai.ChatStream, {**message(tool_calls=[CALL]), **DONE},
        [{**message(tool_calls=[CALL]), **DONE}],
    ),
    "openai-chat-failing": (
        openai.chat_request, {"model": "m", "messages": [{"role": "user", "content": "Hi"}]},
        openai.chat_reply, openai.ChatStream, {**message(), **DONE}, FAILING,
    ),
    "openai-completions": (
        completions.completion_request,
        {"model": "m", "prompt": "Once", "suffix": " end", "max_tokens": 3, "logprobs": 1, "echo": True,
         "stream_options": {"include_usage": True}, "stream": True},
        completions.completion_reply, completions.CompletionStream,
        {"model": "m", "response": "Hi", "thinking": "Hm.", "logprobs": LOGPROBS, **DONE},
        [{"response": "Hi", "done": False, "logprobs": LOGPROBS}, {"response": "", **DONE, "done_reason": "length"}],
    ),
    "anthropic-messages": (
        anthropic.message_request,
        {
            "model": "m", "max_tokens": 64, "messages": ANTHROPIC_HISTORY, "stream": True,
            "temperature": 0.2, "top_k": 5,
            "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
                       {"type": "text", "text": "Be kind."}],
            "stop_sequences": ["END"],
            "tools": [*ANTHROPIC_TOOLS, {"type": "web_search_20250305", "name": "web_search"}],
            "thinking": {"type": "enabled", "budget_tokens": 1024}, "metadata": {"user_id": "u"},
        },
        anthropic.message_reply, anthropic.MessageStream, WHOLE, CHUNKS,
    ),
    "anthropic-plain": (
        anthropic.message_request,
        {"model": "m", "max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}], "tools": ANTHROPIC_TOOLS,
         "tool_choice": {"type": "any"}, "output_config": {"effort": "xhigh"}},
        anthropic.message_reply, anthropic.MessageStream, {**message("Hi"), **DONE, "done_reason": "length"}, PLAIN,
    ),
    "anthropic-failing": (
        anthropic.message_request, {"model": "m", "max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}]},
        anthropic.message_reply, anthropic.MessageStream, {**message(), **DONE}, FAILING,
    ),
    "responses": (
        responses.response_request,
        {
            "model": "m", "input": RESPONSES_HISTORY, "instructions": "You help.", "stream": True,
            "tools": RESPONSES_TOOLS,
            "reasoning": {"effort": "high", "summary": "auto"}, "max_output_tokens": 64, "store": True,
            "include": ["x"],
            "text": {"format": {"type": "json_schema", "name": "n", "schema": WEATHER_SCHEMA, "strict": True}},
        },
        responses.response_reply, responses.ResponseStream, WHOLE, CHUNKS,
    ),
    "responses-plain": (
        responses.response_request, {"model": "m", "input": "Hi", "top_p": 0.5, "temperature": 0},
        responses.response_reply, responses.ResponseStream, {**message("Hi"), **DONE, "done_reason": "length"}, PLAIN,
    ),
    "responses-failing": (
        responses.response_request, {"model": "m", "input": "Hi"},
        responses.response_reply, responses.ResponseStream, {**message(), **DONE}, FAILING,
    ),
}  # fmt: skip


def fixed(request: Translated) -> Translated:
    """The same request with an id and a time that do not change."""
    prefix = request.id.rpartition("_" if "_" in request.id else "-")[0] + ("_" if "_" in request.id else "-")
    echo = {**request.echo, **({"number": 1} if "number" in request.echo else {})}
    return dataclasses.replace(request, id=prefix + "1", created=CREATED, echo=echo)


def outcome(name: str) -> str:
    """All that comes of a case, as text."""
    translate, body, reply, stream, whole, chunks = CASES[name]
    with (
        mock.patch.object(responses_replies, "now", lambda: CREATED + 1),
        mock.patch.object(anthropic, "random_id", lambda prefix: prefix + "1"),
    ):
        request = fixed(translate(body))
        translator = stream(request)
        events = [event.encode().decode() for chunk in chunks for event in translator.feed(chunk)]
        return "\n".join([
            "# native request", json.dumps(request.native, indent=1, ensure_ascii=False),
            "# warnings", *request.warnings,
            "# reply", json.dumps(reply(whole, request), indent=1, ensure_ascii=False),
            "# events", "".join(events),
        ])  # fmt: skip


def golden(name: str) -> Path:
    return GOLDEN / f"{name}.txt"


if __name__ == "__main__":
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        golden(case).write_text(outcome(case), encoding="utf-8")
