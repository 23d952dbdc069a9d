"""Anthropic's messages: `/v1/messages` as `/api/chat`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from rsllm.server.body import refuse
from rsllm.server.dialects.common import (
    Event,
    Fields,
    Json,
    Translated,
    context_error,
    fitting,
    image_data,
    merged_warnings,
    now,
    random_id,
    tool_definition,
)
from rsllm.server.dialects.openai import arguments_text, set_tools
from rsllm.server.errors import ApiError

__all__ = ["MessageStream", "count_reply", "count_request", "error_reply", "message_reply", "message_request"]

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "max": "max", "xhigh": "high"}
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
# Tokens of a prompt are not known when the first event goes out.
_BYTES_PER_TOKEN = 4


def message_request(body: Mapping[str, Any]) -> Translated:
    """A message in native terms. Raises `ApiError` for what cannot be had."""
    fields = Fields(body)
    model, most, items = fields.text("model"), fields.count("max_tokens"), fields.items("messages")
    if not model:
        raise ApiError(400, "model is required")
    if most is None or most <= 0:
        raise ApiError(400, "max_tokens is required and must be positive")
    if not items:
        raise ApiError(400, "messages is required")
    warnings: list[str] = []
    native: Json = {"model": model, "stream": fields.flag("stream", False)}
    native["messages"] = [*_system(fields.take("system")), *_messages(items, warnings)]
    options = {
        "num_predict": most,
        "temperature": fields.number("temperature"),
        "top_p": fields.number("top_p"),
        "top_k": fields.count("top_k"),
        "stop": fields.stops("stop_sequences"),
    }
    native["options"] = {name: value for name, value in options.items() if value is not None}
    native |= fitting(fields)
    think = _think(fields, warnings)
    if think is not None:
        native["think"] = think
    schema = _format(fields.mapping("output_config").get("format"))
    if schema is not None:
        native["format"] = schema
    _tools(fields, native, warnings)
    if '"cache_control"' in json.dumps(body):
        warnings.append("field 'cache_control' has no effect: prefixes of prompts are always kept")
        fields.take("cache_control")
    return Translated(
        native=native,
        id=random_id("msg_"),
        created=now(),
        warnings=(*dict.fromkeys(warnings), *fields.ignored()),
        think_is_optional=True,
        echo={"input_tokens": len(json.dumps(native["messages"]).encode()) // _BYTES_PER_TOKEN},
    )


def count_request(body: Mapping[str, Any]) -> Translated:
    """A request to count the tokens of a prompt: that of a message, of which no answer is wanted."""
    asked = message_request({**body, "max_tokens": 1, "stream": False})
    return replace(asked, count_only=True)


def count_reply(native: Mapping[str, Any], request: Translated) -> Json:
    """The count, of the native answer."""
    return {"input_tokens": native.get("prompt_eval_count", 0)} | merged_warnings(request, native)


def message_reply(native: Mapping[str, Any], request: Translated) -> Json:
    """The whole answer, of the native one."""
    message = native["message"]
    content: list[Json] = []
    if message.get("thinking"):
        content.append({"type": "thinking", "thinking": message["thinking"], "signature": ""})
    if message.get("content"):
        content.append({"type": "text", "text": message["content"]})
    content += [_tool_use(call, call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    called = bool(message.get("tool_calls"))
    return {
        **_head(request),
        "content": content,
        "stop_reason": _stop_reason(native, called),
        "stop_sequence": None,
        "usage": _usage(native),
    } | merged_warnings(request, native)


class MessageStream:
    """Native chunks as events. Blocks follow each other; one is open at a time."""

    def __init__(self, request: Translated) -> None:
        self._request = request
        self._begun = False
        self._open: str | None = None
        self._index = -1
        self._called = False

    def feed(self, chunk: Mapping[str, Any]) -> Iterator[Event]:
        """The events of one native chunk; of the last one, also the end of the stream."""
        if "error" in chunk:
            yield _event("error", error=error_reply(500, chunk)["error"])
            return
        if not self._begun:
            self._begun = True
            usage = {"input_tokens": self._request.echo.get("input_tokens", 0), "output_tokens": 0}
            message = {
                **_head(self._request),
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": usage,
            }
            yield _event("message_start", message=message)
        message = chunk.get("message") or {}
        if message.get("thinking"):
            yield from self._text("thinking", message["thinking"], {"signature": ""})
        if message.get("content"):
            yield from self._text("text", message["content"], {})
        for call in message.get("tool_calls") or ():
            yield from self._call(call)
        if chunk.get("done"):
            yield from self._end(chunk)

    def _text(self, kind: str, text: str, extra: Json) -> Iterator[Event]:
        if self._open != kind:
            yield from self._start(kind, {"type": kind, kind: "", **extra})
        yield _event("content_block_delta", index=self._index, delta={"type": f"{kind}_delta", kind: text})

    def _call(self, call: Json) -> Iterator[Event]:
        self._called = True
        yield from self._start("tool_use", _tool_use(call, {}))
        text = arguments_text(call["function"]["arguments"])
        yield _event("content_block_delta", index=self._index, delta={"type": "input_json_delta", "partial_json": text})
        yield from self._stop()

    def _start(self, kind: str, block: Json) -> Iterator[Event]:
        yield from self._stop()
        self._open = kind
        self._index += 1
        yield _event("content_block_start", index=self._index, content_block=block)

    def _stop(self) -> Iterator[Event]:
        if self._open is not None:
            self._open = None
            yield _event("content_block_stop", index=self._index)

    def _end(self, chunk: Mapping[str, Any]) -> Iterator[Event]:
        yield from self._stop()
        delta = {"stop_reason": _stop_reason(chunk, self._called), "stop_sequence": None}
        yield _event("message_delta", delta=delta, usage=_usage(chunk), **merged_warnings(self._request, chunk))
        yield _event("message_stop")


def error_reply(status: int, native: Mapping[str, Any]) -> Json:
    """The body of an error, of the native body (`{"error": text, …}`)."""
    text = str(native.get("error", ""))
    if context := context_error(native):
        # Clients look for these words; one place is for the answer.
        text = f"prompt is too long: {context[0]} tokens > {context[1] - 1} maximum"
    error = {"type": _ERROR_TYPES.get(status, "api_error"), "message": text}
    if native.get("hint"):
        error["hint"] = native["hint"]
    return {"type": "error", "error": error, "request_id": random_id("req_")}


def _system(value: Any) -> list[Json]:
    if value is None or value == "" or value == []:
        return []
    if isinstance(value, str):
        return [{"role": "system", "content": value}]
    if not isinstance(value, list):
        refuse("system", "a text or a list of text blocks", value)
    return [{"role": "system", "content": "\n".join(_text_of(block, "system") for block in value)}]


def _messages(items: list[Any], warnings: list[str]) -> list[Json]:
    found: list[Json] = []
    names: dict[str, str] = {}
    for index, item in enumerate(items):
        where = f"messages[{index}]"
        if not isinstance(item, dict):
            refuse(where, "an object", item)
        content = item.get("content")
        if isinstance(content, str):
            found.append({"role": item.get("role", ""), "content": content})
        elif isinstance(content, list):
            found += _expanded(item.get("role", ""), content, names, where, warnings)
        else:
            refuse(f"{where}.content", "a text or a list of blocks", content)
    return found


def _expanded(role: Any, blocks: list[Any], names: dict[str, str], where: str, warnings: list[str]) -> list[Json]:
    """One message as native ones: results of tools first, then the rest."""
    results: list[Json] = []
    message: Json = {"role": role, "content": ""}
    said: list[str] = []
    for block in blocks:
        if not isinstance(block, dict):
            refuse(f"{where}.content", "a list of blocks", block)
        kind = block.get("type")
        if kind == "text":
            said.append(_text_of(block, where))
        elif kind == "image":
            message.setdefault("images", []).append(_image(block))
        elif kind in ("tool_use", "server_tool_use"):
            call = _past_call(block)
            names[call["id"]] = call["function"]["name"]
            message.setdefault("tool_calls", []).append(call)
        elif kind in ("tool_result", "web_search_tool_result"):
            results.append(_result(block, names, where, warnings))
        elif kind == "thinking":
            message["thinking"] = message.get("thinking", "") + str(block.get("thinking", ""))
        elif kind == "redacted_thinking":
            warnings.append("blocks of type 'redacted_thinking' have no effect")
        else:
            raise ApiError(400, f"{where}.content: unknown block type {str(kind)[:60]!r}")
    message["content"] = "\n".join(said)
    is_empty = not said and len(message) == 2
    return results if results and is_empty else [*results, message]


def _result(block: Json, names: dict[str, str], where: str, warnings: list[str]) -> Json:
    call_id, content = block.get("tool_use_id"), block.get("content", "")
    message: Json = {"role": "tool", "content": "", "tool_call_id": call_id if isinstance(call_id, str) else ""}
    if message["tool_call_id"] in names:
        message["tool_name"] = names[message["tool_call_id"]]
    if block.get("is_error"):
        warnings.append("field 'is_error' has no effect: the text of a result says what happened")
    if block.get("type") == "web_search_tool_result":
        content = json.dumps(content, ensure_ascii=False)
    if isinstance(content, str):
        return {**message, "content": content}
    if not isinstance(content, list):
        refuse(f"{where}.content", "a text or a list of blocks", content)
    said = []
    for part in content:
        if isinstance(part, dict) and part.get("type") == "image":
            message.setdefault("images", []).append(_image(part))
        else:
            said.append(_text_of(part, where))
    return {**message, "content": "\n".join(said)}


def _past_call(block: Json) -> Json:
    for name in ("id", "name"):
        if not isinstance(block.get(name), str) or not block[name]:
            raise ApiError(400, f"tool_use block missing required '{name}' field")
    arguments = block.get("input")
    if arguments is not None and not isinstance(arguments, dict):
        refuse("tool_use.input", "an object", arguments)
    return {"id": block["id"], "function": {"name": block["name"], "arguments": arguments or {}}}


def _image(block: Json) -> str:
    source = block.get("source")
    if not isinstance(source, dict) or source.get("type") != "base64" or not isinstance(source.get("data"), str):
        raise ApiError(400, "invalid image source")
    return image_data("data:;base64," + source["data"])


def _text_of(block: Any, where: str) -> str:
    text = block.get("text") if isinstance(block, dict) and block.get("type") == "text" else None
    if not isinstance(text, str):
        raise ApiError(400, f"{where}: a block of type text was expected")
    return text


def _think(fields: Fields, warnings: list[str]) -> bool | str | None:
    thinking = fields.mapping("thinking")
    effort = fields.mapping("output_config").get("effort")
    if thinking.get("budget_tokens") is not None:
        warnings.append("field 'thinking.budget_tokens' has no effect")
    kind = thinking.get("type")
    if kind in ("enabled", "disabled"):
        return bool(kind == "enabled")
    if effort is not None and not (isinstance(effort, str) and effort in _EFFORTS):
        raise ApiError(400, f"output_config.effort must be low, medium, high, xhigh or max, not {str(effort)[:60]!r}")
    return _EFFORTS.get(effort) if isinstance(effort, str) else None


def _format(value: Any) -> Any:
    """The schema of an answer, where one is asked for."""
    if value is None:
        return None
    if not isinstance(value, dict) or value.get("type") != "json_schema":
        raise ApiError(400, "output_config.format must be an object of type json_schema")
    schema = value.get("schema")
    return schema if isinstance(schema, dict) else refuse("output_config.format.schema", "an object", schema)


def _tools(fields: Fields, native: Json, warnings: list[str]) -> None:
    tools = []
    for index, tool in enumerate(fields.items("tools")):
        where = f"tools[{index}]"
        if not isinstance(tool, dict):
            refuse(where, "an object", tool)
        kind = tool.get("type")
        if kind not in (None, "custom"):
            warnings.append(f"the tool of type {str(kind)[:60]!r} has no effect: this server runs no tools itself")
            continue
        tools.append(tool_definition(tool.get("name"), tool.get("description"), tool.get("input_schema"), where))
    choice = fields.mapping("tool_choice")
    if choice.get("disable_parallel_tool_use"):
        native["parallel_tool_calls"] = False
    kind = choice.get("type")
    if kind == "tool":
        set_tools(native, tools, ("named", str(choice.get("name"))))
    elif kind is None or kind in _CHOICES:
        set_tools(native, tools, _CHOICES.get(kind) if isinstance(kind, str) else None)
    else:
        raise ApiError(400, f"tool_choice.type must be auto, any, tool or none, not {str(kind)[:60]!r}")


def _tool_use(call: Json, arguments: Any) -> Json:
    return {"type": "tool_use", "id": call.get("id", ""), "name": call["function"]["name"], "input": arguments}


def _stop_reason(native: Mapping[str, Any], called: bool) -> str:
    return "tool_use" if called else _STOP_REASONS.get(native.get("done_reason", ""), "stop_sequence")


def _usage(native: Mapping[str, Any]) -> Json:
    return {"input_tokens": native.get("prompt_eval_count", 0), "output_tokens": native.get("eval_count", 0)}


def _head(request: Translated) -> Json:
    return {"id": request.id, "type": "message", "role": "assistant", "model": request.model}


def _event(name: str, **members: Any) -> Event:
    return Event({"type": name, **members}, name)
