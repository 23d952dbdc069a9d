"""OpenAI's responses, requests: `/v1/responses` as `/api/chat`. Nothing is kept between requests."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

from rsllm.server.body import refuse
from rsllm.server.dialects.common import (
    Fields,
    Json,
    Translated,
    effort,
    image_data,
    json_arguments,
    now,
    texts,
    tool_definition,
)
from rsllm.server.dialects.openai import set_tools
from rsllm.server.dialects.responses_replies import ResponseStream, response_reply
from rsllm.server.errors import ApiError

__all__ = ["ResponseStream", "response_reply", "response_request"]

_IDS = 999_999


def response_request(body: Mapping[str, Any]) -> Translated:
    """A response in native terms. Raises `ApiError` for what cannot be had."""
    fields = Fields(body)
    warnings: list[str] = []
    instructions, reasoning = fields.text("instructions"), fields.mapping("reasoning")
    native: Json = {"model": fields.text("model"), "stream": fields.flag("stream", False)}
    items = _messages(fields.take("input"), warnings)
    native["messages"] = [*([{"role": "system", "content": instructions}] if instructions else []), *items]
    temperature, top_p, most = fields.number("temperature"), fields.number("top_p"), fields.count("max_output_tokens")
    options = {"temperature": 1.0 if temperature is None else temperature, "top_p": top_p, "num_predict": most}
    native["options"] = {name: value for name, value in options.items() if value is not None}
    schema, think = _format(fields.mapping("text")), effort(reasoning.get("effort"))
    native |= ({} if schema is None else {"format": schema}) | ({} if think is None else {"think": think})
    native["truncate"] = _truncates(fields.text("truncation", default="disabled"))
    top = fields.count("top_logprobs")
    if top:
        native |= {"logprobs": True, "top_logprobs": top}
    declared = fields.items("tools")
    set_tools(native, _tools(declared, warnings), _choice(fields.take("tool_choice")))
    if not fields.flag("parallel_tool_calls", True):
        native["parallel_tool_calls"] = False
    fields.default_only("store", False)
    fields.default_only("background", False)
    number = random.randrange(_IDS)
    echo = {
        **_echo(body, reasoning),
        "number": number,
        "instructions": instructions or None,
        "tools": declared,
        "temperature": options["temperature"],
        "top_p": 1.0 if top_p is None else top_p,
        "max_output_tokens": most,
        "top_logprobs": top or 0,
        "parallel_tool_calls": native.get("parallel_tool_calls", True),
    }
    warned = (*dict.fromkeys(warnings), *fields.ignored())
    return Translated(native=native, id=f"resp_{number}", created=now(), warnings=warned, echo=echo)


def _echo(body: Mapping[str, Any], reasoning: Mapping[str, Any]) -> Json:
    """What the reply repeats as it was sent."""
    return {
        "truncation": body.get("truncation") or "disabled",
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "text": body.get("text") or {"format": {"type": "text"}},
    }


def _truncates(truncation: str) -> bool:
    if truncation not in ("auto", "disabled"):
        raise ApiError(400, f"truncation must be auto or disabled, not {truncation[:60]!r}")
    return truncation == "auto"


def _messages(value: Any, warnings: list[str]) -> list[Json]:
    if isinstance(value, str) and value:
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise ApiError(400, "input is required: a text or a list of items")
    history = _History(warnings)
    for item in value:
        history.add(item)
    return history.messages


class _History:
    """Items of a conversation, put together to native messages."""

    def __init__(self, warnings: list[str]) -> None:
        self.messages: list[Json] = []
        self._warnings = warnings
        self._names: dict[str, str] = {}
        self._thinking = ""

    def add(self, item: Any) -> None:
        """The next item."""
        if not isinstance(item, dict):
            refuse("input", "a list of items", item)
        kind = item.get("type") or ("message" if item.get("role") else None)
        if kind is None:
            raise ApiError(400, "input item missing required 'type' field")
        if kind == "message":
            self._message(item)
        elif kind == "function_call":
            self._call(item)
        elif kind == "function_call_output":
            self._output(item)
        elif kind == "reasoning":
            self._thinking = _thinking(item)
        elif kind == "web_search_call":
            self._warnings.append("items of type 'web_search_call' have no effect")
        else:
            raise ApiError(400, f'unknown input item type: "{str(kind)[:60]}"')

    def _message(self, item: Json) -> None:
        message: Json = {"role": item.get("role", ""), **_content(item.get("content"))}
        self.messages.append(self._with_thinking(message))

    def _call(self, item: Json) -> None:
        name, call_id = item.get("name"), item.get("call_id")
        if not isinstance(name, str) or not name:
            raise ApiError(400, "a function_call item has no name")
        call: Json = {"function": {"name": name, "arguments": json_arguments(item.get("arguments") or "{}")}}
        if isinstance(call_id, str):
            call["id"] = call_id
            self._names[call_id] = name
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append(self._with_thinking({"role": "assistant", "content": ""}))
        self.messages[-1].setdefault("tool_calls", []).append(call)

    def _output(self, item: Json) -> None:
        call_id = item.get("call_id")
        message: Json = {"role": "tool", **_content(item.get("output"))}
        if isinstance(call_id, str):
            message["tool_call_id"] = call_id
            message |= {"tool_name": self._names[call_id]} if call_id in self._names else {}
        self.messages.append(message)

    def _with_thinking(self, message: Json) -> Json:
        if self._thinking and message["role"] == "assistant":
            message["thinking"], self._thinking = self._thinking, ""
        return message


def _thinking(item: Json) -> str:
    """Of an item that this server has made itself: as it is; of others, their summary."""
    if isinstance(item.get("encrypted_content"), str) and item["encrypted_content"]:
        return str(item["encrypted_content"])
    summary = item.get("summary")
    parts = summary if isinstance(summary, list) else []
    return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


def _content(content: Any) -> Json:
    if content is None or isinstance(content, str):
        return {"content": content or ""}
    if not isinstance(content, list):
        refuse("content", "a text or a list of parts", content)
    said, images = [], []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("input_text", "output_text", "text", "refusal"):
            said.append(str(part.get("text", part.get("refusal", ""))))
        elif kind == "input_image":
            images.append(image_data(part.get("image_url")))
        elif kind == "input_file":
            raise ApiError(400, "file inputs are not currently supported")
        else:
            raise ApiError(400, f"unknown content type: {str(kind)[:60]}")
    return {"content": texts(said)} | ({"images": images} if images else {})


def _format(text: Json) -> Any:
    given = text.get("format")
    kind = given.get("type", "text") if isinstance(given, dict) else "text"
    if kind == "json_schema" and isinstance(given, dict):
        schema = given.get("schema")
        return schema if isinstance(schema, dict) else refuse("text.format.schema", "an object", schema)
    if kind not in ("text", "json_object"):
        raise ApiError(400, f"text.format.type must be text, json_object or json_schema, not {str(kind)[:60]!r}")
    return "json" if kind == "json_object" else None


def _tools(declared: list[Any], warnings: list[str], prefix: str = "") -> list[Json]:
    tools = []
    for index, tool in enumerate(declared):
        where = f"tools[{index}]"
        if not isinstance(tool, dict):
            refuse(where, "an object", tool)
        kind = tool.get("type")
        if kind == "function":
            name = prefix + tool["name"] if isinstance(tool.get("name"), str) else None
            tools.append(tool_definition(name, tool.get("description"), tool.get("parameters"), where))
        elif kind == "namespace" and isinstance(tool.get("tools"), list) and isinstance(tool.get("name"), str):
            if not prefix:
                tools += _tools(tool["tools"], warnings, f"{tool['name']}.")
        else:
            warnings.append(f"the tool of type {str(kind)[:60]!r} has no effect: this server runs no tools itself")
    return tools


def _choice(choice: Any) -> Any:
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "function" and isinstance(choice.get("name"), str):
        return "named", choice["name"]
    raise ApiError(400, f"tool_choice is not supported in this form: {json.dumps(choice)[:80]}")
