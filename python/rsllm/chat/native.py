"""Messages, tools and `think` of a native request as Jinja templates of published models know them.

Those templates were written for transformers: calls have an id and a type, what was thought stands in
`reasoning_content`, results of tools name the call that they answer, and whether to think is a variable. Ids that a
client left out are made up here, the same ones at each rendering, so that a prefix of a prompt stays the same.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["jinja_messages", "jinja_variables"]

Message = dict[str, Any]

# Mistral's templates refuse ids of any other length.
_NINE = re.compile(r"\blength *!= *9\b")
_THINKING_FIELD = re.compile(r"""\.thinking\b|\[['"]thinking['"]\]|['"]thinking['"] in """)
_XML_TOOLS = re.compile(r"\bxml_tools\b")
_THINKING_VARIABLE = re.compile(r"(?<![.\w'\"])thinking\b")


def jinja_messages(
    source: str, messages: Sequence[Mapping[str, Any]], *, arguments_as_text: bool = False
) -> list[Message]:
    """Copies of native messages for the template `source`; arguments of calls are objects, or JSON texts.

    >>> jinja_messages("", [{"role": "tool", "content": "3", "tool_name": "clock"}])
    [{'role': 'tool', 'content': '3', 'name': 'clock'}]
    """
    traits = _traits(source)
    short = traits.wants_short_ids
    # Calls that have no result yet: (name, id), in order.
    waiting: list[tuple[str, str]] = []
    found = []
    for index, message in enumerate(messages):
        copy = {name: value for name, value in message.items() if name not in ("images", "tool_name", "thinking")}
        if message.get("role") == "developer" and not traits.knows_developers:
            copy["role"] = "system"  # OpenAI's newer word for the same
        if message.get("thinking"):
            copy["reasoning_content"] = message["thinking"]
            if traits.has_thinking_field:
                copy["thinking"] = message["thinking"]
        if message.get("tool_calls"):
            copy["tool_calls"] = [
                _call(call, _id(call.get("id") or f"{index}.{number}", short=short), arguments_as_text)
                for number, call in enumerate(message["tool_calls"])
            ]
            waiting += [(call["function"]["name"], call["id"]) for call in copy["tool_calls"]]
        if message.get("role") == "tool":
            copy |= _answered(message, waiting, short)
        found.append(copy)
    return found


def jinja_variables(
    source: str, think: bool | str | None, tools: Sequence[Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """What the template `source` is told beside messages and tools. `think`: as it applies, unset for a template that
    does not think.

    >>> jinja_variables("", "low")
    {'enable_thinking': True, 'reasoning_effort': 'low'}
    """
    variables: dict[str, Any] = {}
    if think is not None:
        variables["enable_thinking"] = bool(think)
        if _traits(source).has_thinking_variable:
            variables["thinking"] = bool(think)
    if isinstance(think, str):
        # gpt-oss knows no more than that.
        variables["reasoning_effort"] = "high" if think == "max" and "<|channel|>" in source else think
    if tools and _traits(source).has_xml_tools:
        variables["xml_tools"] = list(tools)
    return variables


@dataclass(frozen=True)
class _Traits:
    """What a template asks for."""

    wants_short_ids: bool
    knows_developers: bool
    has_thinking_field: bool
    has_thinking_variable: bool
    has_xml_tools: bool


@functools.lru_cache(maxsize=64)
def _traits(source: str) -> _Traits:
    return _Traits(
        wants_short_ids=_NINE.search(source) is not None,
        knows_developers="developer" in source,
        has_thinking_field=_THINKING_FIELD.search(source) is not None,
        has_thinking_variable="enable_thinking" not in source and _THINKING_VARIABLE.search(source) is not None,
        has_xml_tools=_XML_TOOLS.search(source) is not None,
    )


def _call(call: Mapping[str, Any], call_id: str, as_text: bool) -> Message:
    name, arguments = call["function"]["name"], call["function"].get("arguments") or {}
    given = json.dumps(arguments, ensure_ascii=False) if as_text else arguments
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": given}}


def _answered(message: Mapping[str, Any], waiting: list[tuple[str, str]], short: bool) -> Message:
    """Name and id of the call that a result is for: by its id, else by its name, else the first without a result."""
    given, name = message.get("tool_call_id"), message.get("tool_name") or message.get("name")
    wanted = _id(given, short=short) if given else None
    position = next((i for i, (_, call_id) in enumerate(waiting) if call_id == wanted), None)
    if wanted is None:
        position = next((i for i, (called, _) in enumerate(waiting) if name in (None, called)), None)
    if position is not None:
        called, wanted = waiting.pop(position)
        name = name or called
    found = {"tool_call_id": wanted} if wanted else {}
    return found | ({"name": name} if name else {})


def _id(given: str, *, short: bool) -> str:
    """An id as the template takes it. A number in place of one becomes an id."""
    is_made_up = re.fullmatch(r"\d+\.\d+", given) is not None
    if short:
        plain = given.isascii() and given.isalnum() and len(given) == 9
        return given if plain else hashlib.sha256(given.encode(errors="replace")).hexdigest()[:9]
    return "call_" + hashlib.sha256(given.encode()).hexdigest()[:8] if is_made_up else given
