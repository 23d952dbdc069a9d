"""A Go template: parsed, asked what it mentions, cut where the answer begins, and run.

A template that mentions neither `.Messages` nor `.Response` gets `{{ .Response }}` at its end, as in Ollama.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime

from rsllm.chat.go.budget import OUTPUT_LIMIT, Budget
from rsllm.chat.go.evaluator import execute
from rsllm.chat.go.functions import NAMES
from rsllm.chat.go.marks import Marks
from rsllm.chat.go.nodes import (
    Action,
    Branch,
    Chain,
    Command,
    Constant,
    Field,
    Inclusion,
    Node,
    Nodes,
    Operand,
    Pipe,
    Variable,
)
from rsllm.chat.go.parser import MAIN, parse
from rsllm.chat.go.values import Value
from rsllm.errors import TemplateError

__all__ = ["GoTemplate"]

_RESPONSE = Action(Pipe(1, (), False, (Command((Field(("Response",)),)),)))


class GoTemplate:
    """Immutable: it may run for many threads."""

    def __init__(self, source: str) -> None:
        """Parse `source`; raises `TemplateError` with the line."""
        self.source = source
        if len(source) > OUTPUT_LIMIT:
            raise TemplateError(f"the Go template has {len(source):,} characters; at most {OUTPUT_LIMIT:,} are read")
        templates = dict(parse(source, NAMES))
        self.fields = frozenset(name for nodes in templates.values() for name in _fields(nodes))
        """Each name that stands behind a dot anywhere."""
        self.strings = frozenset(text for nodes in templates.values() for text in _strings(nodes))
        """Each string that is an operand."""
        lowered = {name.lower() for name in self.fields}
        if not lowered & {"messages", "response"}:
            templates[MAIN] = (*templates[MAIN], _RESPONSE)
        self._templates: Mapping[str, Nodes] = templates
        self._cut = _cut(templates[MAIN])[0]

    def execute(
        self,
        data: Value,
        *,
        marks: Marks | None = None,
        now: Callable[[], datetime] = datetime.now,
        budget: Budget | None = None,
        cut: bool = False,
    ) -> str:
        """The text for `data`, with `cut` up to the answer. Raises `TemplateError`.

        >>> GoTemplate("{{ range .Messages }}<{{ .Role }}>{{ end }}").execute({"Messages": [{"Role": "user"}]})
        '<user>'
        """
        nodes = self._cut if cut else self._templates[MAIN]
        try:
            return execute(self._templates, nodes, data, marks=marks, now=now, budget=budget)
        except RecursionError as error:  # little of the stack was left when it began
            raise TemplateError("the Go template is nested too deeply") from error


def _cut(nodes: Nodes) -> tuple[Nodes, bool]:
    """`nodes` without all that follows the first printed `.Response`, and whether there is one."""
    kept: list[Node] = []
    found = False
    for node in nodes:
        if found:
            break
        if isinstance(node, Branch):
            body, found = _cut(node.body)
            otherwise, found = ((), True) if found else _cut(node.otherwise)
            node = Branch(node.kind, node.pipe, body, otherwise)
        elif isinstance(node, Action):
            found = any(
                isinstance(operand, Field) and "Response" in operand.names
                for command in node.pipe.commands
                for operand in command.operands
            )
        kept.append(node)
    return tuple(kept), found


def _pipes(nodes: Nodes) -> Iterator[Pipe]:
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if isinstance(node, Branch):
            waiting += [*node.body, *node.otherwise]
            yield node.pipe
        elif isinstance(node, Action) or (isinstance(node, Inclusion) and node.pipe is not None):
            yield node.pipe  # type: ignore[misc]


def _operands(nodes: Nodes) -> Iterator[Operand]:
    waiting: list[Operand] = list(_pipes(nodes))
    while waiting:
        operand = waiting.pop()
        yield operand
        if isinstance(operand, Pipe):
            waiting += [inner for command in operand.commands for inner in command.operands]
        elif isinstance(operand, Chain):
            waiting.append(operand.operand)


def _fields(nodes: Nodes) -> Iterable[str]:
    for operand in _operands(nodes):
        if isinstance(operand, Field | Variable | Chain):
            yield from operand.names


def _strings(nodes: Nodes) -> Iterable[str]:
    for operand in _operands(nodes):
        if isinstance(operand, Constant) and isinstance(operand.value, str):
            yield operand.value
