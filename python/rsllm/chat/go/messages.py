"""Messages and tools of a request as the values that Go templates see, with the names and the order of Ollama's.

Requests come from outside: what is missing or of another type becomes Go's zero value, as a lenient decoder would have
it, and what is nested too deeply is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rsllm.chat.go.marks import Marks
from rsllm.chat.go.values import JsonDict, JsonList, PropertyType, Struct, Value
from rsllm.chat.taint import ROLES
from rsllm.errors import TemplateError

__all__ = ["message_value", "tools_value"]

_DEPTH_LIMIT = 64

_MESSAGE = (
    ("role", "Role", False), ("content", "Content", True), ("thinking", "Thinking", True), ("images", "Images", True),
    ("tool_calls", "ToolCalls", True), ("tool_name", "ToolName", True), ("tool_call_id", "ToolCallID", True),
)  # fmt: skip
_TEXTS = (("content", "Content"), ("thinking", "Thinking"), ("tool_name", "ToolName"), ("tool_call_id", "ToolCallID"))
_CALL = (("id", "ID", True), ("function", "Function", False))
_CALLED = (("index", "Index", False), ("name", "Name", False), ("arguments", "Arguments", False))
_TOOL = (("type", "Type", False), ("items", "Items", True), ("function", "Function", False))
_FUNCTION = (("name", "Name", False), ("description", "Description", True), ("parameters", "Parameters", False))
_PARAMETERS = (
    ("type", "Type", False), ("$defs", "Defs", True), ("items", "Items", True), ("required", "Required", True),
    ("properties", "Properties", False),
)  # fmt: skip
_PROPERTY = (
    ("anyOf", "AnyOf", True), ("type", "Type", True), ("items", "Items", True), ("description", "Description", True),
    ("enum", "Enum", True), ("properties", "Properties", True), ("required", "Required", True),
)  # fmt: skip


def message_value(message: Mapping[str, Any], marks: Marks) -> Struct:
    """One element of `.Messages`; what people wrote is marked, the role only where it is none of the protocol's."""
    role = _text(message.get("role"))
    fields = {
        "Role": role if role in ROLES else marks.mark(role),
        "Images": JsonList(_list(message.get("images"))),
        "ToolCalls": JsonList(_call(call, index, marks) for index, call in enumerate(_list(message.get("tool_calls")))),
    }
    for key, field in _TEXTS:
        fields[field] = marks.mark(_text(message.get(key)))
    return Struct(fields, _MESSAGE)


def tools_value(tools: Sequence[Any], marks: Marks) -> JsonList:
    """`.Tools`"""
    return JsonList(_tool(_mapping(tool), marks) for tool in tools)


def _call(call: Any, position: int, marks: Marks) -> Struct:
    call = _mapping(call)
    function = _mapping(call.get("function"))
    index = function.get("index")
    arguments = _plain(_mapping(function.get("arguments")), marks)
    called = {
        "Index": index if isinstance(index, int) else position,
        "Name": marks.mark(_text(function.get("name"))),
        "Arguments": JsonDict(arguments),
    }
    return Struct({"ID": marks.mark(_text(call.get("id"))), "Function": Struct(called, _CALLED)}, _CALL)


def _tool(tool: Mapping[str, Any], marks: Marks) -> Struct:
    function = _mapping(tool.get("function"))
    fields = {
        "Name": marks.mark(_text(function.get("name"))),
        "Description": marks.mark(_text(function.get("description"))),
        "Parameters": _parameters(_mapping(function.get("parameters")), marks),
    }
    kind = _text(tool.get("type"))
    return Struct(
        {
            "Type": kind if kind == "function" else marks.mark(kind),
            "Items": _plain(tool.get("items"), marks),
            "Function": Struct(fields, _FUNCTION),
        },
        _TOOL,
    )


def _parameters(parameters: Mapping[str, Any], marks: Marks) -> Struct:
    fields = {
        "Type": marks.mark(_text(parameters.get("type"))),
        "Defs": _plain(parameters.get("$defs"), marks),
        "Items": _plain(parameters.get("items"), marks),
        "Required": _plain(_list(parameters.get("required")), marks),
        "Properties": _properties(parameters.get("properties"), marks, 0),
    }
    return Struct(fields, _PARAMETERS)


def _properties(properties: Any, marks: Marks, depth: int) -> JsonDict:
    return JsonDict({str(name): _property(_mapping(item), marks, depth) for name, item in _mapping(properties).items()})


def _property(item: Mapping[str, Any], marks: Marks, depth: int) -> Struct:
    _check_depth(depth)
    kinds = item.get("type")
    kinds = [kinds] if isinstance(kinds, str) else _list(kinds)
    fields = {
        "AnyOf": [_property(_mapping(choice), marks, depth + 1) for choice in _list(item.get("anyOf"))],
        "Type": PropertyType(marks.mark(kind) for kind in kinds if isinstance(kind, str)),
        "Items": _plain(item.get("items"), marks),
        "Description": marks.mark(_text(item.get("description"))),
        "Enum": _plain(_list(item.get("enum")), marks),
        "Properties": _properties(item.get("properties"), marks, depth + 1),
        "Required": _plain(_list(item.get("required")), marks),
    }
    return Struct(fields, _PROPERTY)


def _plain(value: Any, marks: Marks, depth: int = 0) -> Value:
    """JSON as it is, with its strings marked."""
    _check_depth(depth)
    if isinstance(value, str):
        return marks.mark(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item, marks, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, marks, depth + 1) for item in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    raise TemplateError(f"messages and tools are made of JSON types, not of {type(value).__name__}")


def _check_depth(depth: int) -> None:
    if depth > _DEPTH_LIMIT:
        raise TemplateError(f"messages and tools are nested more than {_DEPTH_LIMIT} deep")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
