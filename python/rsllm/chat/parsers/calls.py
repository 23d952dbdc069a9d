"""Which calls a decoded JSON value stands for, in all the shapes that models write them.

`{"name": …, "arguments": {…}}`, `parameters` in place of `arguments`, the whole in a `function` or `tool_call` member,
`tool_name`, a list of any of them, `{"<tool>": {…}}`. Only declared tools are called.
"""

from __future__ import annotations

from typing import Any

from rsllm.chat.parsers.json_text import load
from rsllm.chat.parsers.parts import ToolSet

__all__ = ["CALL_KEYS", "Call", "NotACall", "arguments_of", "calls_in", "declared"]

Call = tuple[str, dict[str, Any]]

_NAME_KEYS = ("name", "tool_name", "function", "tool")
_ARGUMENT_KEYS = ("arguments", "parameters", "args")
_WRAPPERS = ("function", "tool_call", "tool_calls", "function_call")
# Members beside a name that say nothing about the arguments.
_SIDE_KEYS = frozenset({"id", "type", "tool_call_id", "index"})

CALL_KEYS = frozenset({*_NAME_KEYS, *_ARGUMENT_KEYS, *_WRAPPERS, *_SIDE_KEYS})
"""Keys that an object may begin with which is a call."""


class NotACall(ValueError):
    """The value is something else; `meant` tells that it looks like a call all the same."""

    def __init__(self, reason: str, *, meant: bool = True) -> None:
        super().__init__(reason)
        self.meant = meant


def calls_in(value: Any, tools: ToolSet) -> list[Call]:
    """The calls that `value` stands for; raises `NotACall` if any of it is none.

    >>> calls_in({"name": "clock"}, ToolSet([{"function": {"name": "clock"}}]))
    [('clock', {})]
    """
    if isinstance(value, list):
        if not value:
            raise NotACall("an empty list", meant=False)
        return [call for item in value for call in calls_in(item, tools)]
    if not isinstance(value, dict):
        raise NotACall(f"{type(value).__name__} in place of an object", meant=False)
    for wrapper in _WRAPPERS:
        if isinstance(value.get(wrapper), (dict, list)):
            return calls_in(value[wrapper], tools)
    name = next((value[key] for key in _NAME_KEYS if isinstance(value.get(key), str)), None)
    if name is None:
        return [_keyed(value, tools)]
    key = next((key for key in _ARGUMENT_KEYS if key in value), None)
    if key is None and not set(value) <= {*_NAME_KEYS, *_SIDE_KEYS}:
        raise NotACall("a name without arguments", meant=False)
    if key is None and tools.find(name) is None:
        raise NotACall(f"there is no tool {name[:60]!r}", meant=False)
    return [(declared(name, tools), arguments_of(value[key]) if key else {})]


def declared(name: str, tools: ToolSet) -> str:
    """The tool that `name` means; raises `NotACall` if there is none."""
    found = tools.find(name)
    if found is None:
        raise NotACall(f"there is no tool {name.strip()[:60]!r}")
    return found


def arguments_of(value: Any) -> dict[str, Any]:
    """Arguments as an object: as they are, or from the JSON text of one; none for null. Raises `NotACall`."""
    if isinstance(value, str) and value.strip():
        try:
            value = load(value)
        except ValueError:
            raise NotACall("the arguments are a text that is not JSON") from None
    if value is None or value == "":
        return {}
    if not isinstance(value, dict):
        raise NotACall("the arguments are not an object")
    return value


def _keyed(value: dict[str, Any], tools: ToolSet) -> Call:
    """`{"<tool>": {…}}`."""
    if len(value) == 1:
        [(key, arguments)] = value.items()
        if isinstance(arguments, dict) and (name := tools.find(key)) is not None:
            return name, arguments
    raise NotACall("an object without a name", meant=False)
