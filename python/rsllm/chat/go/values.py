"""Values that a Go template computes with, in Python's types.

`None` is nil, and what a missing key gives; `bool`, `int`, `float`, `str`, `list` and `dict` are themselves. Keys of
dictionaries are plain text even where the values are marked (`marks`). What Go keeps in structs is a `Struct`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["JsonDict", "JsonList", "PropertyType", "Struct", "items_of", "kind_of", "truth", "type_name"]

Value = Any


class Struct:
    """Named fields, printed as JSON. `json` says how: the key, the field, and whether it is left out when empty."""

    __slots__ = ("fields", "json")

    def __init__(self, fields: Mapping[str, Value], json: tuple[tuple[str, str, bool], ...]) -> None:
        self.fields = fields
        self.json = json

    def members(self) -> Iterator[tuple[str, Value]]:
        """What JSON shows of it."""
        for key, field, is_optional in self.json:
            value = self.fields.get(field)
            if not is_optional or truth(value) or value is False:
                yield key, value


class JsonDict(dict[str, Value]):
    """A dictionary that prints as JSON and not in Go's own form."""


class JsonList(list[Value]):
    """A list that prints as JSON and not in Go's own form."""


class PropertyType(list[str]):
    """The types of a property: one prints bare, several as JSON."""


def truth(value: Value) -> bool:
    """Whether `if` takes its first branch."""
    if isinstance(value, Struct):
        return True
    return bool(value)


def kind_of(value: Value) -> str:
    """What decides whether two values can be compared."""
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "bool"
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind.__name__
    return "other"


def type_name(value: Value) -> str:
    """The type's name in Go, for messages and `%T`."""
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, float, str)):
        return {"int": "int", "float": "float64", "str": "string"}[kind_of(value)]
    if isinstance(value, list):
        return "[]interface {}"
    return "map[string]interface {}" if isinstance(value, dict) else "struct"


def items_of(value: dict[str, Value]) -> list[tuple[str, Value]]:
    """In the order of the keys, as Go walks through maps."""
    return sorted(value.items(), key=lambda item: item[0])
