"""The notations of tool calls, and which of them a template teaches.

A notation is a table of tags and bodies. It is recognised by a text that stands in the templates of its models, in the
order of `FORMATS`: the more special before the more common. To add one, add a row.
"""

# ruff: noqa: RUF001 (the bars of DeepSeek's tags are full-width)

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from rsllm.chat.parsers.bodies import BodyMaker, FencedBody, JsonBody, NamedBody, RecipientBody, TagBody, UntilBody
from rsllm.chat.parsers.parts import ToolSet
from rsllm.chat.parsers.readers import deepseek, gemma, invocations, kimi, markup, pythonic
from rsllm.chat.parsers.splitter import Tags

__all__ = ["FORMATS", "GENERIC", "ToolFormat", "format_of", "format_of_tag"]

_HERMES = "<tool_call>"


@dataclass(frozen=True)
class ToolFormat:
    """How models of one kind write calls."""

    name: str
    teaches: tuple[str, ...]
    """Texts of which all stand in the templates of such models."""
    tags: Callable[[ToolSet], Tags]
    is_harmony: bool = False
    within: tuple[str, ...] = ()
    """Texts inside a call that may be control tokens."""

    def matches(self, template: str) -> bool:
        """Whether `template` teaches it."""
        return all(text in template for text in self.teaches)

    def texts(self, tools: ToolSet) -> tuple[str, ...]:
        """All that such models write around calls of `tools`."""
        tags = self.tags(tools)
        closing = [text for maker in tags.opening.values() for text in getattr(maker, "keywords", {}).get("close", ())]
        return (*tags.opening, *closing, *tags.ignored, *self.within)


def _json(*close: str) -> BodyMaker:
    return partial(JsonBody, close=close)


def _tagged(*close: str) -> BodyMaker:
    return partial(TagBody, close=close)


def _until(reader: Callable[..., list[tuple[str, dict[str, object]]]], *close: str, before: str = "") -> BodyMaker:
    return partial(UntilBody, close=close, reader=reader, before=before)


def _fixed(opening: dict[str, BodyMaker], *ignored: str) -> Callable[[ToolSet], Tags]:
    tags = Tags(opening=opening, ignored=ignored)
    return lambda tools: tags


_FUNCTIONARY = Tags(
    opening={">>>": RecipientBody},
    ignored=(">>>all\n",),
    first={"all\n": None, "": partial(RecipientBody, first=True)},
)
"""functionary 3.2: `>>>NAME`, a line break and the arguments; `>>>all` answers. The prompt ends with `>>>`."""

_FUNCTION = _until(markup, "</function>", before="<function=")

FORMATS: tuple[ToolFormat, ...] = (
    ToolFormat("harmony", ("<|channel|>", "<|message|>"), _fixed({}), is_harmony=True),
    ToolFormat(
        "dsml",
        ("｜DSML｜",),
        _fixed(
            {
                "<｜DSML｜function_calls>": _until(invocations, "</｜DSML｜function_calls>"),
                "<｜DSML｜tool_calls>": _until(invocations, "</｜DSML｜tool_calls>"),
            }
        ),
    ),
    ToolFormat(
        "deepseek",
        ("tool▁call▁begin",),
        _fixed(
            {"<｜tool▁call▁begin｜>": _until(deepseek, "<｜tool▁call▁end｜>")},
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
        ),
        within=("<｜tool▁sep｜>",),
    ),
    ToolFormat(
        "kimi",
        ("<|tool_call_argument_begin|>",),
        _fixed(
            {"<|tool_call_begin|>": _until(kimi, "<|tool_call_end|>")},
            "<|tool_calls_section_begin|>",
            "<|tool_calls_section_end|>",
        ),
        within=("<|tool_call_argument_begin|>",),
    ),
    ToolFormat(
        "minimax",
        ("<minimax:tool_call>",),
        _fixed({"<minimax:tool_call>": _until(invocations, "</minimax:tool_call>")}),
    ),
    ToolFormat(
        "glimmer",
        ("<atem:function_calls>",),
        _fixed({"<atem:function_calls>": _until(invocations, "</atem:function_calls>")}),
    ),
    ToolFormat("seed", ("<seed:tool_call>",), _fixed({"<seed:tool_call>": _tagged("</seed:tool_call>")})),
    ToolFormat(
        "gemma4",
        ("<|tool_call>call:",),
        _fixed({"<|tool_call>": _until(gemma, "<tool_call|>")}),
        within=('<|"|>',),
    ),
    ToolFormat(
        "functiongemma",
        ("<start_function_call>",),
        _fixed({"<start_function_call>": _until(gemma, "<end_function_call>")}),
        within=("<escape>",),
    ),
    ToolFormat(
        "mistral",
        ("[TOOL_CALLS]",),
        _fixed({"[TOOL_CALLS]": NamedBody}),
        within=("[ARGS]", "[CALL_ID]"),
    ),
    ToolFormat(
        "command-r7b",
        ("<|START_ACTION|>",),
        _fixed(
            {"<|START_ACTION|>": _json("<|END_ACTION|>")},
            "<|START_RESPONSE|>",
            "<|END_RESPONSE|>",
            "<|START_TEXT|>",
            "<|END_TEXT|>",
        ),
    ),
    ToolFormat("command-r", ("Action:", "tool_name"), _fixed({"Action:": FencedBody})),
    ToolFormat("nemotron", ("<TOOLCALL>",), _fixed({"<TOOLCALL>": _json("</TOOLCALL>")})),
    ToolFormat("apertus", ("<|tools_prefix|>",), _fixed({"<|tools_prefix|>": _json("<|tools_suffix|>")})),
    ToolFormat(
        "lfm2",
        ("<|tool_list_start|>",),
        _fixed({"<|tool_call_start|>": _until(pythonic, "<|tool_call_end|>")}),
    ),
    ToolFormat(
        "lfm2",
        ("<|tool_call_start|>",),
        _fixed({"<|tool_call_start|>": _until(pythonic, "<|tool_call_end|>")}),
    ),
    ToolFormat("functionary-3.2", (">>>${recipient}",), lambda tools: _FUNCTIONARY),
    ToolFormat("functools", ("functools[",), _fixed({"functools": _json()})),
    ToolFormat(
        "glm",
        ("<arg_key>", _HERMES),
        _fixed({_HERMES: _tagged("</tool_call>")}),
        within=("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    ToolFormat(
        "qwen-xml",
        ("<function=", "<parameter=", _HERMES),
        _fixed({_HERMES: _tagged("</tool_call>"), "<function=": _FUNCTION}),
    ),
    ToolFormat("apriel", ("</tool_calls>",), _fixed({"<tool_calls>": _json("</tool_calls>")})),
    ToolFormat(
        "granite",
        ("<|tool_call|>",),
        _fixed({"<|tool_call|>": _json("<|/tool_call|>"), _HERMES: _tagged("</tool_call>")}),
    ),
    ToolFormat("hermes", (_HERMES,), _fixed({_HERMES: _tagged("</tool_call>")})),
    ToolFormat(
        "functionary-3.1",
        ("<function=", "</function>"),
        _fixed({"<function=": _FUNCTION, "<|python_tag|>": _tagged("<|eom_id|>")}),
    ),
    ToolFormat("gigachat", ("<|function_call|>",), _fixed({"<|function_call|>": _json()})),
    ToolFormat("olmo", ("<function_calls>",), _fixed({"<function_calls>": _until(pythonic, "</function_calls>")})),
    ToolFormat(
        "llama",
        ("<|python_tag|>",),
        _fixed({"<|python_tag|>": partial(TagBody, close=("<|eom_id|>", "<|eot_id|>"), reader=pythonic)}),
    ),
)
"""In the order in which they are looked for."""

GENERIC = ToolFormat("generic", (), _fixed({_HERMES: _tagged("</tool_call>")}))
"""JSON, bare or fenced, and the most common of tags, for templates that teach nothing else."""


def format_of(template: str) -> ToolFormat:
    """The notation that a Jinja template teaches."""
    return next((found for found in FORMATS if found.matches(template)), GENERIC)


def format_of_tag(tag: str | None, template: str) -> ToolFormat:
    """The notation of a Go template, by the tag that it writes before a call."""
    if tag is None or tag in ("{", "["):
        return format_of(template) if tag is None else GENERIC
    known = format_of(template)
    if known is not GENERIC:
        return known
    name = tag.strip("<>")
    close = (f"</{name}>",) if tag == f"<{name}>" else ()
    return ToolFormat("tag", (), _fixed({tag: _json(*close)}))
