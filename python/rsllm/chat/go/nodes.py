"""The tree of a Go template. Nodes are immutable, so that one template may run for many threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "Action",
    "Branch",
    "Chain",
    "Command",
    "Constant",
    "Dot",
    "Field",
    "Function",
    "Inclusion",
    "Jump",
    "Node",
    "Nodes",
    "Operand",
    "Pipe",
    "Text",
    "Variable",
]


@dataclass(frozen=True, slots=True)
class Dot:
    """`.`"""


@dataclass(frozen=True, slots=True)
class Constant:
    """A string, a number, `true`, `false` or `nil` (`None`)."""

    value: str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Field:
    """`.A.B`"""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """`$x.A.B`"""

    name: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """The name of a function."""

    name: str


@dataclass(frozen=True, slots=True)
class Chain:
    """`(…).A.B`, `f.A`"""

    operand: Operand
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Command:
    """An operand and its arguments."""

    operands: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pipe:
    """`$x := a | b c`"""

    line: int
    variables: tuple[str, ...]
    is_assignment: bool
    """The variables exist already (`=`)."""
    commands: tuple[Command, ...]


Operand = Dot | Constant | Field | Variable | Function | Chain | Pipe


@dataclass(frozen=True, slots=True)
class Text:
    """Text outside of actions."""

    text: str


@dataclass(frozen=True, slots=True)
class Action:
    """A pipeline whose value is printed, unless it sets variables."""

    pipe: Pipe


@dataclass(frozen=True, slots=True)
class Branch:
    """`if`, `with` and `range`."""

    kind: Literal["if", "with", "range"]
    pipe: Pipe
    body: Nodes
    otherwise: Nodes


@dataclass(frozen=True, slots=True)
class Inclusion:
    """`{{ template "name" pipe }}`"""

    name: str
    pipe: Pipe | None
    line: int


@dataclass(frozen=True, slots=True)
class Jump:
    """`{{ break }}` and `{{ continue }}`"""

    kind: Literal["break", "continue"]


Node = Text | Action | Branch | Inclusion | Jump
Nodes = tuple[Node, ...]
