"""A tool call that is required, as a constraint on the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rsllm.server.body import refuse
from rsllm.server.errors import ApiError

__all__ = ["forced_call", "is_forced_call"]

Json = dict[str, Any]


def forced_call(tools: Sequence[Mapping[str, Any]], name: str | None) -> Json:
    """A schema that leaves the model nothing but to call a tool, the one called `name` if that is given.

    The parser of tool calls reads such an object in every notation.
    """
    chosen = [tool["function"] for tool in tools if name is None or tool["function"]["name"] == name]
    if not chosen:
        raise ApiError(400, f"tool_choice names the tool {name!r}, which is not in tools" if name else
                       "tool_choice requires a tool call, and there are no tools")  # fmt: skip
    definitions: dict[str, Json] = {}
    branches = [_call_schema(function, definitions) for function in chosen]
    schema = branches[0] if len(branches) == 1 else {"anyOf": branches}
    return {**schema, **definitions}


def is_forced_call(schema: Any, tools: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a format is one that `forced_call` has made of these tools."""
    if not isinstance(schema, dict):
        return False
    names = [None, *(tool["function"].get("name") for tool in tools)]
    try:
        return any(forced_call(tools, name) == schema for name in names)
    except ApiError:
        return False


def _call_schema(function: Mapping[str, Any], definitions: dict[str, Json]) -> Json:
    parameters = dict(function["parameters"])
    for key in ("$defs", "definitions"):  # references begin at the root
        own = parameters.pop(key, None) or {}
        if not isinstance(own, dict):
            refuse(f"tools.function.parameters.{key}", "an object", own)
        for name, schema in own.items():
            known = definitions.setdefault(key, {})
            if known.setdefault(name, schema) != schema:
                raise ApiError(400, f"tool_choice cannot be met: two tools define {key}/{name} differently")
    parameters.setdefault("type", "object")
    return {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, "arguments": parameters},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }
