"""Tokens of a Go template to its tree, with the checks that Go makes before anything runs.

Names of variables and functions must exist, `break` and `continue` stand in a `range`, a template is defined once. The
names of templates are looked up only when they are wanted, as in Go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Literal, NoReturn

from rsllm.chat.go import lexer
from rsllm.chat.go.constants import number, unquote
from rsllm.chat.go.lexer import KEYWORDS, Token, syntax_error
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
    Node,
    Nodes,
    Operand,
    Pipe,
    Text,
    Variable,
)

__all__ = ["DEPTH_LIMIT", "MAIN", "parse"]

DEPTH_LIMIT = 60
"""Most blocks, branches of `else if` and parentheses within each other."""
MAIN = ""
"""The name of the text outside of all `define`."""

_BranchKind = Literal["if", "with", "range"]


def parse(source: str, functions: Iterable[str]) -> Mapping[str, Nodes]:
    """The templates of `source` by name; its own text is `MAIN`. Raises `TemplateError`."""
    return _Parser(source, frozenset(functions)).run()


class _Parser:
    def __init__(self, source: str, functions: frozenset[str]) -> None:
        self._items: Iterator[str | lexer.Action] = lexer.tokenize(source)
        self._functions = functions
        self._variables = ["$"]
        self._templates: dict[str, Nodes] = {}
        self._depth = 0
        self._ranges = 0
        self._line = 1

    def run(self) -> Mapping[str, Nodes]:
        nodes, ending = self._list(top=True)
        if ending is not None:
            self._fail(f"unexpected {{{{{ending.word}}}}}", ending.line)
        self._templates[MAIN] = nodes
        return MappingProxyType(self._templates)

    # Lists of nodes.

    def _list(self, *, top: bool = False) -> tuple[Nodes, _Tokens | None]:
        """Nodes up to the `end` or `else` that is not theirs, and its tokens behind the word; `None` at the end."""
        nodes: list[Node] = []
        for item in self._items:
            if isinstance(item, str):
                nodes.append(Text(item))
                continue
            self._line = item.line
            tokens = _Tokens(item)
            if tokens.word in ("end", "else"):
                return tuple(nodes), tokens
            if tokens.word == "define":
                if not top:
                    self._fail("unexpected {{define}} inside of a block", item.line)
                self._define(tokens)
            else:
                nodes.append(self._node(tokens))
        return tuple(nodes), None

    def _node(self, tokens: _Tokens) -> Node:
        word, line = tokens.word, tokens.line
        if word in ("if", "with", "range"):
            return self._branch(word, tokens)  # type: ignore[arg-type]
        if word == "template":
            name, pipe = self._named(tokens, "template", may_lack_pipe=True)
            return Inclusion(name, pipe, line)
        if word == "block":
            name, pipe = self._named(tokens, "block", may_lack_pipe=False)
            self._add(name, self._body("block", line))
            return Inclusion(name, pipe, line)
        if word in ("break", "continue"):
            tokens.end(f"{{{{{word}}}}}")
            if not self._ranges:
                self._fail(f"{{{{{word}}}}} outside of {{{{range}}}}", line)
            return Jump(word)  # type: ignore[arg-type]
        return Action(self._pipe(tokens, "command"))

    def _branch(self, kind: _BranchKind, tokens: _Tokens) -> Branch:
        """From behind its word to its `end`; what it declares ends with it."""
        self._enter(tokens.line)
        mark = len(self._variables)
        line = tokens.line
        pipe = self._pipe(tokens, kind)
        self._ranges += kind == "range"
        body, ending = self._list()
        self._ranges -= kind == "range"
        otherwise: Nodes = ()
        if ending is not None and ending.word == "else":
            otherwise, ending = self._else(kind, ending)
        if ending is None:
            self._fail(f"{{{{{kind}}}}} has no {{{{end}}}}", line)
        ending.end("{{end}}")
        del self._variables[mark:]
        self._depth -= 1
        return Branch(kind, pipe, body, otherwise)

    def _else(self, kind: str, tokens: _Tokens) -> tuple[Nodes, _Tokens | None]:
        """What follows `else`, and the `end`, which one `else if` shares with the whole."""
        following = tokens.peek()
        if following.kind == "word" and following.text in ("if", "with") and following.text == kind:
            tokens.word = tokens.take().text
            branch = self._branch(kind, tokens)  # type: ignore[arg-type]
            return (branch,), _Tokens(lexer.Action((Token("end", "", self._line, False),), self._line))
        tokens.end("{{else}}")
        nodes, ending = self._list()
        if ending is not None and ending.word == "else":
            self._fail("{{else}} behind {{else}}", ending.line)
        return nodes, ending

    def _define(self, tokens: _Tokens) -> None:
        name = self._name(tokens, "define")
        tokens.end("{{define}}")
        self._add(name, self._body("define", tokens.line))

    def _body(self, kind: str, line: int) -> Nodes:
        """The text of a template of its own: it sees no variable and no loop of the text around it."""
        self._enter(line)
        variables, self._variables = self._variables, ["$"]
        ranges, self._ranges = self._ranges, 0
        nodes, ending = self._list()
        if ending is None:
            self._fail(f"{{{{{kind}}}}} has no {{{{end}}}}", line)
        if ending.word == "else":
            self._fail(f"unexpected {{{{else}}}} in {{{{{kind}}}}}", ending.line)
        ending.end("{{end}}")
        self._variables, self._ranges = variables, ranges
        self._depth -= 1
        return nodes

    def _add(self, name: str, nodes: Nodes) -> None:
        def is_empty(body: Nodes) -> bool:
            return all(isinstance(node, Text) and not node.text.strip() for node in body)

        if name in self._templates and not is_empty(self._templates[name]):
            if not is_empty(nodes):
                self._fail(f"template {name!r} is defined twice", self._line)
            return
        self._templates[name] = nodes

    def _named(self, tokens: _Tokens, kind: str, *, may_lack_pipe: bool) -> tuple[str, Pipe | None]:
        name = self._name(tokens, kind)
        if may_lack_pipe and tokens.peek().kind == "end":
            return name, None
        return name, self._pipe(tokens, kind)

    def _name(self, tokens: _Tokens, kind: str) -> str:
        token = tokens.take()
        if token.kind not in ("string", "raw"):
            self._fail(f"the name in {{{{{kind}}}}} is a string, not {token.text!r}", token.line)
        name = self._constant(token)
        if not isinstance(name, str) or not name:
            self._fail(f"the name in {{{{{kind}}}}} is empty", token.line)
        return name

    # Pipelines.

    def _pipe(self, tokens: _Tokens, context: str) -> Pipe:
        """Up to the `end` of the action or the parenthesis, which is taken."""
        line = tokens.peek().line
        names, is_assignment = self._declarations(tokens, context)
        commands: list[Command] = []
        while True:
            command = self._command(tokens)
            if commands and isinstance(command.operands[0], Constant | Dot):
                self._fail(f"stage {len(commands) + 1} of a pipeline cannot be called", line)
            commands.append(command)
            token = tokens.take()
            if token.kind in ("end", "close"):
                break
            if token.kind != "pipe":
                self._fail(f"unexpected {token.text!r} in {context}", token.line)
        if not is_assignment:
            self._variables += names
        return Pipe(line, names, is_assignment, tuple(commands))

    def _declarations(self, tokens: _Tokens, context: str) -> tuple[tuple[str, ...], bool]:
        names = [tokens.peek()]
        if names[0].kind != "variable":
            return (), False
        ahead = 1
        if context == "range" and tokens.peek(1).kind == "comma" and tokens.peek(2).kind == "variable":
            names.append(tokens.peek(2))
            ahead = 3
        operator = tokens.peek(ahead)
        if operator.kind == "comma":
            self._fail(f"too many variables in {context}", operator.line)
        if operator.kind not in ("declare", "assign"):
            return (), False
        for _ in range(ahead + 1):
            tokens.take()
        if operator.kind == "assign":
            for name in names:
                self._check_variable(name)
        return tuple(name.text for name in names), operator.kind == "assign"

    def _command(self, tokens: _Tokens) -> Command:
        operands: list[Operand] = []
        while tokens.peek().kind not in ("end", "close", "pipe"):
            token = tokens.peek()
            if operands and not token.spaced:
                self._fail(f"unexpected {token.text!r} in operand", token.line)
            operands.append(self._operand(tokens))
        if not operands:
            token = tokens.peek()
            self._fail("a value is missing" if token.kind != "pipe" else "unexpected '|'", token.line)
        if len(operands) > 1 and isinstance(operands[0], Constant | Dot | Pipe):
            self._fail("arguments for what is no function", tokens.peek().line)
        if operands == [Constant(None)]:
            self._fail("nil is not a command", tokens.peek().line)
        return Command(tuple(operands))

    def _operand(self, tokens: _Tokens) -> Operand:
        token = tokens.take()
        operand = self._term(token, tokens)
        names: list[str] = []
        while tokens.peek().kind == "field" and not tokens.peek().spaced:
            names.append(tokens.take().text[1:])
        if not names:
            return operand
        if isinstance(operand, Field):
            return Field((*operand.names, *names))
        if isinstance(operand, Variable):
            return Variable(operand.name, tuple(names))
        if isinstance(operand, Constant | Dot):
            self._fail(f"unexpected .{names[0]} behind {token.text!r}", token.line)
        return Chain(operand, tuple(names))

    def _term(self, token: Token, tokens: _Tokens) -> Operand:
        if token.kind == "field":
            return Field((token.text[1:],))
        if token.kind == "dot":
            return Dot()
        if token.kind == "variable":
            self._check_variable(token)
            return Variable(token.text, ())
        if token.kind == "open":
            self._enter(token.line)
            pipe = self._pipe(tokens, "parenthesized pipeline")
            self._depth -= 1
            return pipe
        if token.kind in ("string", "raw", "number", "character"):
            return Constant(self._constant(token))
        if token.kind == "word":
            return self._word(token)
        self._fail(f"unexpected {token.text!r} in operand", token.line)

    def _word(self, token: Token) -> Operand:
        if token.text in ("true", "false"):
            return Constant(token.text == "true")
        if token.text == "nil":
            return Constant(None)
        if token.text in KEYWORDS:
            self._fail(f"unexpected keyword {token.text!r}", token.line)
        if token.text not in self._functions:
            self._fail(f"function {token.text!r} is not defined", token.line)
        return Function(token.text)

    def _constant(self, token: Token) -> str | int | float:
        try:
            if token.kind == "number":
                return number(token.text)
            value = unquote(token.text)
        except ValueError as error:
            self._fail(str(error), token.line)
        return ord(value) if token.kind == "character" else value

    def _check_variable(self, token: Token) -> None:
        if token.text not in self._variables:
            self._fail(f"undefined variable {token.text!r}", token.line)

    def _enter(self, line: int) -> None:
        self._depth += 1
        if self._depth > DEPTH_LIMIT:
            self._fail(f"blocks or parentheses are nested more than {DEPTH_LIMIT} deep", line)

    def _fail(self, reason: str, line: int) -> NoReturn:
        raise syntax_error(reason, line)


class _Tokens:
    """The tokens of one action, behind its keyword."""

    def __init__(self, action: lexer.Action) -> None:
        self._tokens = action.tokens
        self._position = 0
        self.line = action.line
        first = self._tokens[0]
        self.word = first.text if first.kind == "word" and first.text in KEYWORDS - {"nil"} else ""
        self._position = 1 if self.word else 0

    def peek(self, ahead: int = 0) -> Token:
        return self._tokens[min(self._position + ahead, len(self._tokens) - 1)]

    def take(self) -> Token:
        token = self.peek()
        self._position += 1
        return token

    def end(self, context: str) -> None:
        token = self.peek()
        if token.kind != "end":
            raise syntax_error(f"unexpected {token.text!r} in {context}", token.line)
