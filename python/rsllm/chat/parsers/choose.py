"""Which parser a model's replies need, told from the text of its template; and the parser of one reply.

Nothing here knows a model by its name. Jinja templates are looked through for the tags that they write, Go templates by
Ollama's rules.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rsllm.chat.parsers.formats import ToolFormat, format_of, format_of_tag
from rsllm.chat.parsers.go_tags import is_go_template, thinking_tags, tool_tag
from rsllm.chat.parsers.harmony import END_OF_THOUGHTS, FINAL_HEAD, NEXT_MESSAGE, SPECIAL_TEXTS, HarmonySplitter
from rsllm.chat.parsers.named import is_named, named_traits
from rsllm.chat.parsers.parts import Part, ToolSet, merged, new_call_id
from rsllm.chat.parsers.splitter import ToolSplitter
from rsllm.chat.parsers.thinking import ThinkingSplitter, ThinkingTags
from rsllm.control import reveal

__all__ = ["OutputParser", "ParserChoice", "choose_parser"]

# Tags of published models. The template must write or strip the second; Gemma's is a channel with a name.
_THINKING = (
    ThinkingTags("<think>", "</think>"),
    ThinkingTags("[THINK]", "[/THINK]"),
    ThinkingTags("<seed:think>", "</seed:think>"),
    ThinkingTags("<|START_THINKING|>", "<|END_THINKING|>"),
    ThinkingTags("<|channel>thought", "<channel|>"),
    ThinkingTags("<mm:think>", "</mm:think>"),
    ThinkingTags("◁think▷", "◁/think▷"),
    ThinkingTags("<thinking>", "</thinking>"),
    ThinkingTags("<reasoning>", "</reasoning>"),
)


@dataclass(frozen=True)
class ParserChoice:
    """How replies to one request are to be read."""

    format: ToolFormat
    thinking: ThinkingTags | None
    """The tags around thoughts; `None` where the template knows of none (harmony thinks on a channel instead)."""
    tools: ToolSet = field(repr=False)

    @property
    def thinks(self) -> bool:
        """Whether the model's template knows thinking."""
        return self.thinking is not None or self.format.is_harmony

    @property
    def special_texts(self) -> tuple[str, ...]:
        """Tags that the parser looks for. Those that are control tokens of the model must reach it as text."""
        if self.format.is_harmony:
            return SPECIAL_TEXTS
        thinking = (self.thinking.open, self.thinking.close) if self.thinking else ()
        return (*thinking, *(self.format.texts(self.tools) if self.tools else ()))

    @property
    def end_of_thoughts(self) -> str:
        """What a model writes behind its thoughts; empty for one that does not think."""
        return END_OF_THOUGHTS if self.format.is_harmony else self.thinking.close if self.thinking else ""

    def head_of_answer(self, *, after_thoughts: bool) -> str:
        """What must stand between thoughts, or else the prompt, and an answer in plain text."""
        if not self.format.is_harmony:
            return ""
        return (NEXT_MESSAGE if after_thoughts else "") + FINAL_HEAD

    def start(
        self,
        *,
        think: bool | str | None = None,
        prompt: str = "",
        new_id: Callable[[], str] = new_call_id,
        control: Mapping[int, str] | None = None,
    ) -> OutputParser:
        """A parser for one reply to `prompt`, of which only the end counts. `think`: as in the request; unset means
        true, and only false leaves thoughts and their tags in the content. `control`: ids of control tokens that are
        to be put back into the pieces it is fed, where those are tokens (`rsllm.Token`)."""
        if self.format.is_harmony:
            return OutputParser(None, HarmonySplitter(self.tools, new_id=new_id), control)
        answer = ToolSplitter(self.format.tags(self.tools), self.tools, new_id=new_id) if self.tools else None
        thinking = None
        if self.thinking is not None and think is not False:
            thinking = ThinkingSplitter(self.thinking, inside=prompt.rstrip().endswith(self.thinking.open))
        return OutputParser(thinking, answer, control)


class OutputParser:
    """Reads one reply. Feed it pieces as they come, then finish; parts come as soon as they are certain."""

    def __init__(
        self,
        thinking: ThinkingSplitter | None,
        answer: ToolSplitter | HarmonySplitter | None,
        control: Mapping[int, str] | None = None,
    ) -> None:
        self._thinking = thinking
        self._answer = answer
        self._control = control or {}

    @property
    def is_thinking(self) -> bool:
        """The model has not begun to answer yet: a constraint on its answer must wait."""
        if self._thinking is not None:
            return self._thinking.is_thinking
        return isinstance(self._answer, HarmonySplitter) and self._answer.is_thinking

    @property
    def warnings(self) -> list[str]:
        """Why something that looked like a call is content."""
        return list(self._answer.warnings) if self._answer is not None else []

    def feed(self, text: str) -> list[Part]:
        """The parts that `text` makes certain. Neighbours of one kind are one part; a call is always whole."""
        if self._control:
            text = reveal(text, getattr(text, "ids", ()), self._control)
        if not text:
            return []
        return self._answered(self._thinking.feed(text) if self._thinking is not None else [Part("content", text)])

    def finish(self) -> list[Part]:
        """What was held back, now that nothing follows."""
        parts = self._answered(self._thinking.finish() if self._thinking is not None else [])
        return merged([*parts, *(self._answer.finish() if self._answer is not None else [])])

    def _answered(self, parts: Iterable[Part]) -> list[Part]:
        if self._answer is None:
            return merged(parts)
        found: list[Part] = []
        for part in parts:
            found += self._answer.feed(part.raw) if part.kind == "content" else [part]
        return merged(found)


def choose_parser(template: str, tools: Iterable[Any] = (), *, named: str = "") -> ParserChoice:
    """How a model with this chat template (Jinja or Go) writes thoughts and calls of `tools` (native definitions).

    A parser of Ollama's that the model's configuration has `named` decides where it is known (`named.NAMED`).

    >>> choose_parser("{{ '<tool_call>' }}").format.name
    'hermes'
    """
    tool_format, thinking = named_traits(named) if is_named(named) else _traits(template)
    return ParserChoice(tool_format, thinking, ToolSet(() if named == "passthrough" else tools))


@functools.lru_cache(maxsize=32)
def _traits(template: str) -> tuple[ToolFormat, ThinkingTags | None]:
    if is_go_template(template):
        tags = thinking_tags(template)
        return format_of_tag(tool_tag(template), template), ThinkingTags(*tags) if tags else None
    found = next((tags for tags in _THINKING if tags.close in template), None)
    return format_of(template), found
