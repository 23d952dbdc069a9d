"""Messages, tool calls and tools of a request, as all parts of the server know them.

A message has a role, a content that is one text, and of the other fields those that are not empty. What comes of other
protocols' habits (parts of content, arguments as JSON texts, lists for empty objects) is put right here.
"""

from __future__ import annotations

import json
from typing import Any

from rsllm.server.body import Body, refuse, refuse_constant
from rsllm.server.errors import ApiError

__all__ = ["read_message", "read_tool"]

_FIELDS = (
    "role", "content", "thinking", "images", "tool_calls", "tool_name", "tool_call_id", "name", "reasoning_content",
)  # fmt: skip


def read_message(value: Any, index: int) -> dict[str, Any]:
    """A message with the fields that are not empty; a content in parts becomes one text."""
    where = f"messages[{index}]"
    if not isinstance(value, dict):
        refuse(where, "an object", value)
    body = Body(value)
    message: dict[str, Any] = {}
    for name in _FIELDS:
        found = body.take(name)
        if found is None or found == []:
            continue
        if name == "content" and isinstance(found, list):
            found = _joined(found, where)
        if name == "tool_calls":
            calls = found if isinstance(found, list) else refuse(f"{where}.{name}", "a list", found)
            found = [_tool_call(call, f"{where}.{name}[{number}]") for number, call in enumerate(calls)]
        elif name != "images" and not isinstance(found, str):
            refuse(f"{where}.{name}", "a text", found)
        message[name] = found
    message["role"] = message.get("role", "").lower()
    if not message["role"]:
        raise ApiError(400, f"{where} has no role")
    message.setdefault("content", "")
    # Other protocols' names for the same.
    for theirs, ours in (("reasoning_content", "thinking"), ("name", "tool_name")):
        if theirs in message and (ours == "thinking" or message["role"] == "tool"):
            message.setdefault(ours, message.pop(theirs))
    return message


def _tool_call(value: Any, where: str) -> dict[str, Any]:
    """A call in the history. Arguments as a JSON text, which is OpenAI's form, are read too."""
    call = value if isinstance(value, dict) else refuse(where, "an object", value)
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise ApiError(400, f"{where} has no function with a name")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}", parse_constant=refuse_constant)
        except (ValueError, RecursionError):
            raise ApiError(400, f"field '{where}.function.arguments' is a text that is not JSON") from None
    if arguments is not None and not isinstance(arguments, dict):
        refuse(f"{where}.function.arguments", "an object", arguments)
    known: dict[str, Any] = {"id": call["id"]} if isinstance(call.get("id"), str) and call["id"] else {}
    index = {"index": function["index"]} if type(function.get("index")) is int else {}
    return {**known, "function": {**index, "name": function["name"], "arguments": arguments or {}}}


def read_tool(value: Any, where: str) -> dict[str, Any]:
    """A tool as it was sent, so that the template shows all of it; what clients leave out or empty is filled in."""
    tool = value if isinstance(value, dict) else refuse(where, "an object", value)
    function = tool.get("function")
    if function is not None and not isinstance(function, dict):
        refuse(f"{where}.function", "an object", function)
    function = dict(function or {})
    if function.get("name") is not None and not isinstance(function["name"], str):
        refuse(f"{where}.function.name", "a text", function["name"])
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        refuse(f"{where}.function.parameters", "an object", parameters)
    parameters = dict(parameters or {"type": "object"})
    properties = parameters.get("properties")
    if not properties:  # PHP writes an empty object as a list
        parameters["properties"] = {}
    elif not isinstance(properties, dict):
        refuse(f"{where}.function.parameters.properties", "an object", properties)
    return {"type": "function", **tool, "function": {**function, "parameters": parameters}}


def _joined(parts: list[Any], where: str) -> str:
    """The text of OpenAI's content parts."""
    texts = []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise ApiError(400, f"{where}.content: only parts of type text are supported")
        texts.append(text)
    return "\n".join(texts)
