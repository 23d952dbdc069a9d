"""Prompts by Go templates: messages in, prompt out, by Ollama's rules; and which of two templates a model is to use.

A Go template is a model's TEMPLATE layer. It either walks through `.Messages` itself, or is of the old kind that shows
one turn (`.System`, `.Prompt`, `.Response`) and is run once a turn, the last time only up to the answer. What people
wrote is marked throughout (`go.marks`), so that it never becomes a control token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rsllm.chat.go.capabilities import Capabilities, capabilities_of, go_capabilities, jinja_capabilities, prefers_go
from rsllm.chat.go.known import STOP_STRINGS, closest_template
from rsllm.chat.taint import ROLES, Taint
from rsllm.errors import TemplateError

if TYPE_CHECKING:
    from rsllm.chat.go.marks import Marks

__all__ = [
    "STOP_STRINGS",
    "Capabilities",
    "GoChatTemplate",
    "closest_template",
    "collate",
    "go_capabilities",
    "jinja_capabilities",
    "number_images",
    "prefers_go",
]

Message = dict[str, Any]
Part = tuple[str, bool]

THINK_LEVELS = ("high", "medium", "low", "max")
_LISTS = ("images", "tool_calls")
_IMAGE = "[img]"


class GoChatTemplate:
    """A compiled Go template. Immutable: it may render for many threads."""

    def __init__(self, source: str, *, now: Callable[[], datetime] = datetime.now) -> None:
        """Parse `source`; `now` is the clock of `currentDate`. Raises `TemplateError` with the line."""
        # The language is imported with the first template in it: most models bring one of Jinja.
        from rsllm.chat.go.template import GoTemplate

        self.source = source
        self._template = GoTemplate(source)
        self._now = now
        self.capabilities = capabilities_of(self._template)

    @property
    def takes_messages(self) -> bool:
        """It walks through the conversation itself; otherwise it shows one turn."""
        return "messages" in {name.lower() for name in self._template.fields}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]] = (),
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        prompt: str = "",
        suffix: str = "",
        think: bool | str | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> list[Part]:
        """The prompt in parts: text, and whether it is the template's (then control tokens in it count).

        With `prompt` and `suffix`, both not empty, the text between them is to be filled in and `messages` are not
        looked at. `think` is the request's; unset, it is taken from `enable_thinking` and `reasoning_effort` of
        `variables`, so that a caller may treat this as it does a `ChatTemplate`. Go templates know no
        `add_generation_prompt` but true. Raises `TemplateError`.

        >>> GoChatTemplate("{{ .Prompt }}</s>").render([{"role": "user", "content": "a <s>"}])
        [('a <s>', False), ('</s>', True)]
        """
        if not add_generation_prompt:
            raise TemplateError("a Go template always ends where the model is to answer")
        if think is None and variables:
            think = _think_of(variables)
        try:
            given = _Given(messages, tools or (), prompt, suffix, think)
            from rsllm.chat.go.marks import Marks

            taint = Taint(self.source, *_strings([list(messages), list(given.tools), prompt, suffix]))
            return taint.parts(self._text(given, Marks(taint)))
        except RecursionError as error:  # hostile nesting of the caller's data
            raise TemplateError("messages and tools are nested too deeply") from error

    def render_text(self, messages: Sequence[Mapping[str, Any]] = (), **options: Any) -> str:
        """As `render`, joined."""
        return "".join(text for text, _ in self.render(messages, **options))

    def _text(self, given: _Given, marks: Marks) -> str:
        from rsllm.chat.go.budget import Budget
        from rsllm.chat.go.messages import message_value, tools_value

        budget = Budget()  # one for all turns together

        def execute(data: Mapping[str, Any], *, cut: bool = False) -> str:
            values = {"Response": "", **given.think_values(marks), **data}
            return self._template.execute(values, marks=marks, now=self._now, budget=budget, cut=cut)

        if given.prompt and given.suffix:
            return execute({"Prompt": marks.mark(given.prompt), "Suffix": marks.mark(given.suffix)})
        messages = collate(given.messages or ([{"role": "user", "content": given.prompt}] if given.prompt else []))
        if self.takes_messages:
            system = "\n\n".join(message["content"] for message in messages if message["role"] == "system")
            return execute(
                {
                    "System": marks.mark(system),
                    "Messages": [message_value(message, marks) for message in messages],
                    "Tools": tools_value(given.tools, marks),
                }
            )
        *turns, last = _turns(messages)
        texts = [execute(_marked(turn, marks)) for turn in turns]
        return "".join([*texts, execute(_marked(last, marks), cut=True)])


@dataclass(frozen=True)
class _Given:
    """What a rendering is asked for."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    prompt: str
    suffix: str
    think: bool | str | None

    def think_values(self, marks: Marks) -> dict[str, Any]:
        level = self.think if isinstance(self.think, str) else "medium" if self.think else ""
        return {
            "Think": bool(self.think),
            "ThinkLevel": level if level in THINK_LEVELS else marks.mark(level),
            "IsThinkSet": self.think is not None,
        }


def collate(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Copies of the messages, neighbours of one role merged with a blank line; results of tools stay apart.

    Raises `TemplateError` for what is no message.

    >>> collate([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
    [{'role': 'user', 'content': 'a\\n\\nb'}]
    """
    merged: list[Message] = []
    for message in messages:
        copy = _checked(message)
        before = merged[-1] if merged else None
        if before is None or before["role"] != copy["role"] or copy["role"] == "tool":
            merged.append(copy)
            continue
        before["content"] += "\n\n" + copy["content"]
        if copy.get("thinking"):
            before["thinking"] = "\n\n".join(filter(None, (before.get("thinking"), copy["thinking"])))
        for key in _LISTS:
            if copy.get(key):
                before[key] = [*(before.get(key) or ()), *copy[key]]
    return merged


def _checked(message: Any) -> Message:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise TemplateError(f'a message is a dictionary with a "role" and a "content", not {type(message).__name__}')
    copy = dict(message)
    content = copy.get("content")
    if content is None:  # clients send null beside tool calls
        copy["content"] = ""
    elif not isinstance(content, str):
        raise TemplateError(f"the content of a message is a text here, not {type(content).__name__}")
    if copy.get("thinking") is not None and not isinstance(copy["thinking"], str):
        raise TemplateError(f"the thinking of a message is a text, not {type(copy['thinking']).__name__}")
    for key in _LISTS:
        if copy.get(key) is not None and not isinstance(copy[key], (list, tuple)):
            raise TemplateError(f"{key} of a message is a list, not {type(copy[key]).__name__}")
    return copy


def number_images(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Copies in which each image has its place in the content, `[img-N]` with N counted over all messages.

    Places written as `[img]` are taken in order; images without one go in front.

    >>> number_images([{"role": "user", "content": "a [img] b", "images": ["x", "y"]}])[0]["content"]
    '[img-1]a [img-0] b'
    """
    number = 0
    numbered = []
    for message in messages:
        copy = dict(message)
        prefix, content = "", str(copy.get("content") or "")
        done = ""
        for _ in copy.get("images") or ():
            before, place, after = content.partition(_IMAGE)
            if place:
                done, content = f"{done}{before}[img-{number}]", after
            else:
                prefix += f"[img-{number}]"
            number += 1
        copy["content"] = prefix + done + content
        numbered.append(copy)
    return numbered


@dataclass(frozen=True)
class _Turn:
    system: str = ""
    prompt: str = ""
    response: str = ""


def _turns(messages: Sequence[Message]) -> list[_Turn]:
    """The conversation of an old template, turn by turn; the last is the one to be answered."""
    turns: list[_Turn] = []
    system = prompt = response = ""
    for message in messages:
        role, content = message["role"], message["content"]
        if (role == "system" and (prompt or response)) or (role == "user" and response):
            turns.append(_Turn(system, prompt, response))
            system = prompt = response = ""
        if role == "system":
            system = content
        elif role == "user":
            prompt = content
        elif role == "assistant":
            response = content
    return [*turns, _Turn(system, prompt, response)]


def _marked(turn: _Turn, marks: Marks) -> dict[str, Any]:
    return {
        "System": marks.mark(turn.system),
        "Prompt": marks.mark(turn.prompt),
        "Response": marks.mark(turn.response),
    }


def _think_of(variables: Mapping[str, Any]) -> bool | str | None:
    effort = variables.get("reasoning_effort")
    enabled = variables.get("enable_thinking")
    if enabled is False:
        return False
    if isinstance(effort, str) and effort:
        return effort
    return None if enabled is None else bool(enabled)


def _strings(value: Any) -> Iterator[str]:
    """Every string of nested data, the keys too."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            if item not in ROLES:
                yield item
        elif isinstance(item, Mapping):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, (list, tuple)):
            waiting += item
