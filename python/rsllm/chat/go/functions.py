"""The functions of Go's templates, and those that Ollama adds.

Each takes what a rendering keeps (`Tools`) and the values of its arguments. A wrong argument is a `ValueError`, and the
evaluator adds the line. `and` and `or` are the evaluator's, since they stop early.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import quote_plus

from rsllm.chat.go.budget import Budget
from rsllm.chat.go.formatting import Formatter
from rsllm.chat.go.marks import Marks
from rsllm.chat.go.values import PropertyType, Struct, Value, kind_of, truth, type_name

__all__ = ["FUNCTIONS", "NAMES", "Tools"]

_HTML = {"\0": "\ufffd", '"': "&#34;", "'": "&#39;", "&": "&amp;", "<": "&lt;", ">": "&gt;"}
_SCRIPT = {
    **{chr(code): f"\\u{code:04X}" for code in range(0x20)},
    "\\": "\\\\", "'": "\\'", '"': '\\"', "<": "\\u003C", ">": "\\u003E", "&": "\\u0026", "=": "\\u003D",
}  # fmt: skip


@dataclass(frozen=True)
class Tools:
    """What functions need of a rendering."""

    marks: Marks
    budget: Budget
    format: Formatter
    now: Callable[[], datetime]


_Function = Callable[[Tools, Sequence[Value]], Value]


def _not(tools: Tools, values: Sequence[Value]) -> Value:
    (value,) = _counted(values, 1, 1)
    return not truth(value)


def _equal(tools: Tools, values: Sequence[Value]) -> Value:
    first, *others = _counted(values, 2)
    return any(_same(tools, first, other) for other in others)


def _unequal(tools: Tools, values: Sequence[Value]) -> Value:
    first, second = _counted(values, 2, 2)
    return not _same(tools, first, second)


def _same(tools: Tools, first: Value, second: Value) -> bool:
    first, second = _comparable(first), _comparable(second)
    kinds = kind_of(first), kind_of(second)
    if "nil" in kinds:
        return kinds == ("nil", "nil")
    if kinds[0] != kinds[1]:
        raise ValueError(f"incompatible types for comparison: {type_name(first)} and {type_name(second)}")
    if kinds[0] == "str":
        return tools.marks.plain(first) == tools.marks.plain(second)
    if kinds[0] == "other":
        if isinstance(first, Struct) and isinstance(second, Struct):
            return first is second
        raise ValueError(f"values of type {type_name(first)} cannot be compared")
    return bool(first == second)


def _comparable(value: Value) -> Value:
    """A single type of a property is as good as its name."""
    return value[0] if isinstance(value, PropertyType) and len(value) == 1 else value


def _less(tools: Tools, values: Sequence[Value]) -> bool:
    first, second = _counted(values, 2, 2)
    kind = kind_of(first)
    if kind != kind_of(second):
        raise ValueError(f"incompatible types for comparison: {type_name(first)} and {type_name(second)}")
    if kind == "str":
        return tools.marks.plain(first) < tools.marks.plain(second)
    if kind not in ("int", "float"):
        raise ValueError(f"values of type {type_name(first)} have no order")
    return bool(first < second)


def _less_or_equal(tools: Tools, values: Sequence[Value]) -> Value:
    return _less(tools, values) or _same(tools, values[0], values[1])


def _length(tools: Tools, values: Sequence[Value]) -> Value:
    (value,) = _counted(values, 1, 1)
    if isinstance(value, str):
        return len(_bytes(tools, value))
    if isinstance(value, (list, dict)):
        return len(value)
    raise ValueError(f"len of type {type_name(value)}")


def _index(tools: Tools, values: Sequence[Value]) -> Value:
    value, *indexes = _counted(values, 1)
    for index in indexes:
        if isinstance(value, dict):
            if not isinstance(index, str):
                raise ValueError(f"the keys of a map are strings, not {type_name(index)}")
            value = value.get(tools.marks.plain(index))
        elif isinstance(value, list):
            value = value[_position(index, len(value) - 1)]
        elif isinstance(value, str):
            data = _bytes(tools, value)
            value = data[_position(index, len(data) - 1)]
        else:
            raise ValueError(f"{type_name(value)} has no index")
    return value


def _slice(tools: Tools, values: Sequence[Value]) -> Value:
    value, *bounds = _counted(values, 1, 4)
    if isinstance(value, str):
        if len(bounds) == 3:
            raise ValueError("a string cannot be sliced with 3 indexes")
        return _text_slice(tools, value, bounds)
    if not isinstance(value, list):
        raise ValueError(f"{type_name(value)} cannot be sliced")
    start, end = _bounds(bounds, len(value))
    tools.budget.text(8 * (end - start))
    return type(value)(value[start:end])


def _text_slice(tools: Tools, text: str, bounds: Sequence[Value]) -> str:
    """Go counts bytes; a character that a bound cuts is left out."""
    data = _bytes(tools, text)
    start, end = _bounds(bounds, len(data))
    is_cut = start < len(data) and data[start] & 0xC0 == 0x80
    first = len(data[:start].decode(errors="ignore")) + is_cut
    while start < end and data[start] & 0xC0 == 0x80:
        start += 1
    kept = len(data[start:end].decode(errors="ignore"))
    return text[first : first + kept]


def _bounds(bounds: Sequence[Value], length: int) -> tuple[int, int]:
    positions = [_position(bound, length) for bound in bounds]
    start = positions[0] if positions else 0
    end = positions[1] if len(positions) > 1 else length
    if positions != sorted(positions):
        raise ValueError(f"invalid slice index: {start} > {end}")
    return start, end


def _position(value: Value, limit: int) -> int:
    if value is None or isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"an index is an integer, not {type_name(value)}")
    if not 0 <= value <= limit:
        raise ValueError(f"index out of range: {value}")
    return value


def _printf(tools: Tools, values: Sequence[Value]) -> Value:
    pattern, *others = _counted(values, 1)
    if not isinstance(pattern, str):
        raise ValueError(f"the pattern of printf is a string, not {type_name(pattern)}")
    return tools.format.printf(pattern, others)


def _print(tools: Tools, values: Sequence[Value]) -> Value:
    return tools.format.print(values)


def _println(tools: Tools, values: Sequence[Value]) -> Value:
    return tools.format.println(values)


def _html(tools: Tools, values: Sequence[Value]) -> Value:
    text = tools.format.print(values)
    tools.budget.text(len(text) * 5)
    return text.translate(tools.marks.table(_HTML))


def _script(tools: Tools, values: Sequence[Value]) -> Value:
    text = tools.format.print(values)
    tools.budget.text(len(text) * 6)
    escaped = text.translate(tools.marks.table(_SCRIPT))
    if escaped.isascii():
        return escaped
    strange = {
        character: f"\\u{ord(character):04X}" for character in set(tools.marks.plain(escaped))
        if not character.isprintable()
    }  # fmt: skip
    return escaped.translate(tools.marks.table(strange)) if strange else escaped


def _query(tools: Tools, values: Sequence[Value]) -> Value:
    text = tools.format.print(values)
    tools.budget.text(len(text) * 12)
    return tools.marks.rewritten(text, lambda plain: quote_plus(plain, safe="~", errors="replace"))


def _call(tools: Tools, values: Sequence[Value]) -> Value:
    first, *_ = _counted(values, 1)
    raise ValueError(f"call of a value of type {type_name(first)}, which is no function")


def _json(tools: Tools, values: Sequence[Value]) -> Value:
    (value,) = _counted(values, 1, 1)
    return tools.format.json.write(value)


def _current_date(tools: Tools, values: Sequence[Value]) -> Value:
    return tools.now().strftime("%Y-%m-%d")


def _yesterday_date(tools: Tools, values: Sequence[Value]) -> Value:
    return (tools.now() - timedelta(days=1)).strftime("%Y-%m-%d")


_SCRIPT_TYPES = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "array": "any[]",
    "object": "Record<string, any>",
    "null": "null",
}


def _typescript(tools: Tools, values: Sequence[Value]) -> Value:
    (value,) = _counted(values, 1, 1)
    return " | ".join(_typescript_types(tools, value)) or "any"


def _typescript_types(tools: Tools, value: Value) -> list[str]:
    if not isinstance(value, Struct):
        raise ValueError(f"toTypeScriptType of type {type_name(value)}, which is no property of a tool")
    alternatives = value.fields.get("AnyOf") or []
    if alternatives:
        return [kind for alternative in alternatives for kind in _typescript_types(tools, alternative)]
    names = value.fields.get("Type") or []
    return [_SCRIPT_TYPES.get(tools.marks.plain(name), "any") for name in names] or ["any"]


def _bytes(tools: Tools, text: str) -> bytes:
    tools.budget.tick()
    return tools.marks.plain(text).encode(errors="surrogatepass")


def _counted(values: Sequence[Value], least: int, most: int | None = None) -> Sequence[Value]:
    if len(values) < least or (most is not None and len(values) > most):
        wanted = str(least) if most == least else f"at least {least}" if most is None else f"{least} to {most}"
        raise ValueError(f"wrong number of arguments: want {wanted}, got {len(values)}")
    return values


FUNCTIONS: Mapping[str, _Function] = {
    "call": _call,
    "currentDate": _current_date,
    "eq": _equal,
    "ge": lambda tools, values: not _less(tools, values),
    "gt": lambda tools, values: not _less_or_equal(tools, values),
    "html": _html,
    "index": _index,
    "js": _script,
    "json": _json,
    "le": _less_or_equal,
    "len": _length,
    "lt": _less,
    "ne": _unequal,
    "not": _not,
    "print": _print,
    "printf": _printf,
    "println": _println,
    "slice": _slice,
    "toTypeScriptType": _typescript,
    "urlquery": _query,
    "yesterdayDate": _yesterday_date,
}
NAMES = frozenset(FUNCTIONS) | {"and", "or"}
