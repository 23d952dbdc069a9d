"""The inside of a call's tags, read at once when its end is there: one function a notation.

Each takes the text between the tags and the declared tools, and returns the calls. `ValueError` (mostly `NotACall`)
says why it is none; the text is then content.
"""

# ruff: noqa: RUF001 (the bars of DeepSeek's tags are full-width)

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from rsllm.chat.parsers.calls import Call, NotACall, arguments_of, calls_in, declared
from rsllm.chat.parsers.json_text import load
from rsllm.chat.parsers.literals import LiteralReader
from rsllm.chat.parsers.parts import ToolSet

__all__ = ["Reader", "deepseek", "gemma", "invocations", "kimi", "markup", "pythonic", "typed"]

Reader = Callable[[str, ToolSet], list[Call]]

_FUNCTION = re.compile(r"\s*<function=([^<>\n]+)>")
_FUNCTION_END = re.compile(r"\s*</function>\s*")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>(.*?)</parameter>", re.DOTALL)
_KEY_VALUE = re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
_INVOKE = re.compile(r"\s*<([^\s<>/]*)invoke name=\"([^\"<>]+)\">")
_INVOKE_PARAMETER = (
    r"\s*<{0}parameter name=\"([^\"<>]+)\"(?: string=\"(true|false)\")?[^<>]*>(.*?)</{0}parameter>"
)  # fmt: skip
_FENCED = re.compile(r"\s*```\w*\s*(.*?)\s*```\s*", re.DOTALL)
_DEEPSEEK_SEPARATOR = "<｜tool▁sep｜>"
_KIMI_SEPARATOR = "<|tool_call_argument_begin|>"


def markup(text: str, tools: ToolSet) -> list[Call]:
    """Calls written as tags: `<function=N><parameter=P>v</parameter></function>`, as Qwen's coders do, with JSON in
    place of the parameters, as functionary does, or `N<arg_key>k</arg_key><arg_value>v</arg_value>`, as GLM does."""
    if _FUNCTION.match(text):
        return _functions(text, tools)
    name, bracket, rest = text.partition("<")
    tool = declared(name, tools)
    return [(tool, _pairs(bracket + rest, _KEY_VALUE, tool, tools))]


def invocations(text: str, tools: ToolSet) -> list[Call]:
    """`<invoke name="N"><parameter name="P">v</parameter></invoke>`, with or without a prefix in each tag."""
    calls = []
    position = 0
    while match := _INVOKE.match(text, position):
        prefix, tool = re.escape(match[1]), declared(match[2], tools)
        parameter = re.compile(_INVOKE_PARAMETER.format(prefix), re.DOTALL)
        end = re.compile(rf"\s*</{prefix}invoke>\s*")
        arguments: dict[str, Any] = {}
        position = match.end()
        while found := parameter.match(text, position):
            is_text = found[2] == "true"
            arguments[found[1]] = found[3] if is_text else typed(found[3], tools.types(tool, found[1]))
            position = found.end()
        position = _end(end.match(text, position))
        calls.append((tool, arguments))
    return _whole(calls, text, position)


def deepseek(text: str, tools: ToolSet) -> list[Call]:
    """`function<sep>N` and fenced JSON (V3, R1), or `N<sep>{…}` (V3.1)."""
    left, separator, right = text.partition(_DEEPSEEK_SEPARATOR)
    if not separator:
        raise NotACall("there is no separator between a name and its arguments")
    if left.strip() == "function":
        left, _, right = right.strip().partition("\n")
    fenced = _FENCED.fullmatch(right)
    return [(declared(left, tools), arguments_of(fenced[1] if fenced else right))]


def kimi(text: str, tools: ToolSet) -> list[Call]:
    """`functions.N:0<|tool_call_argument_begin|>{…}`."""
    name, separator, arguments = text.partition(_KIMI_SEPARATOR)
    if not separator:
        raise NotACall("there is no separator between a name and its arguments")
    return [(declared(re.sub(r":\d+$", "", name.strip()), tools), arguments_of(arguments))]


def gemma(text: str, tools: ToolSet) -> list[Call]:
    """`call:N{k:v}`; texts stand between `<|"|>` (Gemma 4) or `<escape>` (FunctionGemma)."""
    calls = []
    reader = LiteralReader(text, quote="<escape>" if "<escape>" in text else '<|"|>')
    while not reader.at_end:
        reader.need("call:")
        tool = declared(reader.word(), tools)
        reader.need("{")
        calls.append((tool, reader.arguments("}", ":")))
        reader.at(",")
    return _some(calls)


def pythonic(text: str, tools: ToolSet) -> list[Call]:
    """`[f(a='b'), g()]`, or one `f(a='b')` a line; also JSON, which the same models write when they are told to."""
    try:
        return calls_in(load(text), tools)
    except NotACall:
        raise
    except ValueError:
        reader = LiteralReader(text)
    is_list = reader.at("[")
    calls = []
    while not reader.at_end and not (is_list and reader.at("]")):
        tool = declared(reader.word().removesuffix(".call"), tools)
        reader.need("(")
        calls.append((tool, reader.arguments(")", "=")))
        reader.at(",")
    if not reader.at_end:
        raise NotACall("something follows the calls")
    return _some(calls)


def typed(text: str, types: tuple[str, ...]) -> Any:
    """A value written without quotes, by the types that its schema allows; a text where none of them fits.

    >>> typed("\\n3\\n", ("integer",))
    3
    """
    text = text.removeprefix("\n").removesuffix("\n")
    if text.lower() == "null":
        return None
    for wanted, known in _TYPES:
        if wanted in types:
            try:
                value = load(text.strip())
            except ValueError:
                value = text.strip().lower() == "true" if text.strip().lower() in ("true", "false") else None
            if isinstance(value, known) and (wanted == "boolean") == isinstance(value, bool):
                return int(value) if isinstance(value, float) and value.is_integer() else value
    return False if types == ("boolean",) else text


_TYPES: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("boolean", (bool,)),
    ("integer", (int,)),
    ("number", (int, float)),
    ("array", (list,)),
    ("object", (dict,)),
)


def _functions(text: str, tools: ToolSet) -> list[Call]:
    calls = []
    position = 0
    while match := _FUNCTION.match(text, position):
        tool = declared(match[1], tools)
        position = match.end()
        end = text.find("</function>", position)
        body = text[position:end] if end >= 0 else ""
        if body.lstrip().startswith("{"):
            calls.append((tool, arguments_of(body)))
        else:
            arguments = {}
            while found := _PARAMETER.match(text, position):
                arguments[found[1]] = typed(found[2], tools.types(tool, found[1]))
                position = found.end()
            end = position
            calls.append((tool, arguments))
        position = _end(_FUNCTION_END.match(text, end))
    return _whole(calls, text, position)


def _pairs(text: str, pattern: re.Pattern[str], tool: str, tools: ToolSet) -> dict[str, Any]:
    found = {}
    position = 0
    while match := pattern.match(text, position):
        key = match[1].strip()
        found[key] = typed(match[2], tools.types(tool, key))
        position = match.end()
    if text[position:].strip():
        raise NotACall("the arguments are not pairs of a key and a value")
    return found


def _end(match: re.Match[str] | None) -> int:
    if match is None:
        raise NotACall("the call has no end")
    return match.end()


def _whole(calls: list[Call], text: str, position: int) -> list[Call]:
    if text[position:].strip():
        raise NotACall("something else stands between the calls")
    return _some(calls)


def _some(calls: list[Call]) -> list[Call]:
    if not calls:
        raise NotACall("no call between its tags")
    return calls
