"""Which template makes a model's prompts, and what can be said with it.

A model may have two: the Jinja of its file, and a Go template (TEMPLATE). The choice between them is Ollama's
(`chat.go.capabilities`), and what was put aside although somebody might count on it is said. A `PromptTemplate` renders
native messages with either, and tells how replies to its prompts are to be read.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rsllm.chat.native import jinja_messages, jinja_variables
from rsllm.chat.parsers import ParserChoice, choose_parser
from rsllm.chat.parsers.named import is_named
from rsllm.chat.rendering import STOP_STRINGS, GoChatTemplate, jinja_capabilities, prefers_go
from rsllm.errors import TemplateError

if TYPE_CHECKING:
    from rsllm.chat.template import ChatTemplate

__all__ = ["Chosen", "PromptTemplate", "Sources", "choose", "compiled_go", "known_stops"]

Message = Mapping[str, Any]
Part = tuple[str, bool]
Tools = Sequence[Mapping[str, Any]]


class PromptTemplate:
    """A template of either language, or the two of a file that has one more for tools."""

    def __init__(
        self,
        template: ChatTemplate | GoChatTemplate,
        *,
        with_tools: ChatTemplate | None = None,
        strips_thoughts: bool = False,
        parser: str = "",
    ) -> None:
        """`with_tools`: the file's variant for requests with tools. `strips_thoughts`: old answers in the history lose
        what was thought before them, where a Go template would show it. `parser`: of Ollama's, for the replies."""
        self._template = template
        self._with_tools = with_tools
        self._strips_thoughts = strips_thoughts
        self._parser = parser

    @property
    def is_go(self) -> bool:
        """It is written in Go's language."""
        return isinstance(self._template, GoChatTemplate)

    @property
    def source(self) -> str:
        """Its text."""
        return self._template.source

    @functools.cached_property
    def has_tools(self) -> bool:
        """It shows the model its tools."""
        if isinstance(self._template, GoChatTemplate):
            return self._template.capabilities.tools
        return self._with_tools is not None or jinja_capabilities(self.source).tools

    @functools.cached_property
    def thinks(self) -> bool:
        """Thoughts can be told from answers."""
        return choose_parser(self.source, named=self._parser).thinks

    @functools.cached_property
    def mixes_thoughts(self) -> bool:
        """The model thinks in a way that this server cannot tell from its answers."""
        return not self.thinks and not self.is_go and jinja_capabilities(self.source).thinking

    @property
    def has_suffix(self) -> bool:
        """It has a place for the text behind a gap."""
        return isinstance(self._template, GoChatTemplate) and self._template.capabilities.insert

    def parser(self, tools: Tools = ()) -> ParserChoice:
        """How replies are written."""
        return choose_parser(self._variant(tools).source, tools, named=self._parser)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools = (),
        think: bool | str | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[Part]:
        """The prompt in parts: text, and whether it is the template's; `variables` are for Jinja alone. Raises
        `TemplateError`."""
        template = self._variant(tools)
        if isinstance(template, GoChatTemplate):
            kept = _without_thoughts(messages) if self._strips_thoughts else messages
            return template.render(kept, tools=tools, think=think)
        begun = _begun_answer(messages)
        options: dict[str, Any] = {
            "tools": list(tools) or None,
            "variables": {**jinja_variables(template.source, think, tools), **(variables or {})},
            "add_generation_prompt": not begun,
        }
        parts = _rendered(template, messages, options)
        return _cut_behind(parts, begun) if begun else parts

    def render_gap(self, prompt: str, suffix: str) -> list[Part]:
        """The prompt for the text between two others; for templates that have `has_suffix`."""
        assert isinstance(self._template, GoChatTemplate), "has_suffix says so"
        return self._template.render(prompt=prompt, suffix=suffix)

    def _variant(self, tools: Tools) -> ChatTemplate | GoChatTemplate:
        return self._with_tools if tools and self._with_tools is not None else self._template


@dataclass(frozen=True)
class Sources:
    """The templates that a model has."""

    jinja: ChatTemplate | None = None
    jinja_with_tools: ChatTemplate | None = None
    jinja_error: TemplateError | None = None
    go: str = ""
    """The TEMPLATE layer; empty where there is none."""
    renderer: str = ""
    """What the configuration names as built into Ollama."""
    parser: str = ""
    """The same for replies."""
    strips_thoughts: bool = False


@dataclass(frozen=True)
class Chosen:
    """The template that makes the prompts; `None` where there is none."""

    template: PromptTemplate | None = None
    suffix: PromptTemplate | None = None
    """The one that fills in text before a suffix."""
    error: TemplateError | None = None
    """Why there is none."""
    warnings: list[str] = field(default_factory=list)


def choose(sources: Sources, *, setting: bool | None = None) -> Chosen:
    """The template of a model. `setting`: OLLAMA_GO_TEMPLATE."""
    warnings = []
    go, go_error = None, None
    if sources.go.strip():
        try:
            go = compiled_go(sources.go)
        except TemplateError as error:
            go_error = error
    jinja = sources.jinja
    if sources.parser and not is_named(sources.parser):
        warnings.append(
            f"the model asks for the parser {sources.parser[:60]!r}, which is not known: "
            "replies are read in the notation of its template"
        )
    if sources.renderer:
        if jinja is None and (go is None or _shows_the_prompt_alone(go)):
            return Chosen(error=_no_renderer(sources.renderer))
        warnings.append(
            f"the model asks for the renderer {sources.renderer[:60]!r}, which is built into Ollama: "
            "its template was used in its place"
        )
        setting = False if setting is None else setting
    go_wins = prefers_go(
        go.capabilities if go is not None else None,
        jinja_capabilities(jinja.source) if jinja is not None else None,
        setting=setting,
    )
    of_go = None
    if go is not None:
        of_go = PromptTemplate(go, strips_thoughts=sources.strips_thoughts, parser=sources.parser)
    suffix = of_go if of_go is not None and of_go.has_suffix else None
    if of_go is not None and (go_wins or jinja is None):
        return Chosen(of_go, suffix, warnings=warnings)
    if jinja is None:
        return Chosen(error=go_error or sources.jinja_error)
    if go_error is not None:
        warnings.append(f"the model's Go template (TEMPLATE) was put aside for the file's own: {go_error}")
    of_jinja = PromptTemplate(jinja, with_tools=sources.jinja_with_tools, parser=sources.parser)
    return Chosen(of_jinja, suffix, warnings=warnings)


def _shows_the_prompt_alone(template: GoChatTemplate) -> bool:
    """It is what models have that are to be rendered otherwise."""
    try:
        return template.render_text([{"role": "user", "content": "x"}]).strip() == "x"
    except TemplateError:
        return False


def _no_renderer(name: str) -> TemplateError:
    return TemplateError(
        f"the model's prompts are made by the renderer {name[:60]!r}, which is built into Ollama and is not here, and "
        "it has no template of its own",
        hint="give it one (`rsllm create` with FROM and TEMPLATE), or use /api/generate with raw",
    )


@functools.lru_cache(maxsize=32)
def compiled_go(source: str) -> GoChatTemplate:
    """A Go template; raises `TemplateError`."""
    return GoChatTemplate(source)


def known_stops(source: str) -> tuple[str, ...]:
    """The strings that end an answer in the known shape of conversation that a template has; none for other shapes.

    >>> known_stops("### Instruction:\\n{{ .Prompt }}\\n\\n### Response:\\n")
    ('### Instruction:', '### Response')
    """
    fitting = [stops for stops in STOP_STRINGS.values() if all(text in source for text in stops)]
    return max(fitting, key=lambda stops: sum(map(len, stops)), default=())


def _rendered(template: ChatTemplate, messages: Sequence[Message], options: Mapping[str, Any]) -> list[Part]:
    source = template.source
    try:
        return template.render(jinja_messages(source, messages), **options)
    except TemplateError:
        if not any(message.get("tool_calls") for message in messages):
            raise
        # A few templates want the arguments of calls as JSON texts. Where that is no help, the first error counts.
        try:
            return template.render(jinja_messages(source, messages, arguments_as_text=True), **options)
        except TemplateError:
            pass
        raise


def _begun_answer(messages: Sequence[Message]) -> str:
    """The answer that the last message has begun, and that is to be continued in its place; mostly there is none."""
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant" or last.get("tool_calls"):
        return ""
    return str(last.get("content") or "").strip()


def _cut_behind(parts: Sequence[Part], text: str) -> list[Part]:
    """The parts up to the last place where `text` stands; raises `TemplateError` where it does not."""
    left = "".join(part for part, _ in parts).rfind(text) + len(text)
    if left < len(text):
        raise TemplateError(
            "the last message is an answer to be continued, and the model's template does not show it as it is",
            hint="end with a message of the user",
        )
    found = []
    for part, trusted in parts:
        if left > 0:
            found.append((part[:left], trusted))
        left -= len(part)
    return found


def _without_thoughts(messages: Sequence[Message]) -> list[Message]:
    """Answers before the last thing a user says, from behind the end of their thoughts on."""
    last = max((index for index, message in enumerate(messages) if message.get("role") == "user"), default=-1)
    return [
        {**message, "content": message["content"].partition("</think>")[2].lstrip()}
        if index < last and message.get("role") == "assistant" and "</think>" in (message.get("content") or "")
        else message
        for index, message in enumerate(messages)
    ]
