"""OpenAI's chat completions: `/v1/chat/completions` as `/api/chat`, and the shape of errors of all `/v1` routes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from rsllm.server.body import refuse
from rsllm.server.dialects.common import (
    DONE,
    Event,
    Fields,
    Json,
    Translated,
    context_error,
    effort,
    fitting,
    image_data,
    json_arguments,
    merged_warnings,
    now,
    texts,
    tool_definition,
)
from rsllm.server.errors import ApiError
from rsllm.server.forced import forced_call

__all__ = ["ChatStream", "chat_reply", "chat_request", "copies", "error_reply", "sampling_options", "usage"]

FINGERPRINT = "fp_ollama"
_ERROR_TYPES = {400: "invalid_request_error", 404: "not_found_error"}
_TOO_LONG = "context_length_exceeded"
_FINISH = {"length": "length"}
# Ids as Ollama makes them: short, and good for nothing but logs.
_IDS = 999
COPIES_LIMIT = 16
"""Most answers to one request; each takes a place of the model."""


def chat_request(body: Mapping[str, Any]) -> Translated:
    """A chat completion in native terms. Raises `ApiError` for what cannot be had."""
    fields = Fields(body)
    native: Json = {"model": fields.text("model"), "stream": fields.flag("stream", False)}
    native["messages"] = messages(fields.items("messages"))
    if not native["messages"]:
        raise ApiError(400, "[] is too short - 'messages'")
    warnings: list[str] = []
    native["options"] = sampling_options(fields)
    most = _most_tokens(fields, warnings)
    if most is not None:
        native["options"]["num_predict"] = most
    biases = fields.mapping("logit_bias")
    if biases:
        native["options"]["logit_bias"] = biases
    native |= _optional(
        format=_format(fields.mapping("response_format")),
        think=effort(fields.mapping("reasoning").get("effort", fields.take("reasoning_effort"))),
    )
    native |= fitting(fields)
    native |= {name: fields.take(name) for name in ("logprobs", "top_logprobs", "_debug_render_only")}
    _tools(fields, native, warnings)
    if variables := fields.mapping("chat_template_kwargs"):
        native["chat_template_kwargs"] = variables
    wanted = copies(fields)
    if not fields.flag("parallel_tool_calls", True):
        native["parallel_tool_calls"] = False
    fields.default_only("store", False)
    options = fields.mapping("stream_options")
    return Translated(
        native={name: value for name, value in native.items() if value is not None},
        id=f"chatcmpl-{random.randrange(_IDS)}",
        created=now(),
        include_usage=options.get("include_usage") is True,
        copies=wanted,
        warnings=(*warnings, *fields.ignored()),
    )


def chat_reply(native: Mapping[str, Any], request: Translated) -> Json:
    """The whole answer, of the native one."""
    message: Json = {"role": "assistant", "content": native["message"].get("content", "")}
    if native["message"].get("thinking"):
        message["reasoning"] = native["message"]["thinking"]
    calls = _calls(native["message"])
    if calls:
        message["tool_calls"] = calls
    choice: Json = {"index": 0, "message": message, "finish_reason": _finish_reason(native, bool(calls))}
    if native.get("logprobs") is not None:
        choice["logprobs"] = {"content": _logprobs(native["logprobs"])}
    reply = {**_head(request, "chat.completion"), "choices": [choice], "usage": usage(native)}
    if native.get("_debug_info"):
        reply["_debug_info"] = native["_debug_info"]
    return reply | merged_warnings(request, native)


class ChatStream:
    """Native chunks as events."""

    def __init__(self, request: Translated) -> None:
        self._request = request
        self._head = _head(request, "chat.completion.chunk")
        self._begun = False
        self._called = False

    def feed(self, chunk: Mapping[str, Any]) -> Iterator[Event]:
        """The events of one native chunk; of the last one, also the end of the stream. A chunk that is an error ends
        the stream with an error."""
        if "error" in chunk:
            yield Event(error_reply(500, chunk))
            return
        yield from self._deltas(chunk)
        if chunk.get("done"):
            yield from self._end(chunk)

    def _deltas(self, chunk: Mapping[str, Any]) -> Iterator[Event]:
        message, logprobs = chunk.get("message") or {}, chunk.get("logprobs")
        content = message.get("content", "")
        if content and self._begun and not (logprobs or message.get("thinking") or message.get("tool_calls")):
            yield self._chunk({"content": content})  # nearly always
            return
        calls = _calls(message)
        self._called = self._called or bool(calls)
        deltas: list[Json] = []
        if message.get("thinking"):
            deltas.append({"content": "", "reasoning": message["thinking"]})
        if content or calls or logprobs:
            deltas.append({"content": content} | ({"tool_calls": calls} if calls else {}))
        if not deltas and not self._begun:
            deltas.append({"content": ""})
        for delta in deltas:
            role = {} if self._begun else {"role": "assistant"}
            self._begun = True
            is_last = delta is deltas[-1]
            yield self._chunk({**role, **delta}, logprobs=logprobs if is_last else None)

    def _end(self, chunk: Mapping[str, Any]) -> Iterator[Event]:
        last = self._chunk({}, finish_reason=_finish_reason(chunk, self._called))
        assert isinstance(last.data, dict)
        yield Event(last.data | merged_warnings(self._request, chunk))
        if self._request.include_usage:
            yield Event({**self._head, "choices": [], "usage": usage(chunk)})
        yield DONE

    def _chunk(self, delta: Json, *, finish_reason: str | None = None, logprobs: Any = None) -> Event:
        choice: Json = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        if logprobs:
            choice["logprobs"] = {"content": _logprobs(logprobs)}
        # As OpenAI has it: where counts are wanted, chunks without them say so.
        counts = {"usage": None} if self._request.include_usage else {}
        return Event({**self._head, "choices": [choice], **counts})


def error_reply(status: int, native: Mapping[str, Any]) -> Json:
    """The body of an error, of the native body (`{"error": text, …}`)."""
    kind = _ERROR_TYPES.get(status, "api_error")
    text, code = str(native.get("error", "")), None
    if context := context_error(native):
        code = _TOO_LONG
        # Clients look for these words.
        text = f"This model's maximum context length is {context[1]} tokens, and the prompt has {context[0]}"
    error: Json = {"message": text, "type": kind, "param": None, "code": code}
    if native.get("hint"):
        error["hint"] = native["hint"]
    return {"error": error}


def sampling_options(fields: Fields) -> Json:
    """Options that chat and text completions write alike; OpenAI's own defaults where they are absent."""
    options: Json = {}
    for name, default in (
        ("temperature", 1.0),
        ("top_p", 1.0),
        ("frequency_penalty", None),
        ("presence_penalty", None),
    ):
        value = fields.number(name)
        options[name] = default if value is None else value
    options |= {"seed": fields.count("seed"), "stop": fields.stops("stop")}
    return _optional(**options)


def copies(fields: Fields) -> int:
    """How many answers are wanted (`n`)."""
    count = fields.count("n")
    if count is not None and not 1 <= count <= COPIES_LIMIT:
        raise ApiError(400, f"n must be from 1 to {COPIES_LIMIT}, not {count}")
    return count or 1


def usage(native: Mapping[str, Any]) -> Json:
    """Counts of tokens."""
    prompt, completion = native.get("prompt_eval_count", 0), native.get("eval_count", 0)
    found: Json = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    if native.get("cached_tokens"):
        found["prompt_tokens_details"] = {"cached_tokens": native["cached_tokens"]}
    if native.get("thinking_count"):
        found["completion_tokens_details"] = {"reasoning_tokens": native["thinking_count"]}
    return found


def messages(items: list[Any]) -> list[Json]:
    """The conversation as native messages."""
    found: list[Json] = []
    names: dict[str, str] = {}
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            refuse(f"messages[{index}]", "an object", item)
        message = _message(item)
        for call in message.get("tool_calls", ()):
            names[call.get("id", "")] = call["function"]["name"]
        if message["role"] == "tool":
            call_id = item.get("tool_call_id")
            tool = item.get("name") or names.get(call_id if isinstance(call_id, str) else "")
            message |= _optional(tool_name=tool, tool_call_id=call_id)
        found.append(message)
    return found


def _message(item: Json) -> Json:
    message: Json = {"role": item.get("role", ""), "content": ""}
    content = item.get("content")
    thinking = item.get("reasoning") or item.get("reasoning_content")
    if isinstance(thinking, str):
        message["thinking"] = thinking
    calls = item.get("tool_calls")
    if isinstance(calls, list) and calls:
        message["tool_calls"] = [_past_call(call) for call in calls]
    if isinstance(content, str):
        message["content"] = content
    elif isinstance(content, list):
        message |= _parts(content)
    elif content is not None or not (calls or thinking):
        shown = "<nil>" if content is None else type(content).__name__
        raise ApiError(400, f"invalid message content type: {shown}")
    return message


def _parts(parts: list[Any]) -> Json:
    said: list[str] = []
    images: list[str] = []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and isinstance(part.get("text"), str):
            said.append(part["text"])
        elif kind == "image_url":
            url = part.get("image_url")
            images.append(image_data(url.get("url") if isinstance(url, dict) else url))
        elif kind == "input_audio":
            raise ApiError(400, "audio input is not supported")
        else:
            raise ApiError(400, "invalid message format")
    return {"content": texts(said)} | ({"images": images} if images else {})


def _past_call(call: Any) -> Json:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ApiError(400, "invalid message format: a tool call has no function with a name")
    arguments = json_arguments(function.get("arguments"))
    call_id = call.get("id")
    known = {"id": call_id} if isinstance(call_id, str) else {}
    return {**known, "function": {"name": function["name"], "arguments": arguments}}


def _most_tokens(fields: Fields, warnings: list[str]) -> int | None:
    most, older = fields.count("max_completion_tokens"), fields.count("max_tokens")
    if most is not None and older is not None and most != older:
        warnings.append("field 'max_tokens' has no effect beside 'max_completion_tokens'")
    return older if most is None else most


def _format(response_format: Json) -> Any:
    kind = response_format.get("type", "text")
    if kind == "json_object":
        return "json"
    if kind == "json_schema":
        wrapped = response_format.get("json_schema")
        schema = wrapped.get("schema") if isinstance(wrapped, dict) else None
        return schema if isinstance(schema, dict) else refuse("response_format.json_schema.schema", "an object", schema)
    if kind != "text":
        raise ApiError(400, f"response_format.type must be text, json_object or json_schema, not {str(kind)[:60]!r}")
    return None


def _tools(fields: Fields, native: Json, warnings: list[str]) -> None:
    tools = []
    for index, tool in enumerate(fields.items("tools")):
        where = f"tools[{index}]"
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict):
            raise ApiError(400, f"{where} has no function: only tools of type function are supported")
        tools.append(
            tool_definition(function.get("name"), function.get("description"), function.get("parameters"), where)
        )
    choice = fields.take("tool_choice")
    if isinstance(choice, dict):
        function = choice.get("function")
        named = function.get("name") if isinstance(function, dict) else None
        choice = ("named", named) if isinstance(named, str) else _bad_choice(choice)
    set_tools(native, tools, choice)


def set_tools(native: Json, tools: list[Json], choice: Any) -> None:
    """Put tools and the choice among them into a native request. `choice`: a word, or `("named", name)`."""
    if choice == "none":
        return
    if tools:
        native["tools"] = tools
    if choice in (None, "auto"):
        return
    if choice != "required" and not isinstance(choice, tuple):
        _bad_choice(choice)
    if native.get("format") is not None:
        raise ApiError(400, "a tool call cannot be required and the format of the answer set at the same time")
    native["format"] = forced_call(tools, choice[1] if isinstance(choice, tuple) else None)


def _bad_choice(choice: Any) -> NoReturn:
    raise ApiError(
        400, f"tool_choice must be none, auto, required or the name of a function, not {json.dumps(choice)[:80]}"
    )


def _calls(message: Mapping[str, Any]) -> list[Json]:
    return [
        {
            "id": call.get("id", ""),
            "index": call["function"].get("index", 0),
            "type": "function",
            "function": {"name": call["function"]["name"], "arguments": arguments_text(call["function"]["arguments"])},
        }
        for call in message.get("tool_calls") or ()
    ]


def arguments_text(arguments: Any) -> str:
    """Arguments as a JSON text."""
    return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))


def _finish_reason(native: Mapping[str, Any], called: bool) -> str:
    reason = _FINISH.get(native.get("done_reason", ""), "stop")
    return "tool_calls" if called and reason == "stop" else reason


def _logprobs(entries: list[Json]) -> list[Json]:
    return [{**entry, "top_logprobs": entry.get("top_logprobs") or []} for entry in entries]


def _head(request: Translated, kind: str) -> Json:
    return {
        "id": request.id,
        "object": kind,
        "created": request.created,
        "model": request.model,
        "system_fingerprint": FINGERPRINT,
    }


def _optional(**members: Any) -> Json:
    return {name: value for name, value in members.items() if value is not None}
