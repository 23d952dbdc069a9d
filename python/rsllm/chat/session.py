"""A conversation with a model: the history, and streams that add to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from rsllm.errors import TemplateError
from rsllm.options import GenerateOptions, validate
from rsllm.streams import AsyncTokenStream, Reply, Stats, TokenStream

if TYPE_CHECKING:
    from rsllm.chat.parsers import OutputParser
    from rsllm.model import Model

__all__ = ["Chat"]

Message = Mapping[str, Any]


class Chat:
    """A conversation. Made by `Model.chat`; one for each thread or task, while the model may be shared.

    A turn enters the history when its stream ends: the new messages, then the answer as far as it came. A turn that
    fails leaves the history as it was, so it can be tried again.
    """

    def __init__(
        self,
        model: Model,
        *,
        system: str | None = None,
        tools: Iterable[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        self._model = model
        self.system = system
        self.tools = list(tools) if tools is not None else None
        self.variables = dict(variables or {})
        self.messages: list[dict[str, Any]] = []
        self._template = model._template(self._template_name())
        self._prompt = ""

    def stream(self, message: str | Iterable[Message], **options: Unpack[GenerateOptions]) -> TokenStream:
        """Say something and stream the answer.

        `message` is what the user says, or a list of messages (`{"role": …, "content": …}`) that goes on from the
        history. Raises `TemplateError`, `OptionError`, `ContextLengthError`.

        >>> for token in chat.stream("And of Italy?", max_tokens=8):
        ...     print(token, end="")
        """
        new = _as_messages(message)
        generation = self._model._start(self._ids(new), validate(options))
        return TokenStream(generation, on_end=lambda text, stats: self._remember(new, text, stats))

    def generate(self, message: str | Iterable[Message], **options: Unpack[GenerateOptions]) -> Reply:
        """As `stream`, but the whole `Reply` at once."""
        return self.stream(message, **options).reply()

    def astream(self, message: str | Iterable[Message], **options: Unpack[GenerateOptions]) -> AsyncTokenStream:
        """As `stream`, for `async for`."""
        new = _as_messages(message)
        checked = validate(options)
        return AsyncTokenStream(
            lambda: self._model._start(self._ids(new), checked),
            on_end=lambda text, stats: self._remember(new, text, stats),
        )

    async def agenerate(self, message: str | Iterable[Message], **options: Unpack[GenerateOptions]) -> Reply:
        """As `generate`, without blocking the event loop."""
        return await self.astream(message, **options).reply()

    def prompt(self, message: str | Iterable[Message]) -> str:
        """The prompt that `stream(message)` would send, as text."""
        return "".join(text for text, _ in self._render(_as_messages(message)))

    def parser(self) -> OutputParser:
        """A parser of the answer that was asked for last, which tells thoughts and calls of `tools` from its text.

        >>> stream = chat.stream("What is 2 + 2?")
        >>> parser = chat.parser()
        >>> for piece in stream:
        ...     for part in parser.feed(piece):
        ...         print(part.kind, part.text, part.calls)
        >>> rest = parser.finish()
        """
        from rsllm.chat.parsers import choose_parser
        from rsllm.control import control_ids

        choice = choose_parser(self._template.source, self.tools or ())
        metadata = self._model.metadata
        tokens, types = (metadata.get(f"tokenizer.ggml.{name}") or () for name in ("tokens", "token_type"))
        # Tags that are control tokens are no text, but the parser must see them.
        control = control_ids(choice.special_texts, tokens, types)
        return choice.start(prompt=self._prompt, control=control)

    def clear(self) -> None:
        """Forget the history; the system message stays."""
        self.messages.clear()

    def _ids(self, new: list[dict[str, Any]]) -> list[int]:
        parts = self._render(new)
        self._prompt = "".join(text for text, _ in parts)
        return self._model._chat_ids(parts)

    def _render(self, new: list[dict[str, Any]]) -> list[tuple[str, bool]]:
        system = [{"role": "system", "content": self.system}] if self.system is not None else []
        return self._template.render([*system, *self.messages, *new], tools=self.tools, variables=self.variables)

    def _template_name(self) -> str | None:
        # The variant for tools, where the file has one.
        has_variant = self.tools is not None and "tokenizer.chat_template.tool_use" in self._model.metadata
        return "tool_use" if has_variant else None

    def _remember(self, new: list[dict[str, Any]], text: str, stats: Stats) -> None:
        if text or stats.finish_reason != "cancelled":
            self.messages += [*new, {"role": "assistant", "content": text}]


def _as_messages(message: str | Iterable[Message]) -> list[dict[str, Any]]:
    if isinstance(message, str):
        return [{"role": "user", "content": message}]
    if isinstance(message, Mapping):
        message = [message]
    messages = []
    for entry in message:
        if not isinstance(entry, Mapping) or "role" not in entry:
            raise TemplateError(f'a message is a dictionary with a "role" and a "content", not {entry!r}')
        messages.append(dict(entry))
    return messages
