"""The Jinja environment that chat templates run in: what transformers gives them, and limits.

Chat templates come with model files, so they are programs written by strangers. The language is Jinja2's own, in its
immutable sandbox, with the settings, filters and globals that transformers uses: what renders there renders here, to
the same bytes. Around it stand limits that no real template comes near:

- time: `TIME_LIMIT_SECONDS` of this thread's processor time, looked at in each round of each loop and in each call;
- size: no string and no nest of lists and dictionaries larger than `SIZE_LIMIT`, looked at *before* an operation that
  multiplies (`*`, `%`, `center`, `replace`, `join`…) and after every other one. Since every value that exists is
  bounded, so is the time of each single operation between two looks at the clock.

Jinja2 itself bounds only `range`. Exceeding a limit, and touching what the sandbox forbids, is an error with a line.
"""

from __future__ import annotations

import functools
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator
from jinja2.compiler import Frame as CompilerFrame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, generate_lorem_ipsum

__all__ = ["SIZE_LIMIT", "TIME_LIMIT_SECONDS", "LimitError", "Refusal", "TemplateEnvironment"]

TIME_LIMIT_SECONDS = 0.5
SIZE_LIMIT = 8 * 2**20
"""Most characters in a string, most characters and items in a nest of containers: over 2 million tokens of text."""
PADDING_LIMIT = 10_000
"""Largest number handed to a filter or a method that pads, indents or repeats, and in a format's width."""
INTEGER_BITS_LIMIT = 4096


# A container counts as this many characters: about its memory, and the time it takes to walk through.
_CONTAINER_WEIGHT = 64


class LimitError(jinja2.TemplateError):
    """A template used too much time or space."""


class Refusal(jinja2.TemplateError):
    """The template itself refuses the messages, by `raise_exception`."""


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """One environment serves one template. It may be used from several threads; each has its own clock."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self, now: Callable[[], datetime] = datetime.now) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols])
        self.code_generator_class = _LimitedCode
        self._clock = threading.local()
        for name, function in list(self.filters.items()):
            self.filters[name] = self._limited(name, function)
        self.filters["tojson"] = self._to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda format: now().strftime(format)
        self.globals["dict"] = _SafeDict()
        self.globals["namespace"] = _SafeNamespace
        self.globals["lipsum"] = _short_lipsum

    def start_clock(self) -> None:
        """Begin a rendering in this thread."""
        self._clock.deadline = time.thread_time() + TIME_LIMIT_SECONDS

    def tick(self) -> str:
        """Called in each round of a loop; raises `LimitError` when the time is up. Renders as nothing."""
        if time.thread_time() > getattr(self._clock, "deadline", float("inf")):
            raise LimitError(f"the template ran longer than {TIME_LIMIT_SECONDS:g} s")
        return ""

    # What the compiled template calls. Each looks before it multiplies, or weighs what came out.

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        __self.tick()
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps `str.format`
        text = getattr(method, "__self__", None)
        if isinstance(text, str):
            _check_string_method(text, getattr(method, "__name__", ""), args, kwargs)
        return check_size(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.tick()
        _check_operator(operator, left, right)
        return check_size(super().call_binop(context, operator, left, right))

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """What a macro, a `set` block or a filter block has put out."""
        texts = list(parts)
        _check_length(sum(map(len, texts)))
        return "".join(texts)

    def concat_limited(self, parts: tuple[Any, ...]) -> str:
        """The `~` operator."""
        self.tick()
        texts = [str(check_size(part)) for part in parts]
        _check_length(sum(map(len, texts)))
        return "".join(texts)

    def container_limited(self, value: Any) -> Any:
        """A list, tuple or dictionary that the template has just written down."""
        self.tick()
        return check_size(value)

    def _limited(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)  # carries over the marks of pass_context and its kin
        def limited(*args: Any, **kwargs: Any) -> Any:
            self.tick()
            _check_filter(name, args, kwargs)
            args = tuple(self._counted(value) if hasattr(value, "__next__") else value for value in args)
            return check_size(function(*args, **kwargs))

        return limited

    def _counted(self, items: Iterable[Any]) -> Iterable[Any]:
        """What `map` and its kin produce, weighed as it is consumed."""
        total = 0
        for item in items:
            self.tick()
            total += len(item) if isinstance(item, str) else 1
            _check_length(total)
            yield item

    def _to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        # json.dumps as transformers calls it: no HTML escapes, keys in their order.
        self.tick()
        _check_padding(indent if isinstance(indent, int) else len(indent or ""))
        check_size(value)
        text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        _check_length(len(text))
        return text


class _LimitedCode(CodeGenerator):
    """Jinja2's compiler, with a look at the clock in each loop and at the size of what is put together."""

    def visit_For(self, node: nodes.For, frame: CompilerFrame) -> None:
        node.body.insert(0, _tick(node.lineno))
        super().visit_For(node, frame)

    def macro_body(self, node: Any, frame: CompilerFrame) -> Any:
        node.body.insert(0, _tick(node.lineno))
        return super().macro_body(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: CompilerFrame) -> None:
        self.write("environment.concat_limited((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_List(self, node: nodes.List, frame: CompilerFrame) -> None:
        self._limited(super().visit_List, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: CompilerFrame) -> None:
        if node.ctx == "load":
            self._limited(super().visit_Tuple, node, frame)
        else:  # the target of an assignment
            super().visit_Tuple(node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: CompilerFrame) -> None:
        self._limited(super().visit_Dict, node, frame)

    def _limited(self, visit: Callable[[Any, CompilerFrame], None], node: nodes.Node, frame: CompilerFrame) -> None:
        self.write("environment.container_limited(")
        visit(node, frame)
        self.write(")")


class _GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}`, which marks the model's own words for training: here, just its body."""

    tags = {"generation"}  # noqa: RUF012 (the name and type that Jinja2 gives it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A call block, as in transformers, because of its scope: what is set inside is not seen outside.
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Macro) -> str:
        return str(caller())


class _SafeDict:
    """The global `dict`, without the attributes of the real class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class _SafeNamespace(Namespace):
    """The global `namespace`, refusing attribute names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # so that `namespace(self=…)` works, as in Jinja2
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            _check_attribute(name)
        Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute(name)
        super().__setitem__(name, value)


def check_size(value: Any) -> Any:
    """`value` again, if it is not too large."""
    kind = type(value)
    if kind is str:
        _check_length(len(value))
    elif kind in (list, tuple, dict, set):
        _weigh(value)
    elif kind is int:
        _check_integer(value.bit_length())
    return value


def _weigh(container: Any) -> None:
    total = 0
    waiting = [container]
    while waiting:
        value = waiting.pop()
        total += _CONTAINER_WEIGHT + len(value)
        items = [*value.keys(), *value.values()] if isinstance(value, Mapping) else value
        for item in items:
            if isinstance(item, str):
                total += len(item)
            elif isinstance(item, (list, tuple, Mapping, set, frozenset)):
                waiting.append(item)
        _check_length(total)


def _check_length(length: int) -> None:
    if length > SIZE_LIMIT:
        raise LimitError(f"the template makes a value of more than {SIZE_LIMIT:,} characters")


def _check_integer(bits: int) -> None:
    if bits > INTEGER_BITS_LIMIT:
        raise LimitError(f"the template makes a number of more than {INTEGER_BITS_LIMIT} bits")


def _check_padding(number: int) -> None:
    if number > PADDING_LIMIT:
        raise LimitError(f"the template pads or repeats by {number:,}; at most {PADDING_LIMIT:,} are allowed")


def _check_operator(operator: str, left: Any, right: Any) -> None:
    if operator == "*":
        if isinstance(left, int) and isinstance(right, int):
            _check_integer(left.bit_length() + right.bit_length())
        for value, count in ((left, right), (right, left)):
            if isinstance(value, (str, list, tuple)) and isinstance(count, int):
                _check_length(len(value) * max(count, 0))
    elif operator == "**":
        if isinstance(left, int) and isinstance(right, int) and right > 0:
            _check_integer(left.bit_length() * right)
    elif operator == "+":
        if isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple)):
            _check_length(len(left) + len(right))
    elif isinstance(left, str):
        _check_format(left, right if isinstance(right, tuple) else (right,))


def _check_filter(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, int):
            # Numbers are widths and counts here, but also what `abs`, `round` or `default` pass through.
            if name in _PADDING_FILTERS:
                _check_padding(value)
        elif isinstance(value, (str, list, tuple, dict)):
            check_size(value)
    strings = [value for value in (*args, *kwargs.values()) if isinstance(value, str)]
    if name == "replace" and len(strings) >= 3:
        _check_replace(strings[-3], strings[-2], strings[-1])
    elif name == "format" and strings:
        _check_format(strings[0], args[1:])
    elif name == "join" and args:
        _check_join(next((value for value in args if isinstance(value, (list, tuple))), ()), strings)


_PADDING_FILTERS = frozenset({"batch", "center", "filesizeformat", "indent", "slice", "truncate", "wordwrap"})


def _check_string_method(text: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, int):
            if name == "expandtabs":
                _check_length(text.count("\t") * max(value, 0))
            elif name in ("center", "ljust", "rjust", "zfill"):
                _check_padding(value)
    if name == "replace" and len(args) >= 2 and isinstance(args[0], str) and isinstance(args[1], str):
        _check_replace(text, args[0], args[1])
    elif name == "join" and args:
        _check_join(args[0] if isinstance(args[0], (list, tuple)) else (), [text])
    elif name == "translate" and args and isinstance(args[0], Mapping):
        longest = max((len(value) for value in args[0].values() if isinstance(value, str)), default=1)
        _check_length(len(text) * longest)
    elif name in ("format", "format_map"):
        _check_format(text, (*args, *kwargs.values()))


def _check_replace(text: str, old: str, new: str) -> None:
    _check_length(len(text) + text.count(old) * len(new))


def _check_join(items: Iterable[Any], separators: list[str]) -> None:
    separator = max(map(len, separators), default=0)
    _check_length(sum(separator + (len(item) if isinstance(item, str) else 1) for item in items))


def _check_format(text: str, values: Iterable[Any]) -> None:
    """Of a format only its widths multiply: written down, or taken from a value (`%*d`, `{:{}}`)."""
    widths = [int(digits) for digits in re.findall(r"\d{1,18}", text)]
    for value in values:
        if isinstance(value, int) and ("*" in text or re.search(r"\{[^}]*\{", text)):
            widths.append(value)
        check_size(value)
    for width in widths:
        if width > PADDING_LIMIT and ("%" in text or "{" in text):
            _check_padding(width)


def _check_attribute(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a template cannot store {name!r} in a namespace")


def _raise_exception(message: object) -> None:
    raise Refusal(str(message))


def _short_lipsum(n: int = 5, html: bool = True, min: int = 20, max: int = 100) -> str:
    if n * max > PADDING_LIMIT:
        _check_padding(n * max)
    return generate_lorem_ipsum(n, html, min, max)


def _tick(line: int) -> nodes.Node:
    return nodes.ExprStmt(nodes.Call(nodes.EnvironmentAttribute("tick"), [], [], None, None)).set_lineno(line)
