"""Runs the tree of a Go template: one object for one rendering, within its `Budget`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

from rsllm.chat.go.budget import Budget, failure
from rsllm.chat.go.formatting import Formatter
from rsllm.chat.go.functions import FUNCTIONS, Tools
from rsllm.chat.go.marks import Marks
from rsllm.chat.go.nodes import (
    Action,
    Branch,
    Chain,
    Command,
    Constant,
    Dot,
    Field,
    Function,
    Inclusion,
    Jump,
    Nodes,
    Operand,
    Pipe,
    Text,
    Variable,
)
from rsllm.chat.go.values import Struct, Value, items_of, truth, type_name

__all__ = ["NO_VALUE", "execute"]

NO_VALUE = "<no value>"
"""What Go prints for nil."""

_Variables = list[tuple[str, Value]]
_Signal = str | None
"""`break` or `continue` on its way to the loop."""


def execute(
    templates: Mapping[str, Nodes],
    nodes: Nodes,
    data: Value,
    *,
    marks: Marks | None = None,
    now: Callable[[], datetime] = datetime.now,
    budget: Budget | None = None,
) -> str:
    """What `nodes` put out for `data`, with `templates` to include. Raises `TemplateError` with a line."""
    run = _Run(templates, marks or Marks(), now, budget or Budget())
    run.walk(nodes, data, [("$", data)])
    return "".join(run.output)


class _Run:
    def __init__(
        self, templates: Mapping[str, Nodes], marks: Marks, now: Callable[[], datetime], budget: Budget
    ) -> None:
        self.output: list[str] = []
        self._templates = templates
        self._budget = budget
        self._marks = marks
        self._format = Formatter(marks, budget)
        self._tools = Tools(marks, budget, self._format, now)

    def walk(self, nodes: Nodes, dot: Value, variables: _Variables) -> _Signal:
        self._budget.enter()
        signal: _Signal = None
        for node in nodes:
            self._budget.tick()
            if isinstance(node, Text):
                self._put(node.text)
            elif isinstance(node, Action):
                self._budget.line = node.pipe.line
                value = self._pipe(node.pipe, dot, variables)
                if not node.pipe.variables:
                    self._put(NO_VALUE if value is None else self._format.show(value))
            elif isinstance(node, Branch):
                mark = len(variables)
                signal = self._range(node, dot, variables) if node.kind == "range" else self._if(node, dot, variables)
                del variables[mark:]
            elif isinstance(node, Inclusion):
                self._include(node, dot, variables)
            elif isinstance(node, Jump):
                signal = node.kind
            if signal is not None:
                break
        self._budget.leave()
        return signal

    def _put(self, text: str) -> None:
        self._budget.output(len(text))
        self.output.append(text)

    def _if(self, node: Branch, dot: Value, variables: _Variables) -> _Signal:
        value = self._pipe(node.pipe, dot, variables)
        if truth(value):
            return self.walk(node.body, value if node.kind == "with" else dot, variables)
        return self.walk(node.otherwise, dot, variables)

    def _range(self, node: Branch, dot: Value, variables: _Variables) -> _Signal:
        mark = len(variables)
        value = self._pipe(node.pipe, dot, variables, is_range=True)
        self._budget.line = node.pipe.line
        names = node.pipe.variables
        has_run = False
        if isinstance(value, int) and not isinstance(value, bool) and len(names) > 1:
            raise self._failure(f"can't use {value} to iterate over more than one variable")
        for index, item in self._items(value):
            has_run = True
            self._budget.tick()
            del variables[mark:]
            if names:
                values = (index, item) if len(names) > 1 else (item,)
                for name, loop_value in zip(names, values, strict=True):
                    if node.pipe.is_assignment:
                        self._assign(name, loop_value, variables)
                    else:
                        variables.append((name, loop_value))
            if self.walk(node.body, item, variables) == "break":
                break
        if not has_run:
            return self.walk(node.otherwise, dot, variables)
        return None

    def _items(self, value: Value) -> Iterable[tuple[Value, Value]]:
        if value is None:
            return ()
        if isinstance(value, int) and not isinstance(value, bool):
            return ((None, number) for number in range(value))
        if isinstance(value, list):
            return enumerate(value)
        if isinstance(value, dict):
            return ((self._marks.mark(key), item) for key, item in items_of(value))
        raise self._failure(f"range can't iterate over a value of type {type_name(value)}")

    def _include(self, node: Inclusion, dot: Value, variables: _Variables) -> None:
        self._budget.line = node.line
        if node.name not in self._templates:
            raise self._failure(f"template {node.name!r} is not defined")
        value = None if node.pipe is None else self._pipe(node.pipe, dot, variables)
        self.walk(self._templates[node.name], value, [("$", value)])

    # Pipelines.

    def _pipe(self, pipe: Pipe, dot: Value, variables: _Variables, *, is_range: bool = False) -> Value:
        self._budget.enter()
        self._budget.line = pipe.line
        value: Value = None
        for position, command in enumerate(pipe.commands):
            value = self._command(command, dot, variables, [value] if position else [])
        if not is_range:
            for name in pipe.variables:
                if pipe.is_assignment:
                    self._assign(name, value, variables)
                else:
                    variables.append((name, value))
        self._budget.leave()
        return value

    def _assign(self, name: str, value: Value, variables: _Variables) -> None:
        for position in range(len(variables) - 1, -1, -1):
            if variables[position][0] == name:
                variables[position] = (name, value)
                return
        raise self._failure(f"undefined variable {name!r}")

    def _command(self, command: Command, dot: Value, variables: _Variables, final: list[Value]) -> Value:
        first, *others = command.operands
        if isinstance(first, Function):
            return self._call(first.name, others, dot, variables, final)
        value = self._operand(first, dot, variables)
        if others or final:
            raise self._failure(f"arguments for a value of type {type_name(value)}, which is no function")
        return value

    def _call(self, name: str, operands: list[Operand], dot: Value, variables: _Variables, final: list[Value]) -> Value:
        if name in ("and", "or"):
            return self._logic(name == "or", operands, dot, variables, final)
        values = [*(self._operand(operand, dot, variables) for operand in operands), *final]
        try:
            result = FUNCTIONS[name](self._tools, values)
        except (ValueError, OverflowError) as error:
            raise self._failure(f"{name}: {error}") from error
        self._budget.tick()
        return result

    def _logic(
        self, is_or: bool, operands: list[Operand], dot: Value, variables: _Variables, final: list[Value]
    ) -> Value:
        if not operands and not final:
            raise self._failure(f"{'or' if is_or else 'and'}: wrong number of arguments: want at least 1, got 0")
        value: Value = None
        for operand in operands:
            value = self._operand(operand, dot, variables)
            if truth(value) == is_or:
                return value
        return final[0] if final else value

    def _operand(self, operand: Operand, dot: Value, variables: _Variables) -> Value:
        if isinstance(operand, Constant):
            return operand.value
        if isinstance(operand, Dot):
            return dot
        if isinstance(operand, Field):
            return self._fields(dot, operand.names)
        if isinstance(operand, Variable):
            return self._fields(self._variable(operand.name, variables), operand.names)
        if isinstance(operand, Function):
            return self._call(operand.name, [], dot, variables, [])
        if isinstance(operand, Chain):
            return self._fields(self._operand(operand.operand, dot, variables), operand.names)
        mark = len(variables)
        value = self._pipe(operand, dot, variables)
        del variables[mark:]
        return value

    def _variable(self, name: str, variables: _Variables) -> Value:
        for known, value in reversed(variables):
            if known == name:
                return value
        raise self._failure(f"undefined variable {name!r}")

    def _fields(self, value: Value, names: tuple[str, ...]) -> Value:
        for name in names:
            if value is None:
                return None
            if isinstance(value, Struct):
                value = value.fields.get(name)
            elif isinstance(value, dict):
                value = value.get(name)
            else:
                raise self._failure(f"can't evaluate field {name} in a value of type {type_name(value)}")
        return value

    def _failure(self, reason: str) -> Exception:
        return failure(reason, self._budget.line)
