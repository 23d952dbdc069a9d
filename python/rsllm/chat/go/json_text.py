"""JSON as Go's encoder writes it: compact, keys of maps sorted, `<`, `>` and `&` escaped, as are U+2028 and U+2029."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rsllm.chat.go.budget import Budget
from rsllm.chat.go.marks import Marks
from rsllm.chat.go.values import PropertyType, Struct, Value, items_of

__all__ = ["JsonWriter", "shortest"]

_ESCAPES = {
    **{chr(code): f"\\u{code:04x}" for code in range(0x20)},
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    '"': '\\"',
    "\\": "\\\\",
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}


class JsonWriter:
    """Writes values for one rendering."""

    def __init__(self, marks: Marks, budget: Budget) -> None:
        self._marks = marks
        self._budget = budget
        self._table = marks.table(_ESCAPES)

    def write(self, value: Value) -> str:
        """`value` as JSON; what people wrote stays marked."""
        parts = []
        for part in self._parts(value):
            self._budget.text(len(part))
            parts.append(part)
        self._budget.tick()
        return "".join(parts)

    def _parts(self, value: Value) -> Iterator[str]:
        if isinstance(value, str):
            yield self._string(value)
        elif isinstance(value, PropertyType) and len(value) == 1:
            yield self._string(value[0])
        elif isinstance(value, Struct):
            yield from self._object((key, item) for key, item in value.members())
        elif isinstance(value, dict):
            yield from self._object((self._marks.mark(key), item) for key, item in items_of(value))
        elif isinstance(value, list):
            yield from self._array(value)
        else:
            yield _scalar(value)

    def _string(self, text: str) -> str:
        return f'"{text.translate(self._table)}"'

    def _object(self, members: Iterator[tuple[str, Value]]) -> Iterator[str]:
        separator = "{"
        for key, value in members:
            yield f"{separator}{self._string(key)}:"
            yield from self._parts(value)
            separator = ","
        yield "}" if separator == "," else "{}"

    def _array(self, values: list[Value]) -> Iterator[str]:
        separator = "["
        for value in values:
            yield separator
            yield from self._parts(value)
            separator = ","
        yield "]" if separator == "," else "[]"


def _scalar(value: bool | int | float | None) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if not math.isfinite(value):
        raise ValueError(f"JSON has no number {value}")
    digits, exponent = shortest(value)
    if value != 0 and not -7 < exponent < 21:
        return _scientific(digits, exponent, value < 0)
    text = f"{value:.{max(len(digits) - 1 - exponent, 0)}f}"
    return text


def _scientific(digits: str, exponent: int, is_negative: bool) -> str:
    mantissa = digits[0] + ("." + digits[1:] if len(digits) > 1 else "")
    return f"{'-' if is_negative else ''}{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent)}"


def shortest(value: float) -> tuple[str, int]:
    """The fewest digits that mean exactly `value`, and the power of ten of the first.

    >>> shortest(0.0125)
    ('125', -2)
    """
    text = repr(abs(value))
    mantissa, _, exponent = text.partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    leading = len(whole) - 1 if whole.strip("0") else -(len(fraction) - len(fraction.lstrip("0"))) - 1
    return (digits.rstrip("0") or "0", leading + int(exponent or 0)) if digits else ("0", 0)
