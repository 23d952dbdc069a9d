"""What `rsllm run` and its conversation talk to: a model in this process, or one of a server.

Both answer once (`complete`) or in a conversation (`answer`), and know what `/show`, `/save` and `/load` need. Options
are kept under this package's names; a server is asked under Ollama's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import click

from rsllm.cli import media
from rsllm.cli.common import LOAD_OPTIONS
from rsllm.cli.settings import LOADING, Settings, request_options, set_option
from rsllm.cli.timings import local_timings, server_timings
from rsllm.errors import OptionError, RsllmError

if TYPE_CHECKING:
    from rsllm.chat.parsers import OutputParser, Part
    from rsllm.client import Client
    from rsllm.model import Model
    from rsllm.streams import TokenStream

__all__ = ["Chunk", "LocalSession", "ServerSession", "Session", "joined"]

_NOTHING = {
    "license": "No license was specified for this model.",
    "system": "No system message was specified for this model.",
    "template": "No prompt template was specified for this model.",
}
_METADATA = {"license": "general.license", "template": "tokenizer.chat_template"}


class Chunk(str):
    """A piece of an answer, or of the thinking before it."""

    thinking: bool

    def __new__(cls, text: str, thinking: bool = False) -> Chunk:
        chunk = super().__new__(cls, text)
        chunk.thinking = thinking
        return chunk


class Session(Protocol):
    """A model to talk to. `timings` and `notes` tell of the last answer, once it has come."""

    settings: Settings

    @property
    def timings(self) -> list[tuple[str, str]]: ...
    @property
    def notes(self) -> list[str]: ...
    def preload(self) -> None: ...
    def complete(self, prompt: str, *, piped: str = "") -> Iterator[Chunk]: ...
    def answer(self, message: str) -> Iterator[Chunk]: ...
    def clear(self) -> None: ...
    def set_parameter(self, name: str, text: str) -> None: ...
    def show(self, what: str) -> str: ...
    def history(self) -> list[dict[str, Any]]: ...
    def load(self, name: str) -> None: ...
    def save(self, name: str) -> None: ...
    def models(self) -> str: ...


class LocalSession:
    """A model in this process."""

    def __init__(self, model: Model, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.timings: list[tuple[str, str]] = []
        self.notes: list[str] = []
        self._model = model
        self._chat = None if self.settings.raw else model.chat(system=self.settings.system)

    def preload(self) -> None:
        """It is loaded already."""

    def complete(self, prompt: str, *, piped: str = "") -> Iterator[Chunk]:
        """The answer to one prompt, after the text that was piped in."""
        media.refuse(prompt)
        return self._answer(joined(piped, prompt))

    def answer(self, message: str) -> Iterator[Chunk]:
        """The next turn."""
        media.refuse(message)
        return self._answer(message)

    def _answer(self, message: str) -> Iterator[Chunk]:
        options = dict(self.settings.options)
        if self.settings.format is not None:
            options["schema"] = self.settings.format
        if self._chat is None:
            return self._follow(self._model.stream(message, **options))
        self._chat.system = self.settings.system
        if self.settings.think is not None:
            self._chat.variables = {"enable_thinking": bool(self.settings.think)}
        return self._follow(self._chat.stream(message, **options), self._chat.parser())

    def clear(self) -> None:
        """Forget the conversation; the system message stays."""
        if self._chat is not None:
            self._chat.clear()

    def set_parameter(self, name: str, text: str) -> None:
        """Set an option by either name; raises `OptionError`."""
        if name in LOAD_OPTIONS:
            raise OptionError(f"{name} is set when the model is loaded: start with {LOAD_OPTIONS[name]}", name=name)
        set_option(self.settings, name, text)

    def show(self, what: str) -> str:
        """What is known of the model."""
        if what == "info":
            from rsllm.cli.show import describe_loaded

            return describe_loaded(self._model)
        if what == "system":
            return self.settings.system or _NOTHING["system"]
        if what in _METADATA:
            return str(self._model.metadata.get(_METADATA[what]) or _NOTHING[what])
        if what == "modelfile":
            return f"FROM {self._model.path}"
        raise OptionError(f"there is no /show {what}")

    def history(self) -> list[dict[str, Any]]:
        """A file has no conversation that it starts with."""
        return []

    def load(self, name: str) -> None:
        raise OptionError(
            "a model in this process cannot be changed for another", hint=f"leave, and start `rsllm run {name}`"
        )

    def save(self, name: str) -> None:
        raise OptionError(
            "what runs in this process cannot be saved as a model", hint="import it into the store with `rsllm create`"
        )

    def models(self) -> str:
        from rsllm.cli.listing import table_of
        from rsllm.cli.ondemand import connect

        with connect() as client:
            return table_of(client.tags())

    def _follow(self, stream: TokenStream, parser: OutputParser | None = None) -> Iterator[Chunk]:
        self.timings, self.notes = [], []
        with stream:
            for token in stream:
                yield from _chunks(parser.feed(token)) if parser is not None else [Chunk(token)]
        yield from _chunks(parser.finish()) if parser is not None else []
        stats = stream.stats
        assert stats is not None, "the stream has ended"
        if stats.finish_reason == "context":
            self.notes.append("Note: stopped because the context is full; --num-ctx makes it longer")
        self.timings = local_timings(self._model, stats)


def _chunks(parts: list[Part]) -> list[Chunk]:
    return [Chunk(part.text, thinking=part.kind == "thinking") for part in parts if part.text]


class ServerSession:
    """A model of a server."""

    def __init__(self, client: Client, model: str, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.timings: list[tuple[str, str]] = []
        self.notes: list[str] = []
        self.model = model
        self._client = client
        self._messages: list[dict[str, Any]] = []

    def preload(self) -> None:
        """Load the model, so that the first answer comes sooner."""
        for event in self._client.generate({**self._request(), "stream": False}):
            self.notes = _warnings(event)

    def complete(self, prompt: str, *, piped: str = "") -> Iterator[Chunk]:
        """The answer to one prompt, after the text that was piped in, outside the conversation."""
        text, images = self._with_media(prompt)
        request = {**self._request(), "prompt": joined(piped, text), **images}
        if self.settings.system is not None:
            request["system"] = self.settings.system
        if self.settings.raw:
            request["raw"] = True
        return self._follow(self._thoughtful(self._client.generate, request))

    def answer(self, message: str) -> Iterator[Chunk]:
        """The next turn; what came of it counts, also where it was interrupted."""
        if self.settings.raw:
            yield from self.complete(message)
            return
        system = self.settings.system
        text, images = self._with_media(message)
        turn = [*self._messages, {"role": "user", "content": text, **images}]
        messages = [{"role": "system", "content": system}, *turn] if system else turn
        request = {**self._request(), "messages": messages}
        said: list[str] = []
        try:
            for chunk in self._follow(self._thoughtful(self._client.chat, request)):
                if not chunk.thinking:
                    said.append(chunk)
                yield chunk
        except RsllmError:
            raise
        except BaseException:
            if said:
                self._messages = [*turn, {"role": "assistant", "content": "".join(said)}]
            raise
        self._messages = [*turn, {"role": "assistant", "content": "".join(said)}]

    def _with_media(self, text: str) -> tuple[str, dict[str, Any]]:
        """The text without the files that it names, and those; a model that cannot take them is not asked."""
        found = media.found(text)
        if not found:
            return text, {}
        able = self._client.show(self.model).get("capabilities") or []
        text, encoded = media.attached(text, found, [str(word) for word in able])
        return text, {"images": encoded}

    def embed(self, text: str, *, truncate: bool | None, dimensions: int | None) -> list[float]:
        """The vector of a text."""
        request: dict[str, Any] = {**self._request(), "input": text}
        for name in ("format", "think"):
            request.pop(name, None)
        if truncate is not None:
            request["truncate"] = truncate
        if dimensions is not None:
            request["dimensions"] = dimensions
        reply = self._client.embed(request)
        self.notes = _warnings(reply)
        vectors = reply.get("embeddings") or [[]]
        return list(vectors[0])

    def clear(self) -> None:
        """Forget the conversation; the system message stays."""
        self._messages = []

    def set_parameter(self, name: str, text: str) -> None:
        """Set an option by either name, those of loading too; raises `OptionError`."""
        if name not in LOADING:
            set_option(self.settings, name, text)
            return
        try:
            self.settings.loading[name] = LOADING[name](text)
        except (KeyError, ValueError):
            raise OptionError(f"{name} cannot be {text!r}", name=name) from None

    def show(self, what: str) -> str:
        """What the server says of the model."""
        if what == "system" and self.settings.system is not None:
            return self.settings.system
        reply = self._client.show(self.model)
        if what == "info":
            from rsllm.cli.listing import described

            return described(reply)
        if what in ("license", "modelfile", "system", "template", "parameters"):
            return str(reply.get(what) or _NOTHING.get(what, ""))
        raise OptionError(f"there is no /show {what}")

    def history(self) -> list[dict[str, Any]]:
        """The conversation that the model starts with."""
        return [message for message in self._client.show(self.model).get("messages") or [] if isinstance(message, dict)]

    def load(self, name: str) -> None:
        """Go on with another model; the conversation begins anew."""
        before, self.model = self.model, name
        try:
            self.preload()
        except BaseException:
            self.model = before
            raise
        self._messages = []

    def save(self, name: str) -> None:
        """Make a model of this one, with the system message, the options and the conversation."""
        request: dict[str, Any] = {"model": name, "from": self.model}
        options = {**request_options(self.settings.options), **self.settings.loading}
        if options:
            request["parameters"] = options
        if self.settings.system is not None:
            request["system"] = self.settings.system
        if self._messages:
            request["messages"] = self._messages
        for _ in self._client.create(request):
            pass

    def models(self) -> str:
        """The models there are, as a table."""
        from rsllm.cli.listing import table_of

        return table_of(self._client.tags())

    def _request(self) -> dict[str, Any]:
        request: dict[str, Any] = {"model": self.model}
        options = {**request_options(self.settings.options), **self.settings.loading}
        if options:
            request["options"] = options
        for name in ("format", "think", "keep_alive"):
            value = getattr(self.settings, name)
            if value is not None:
                request[name] = value
        return request

    def _thoughtful(
        self, ask: Callable[[dict[str, Any]], Iterator[dict[str, Any]]], request: dict[str, Any]
    ) -> Iterator[dict[str, Any]]:
        """What the server says; a model that does not think is asked without, and that is said."""
        try:
            yield from ask(request)
        except RsllmError as error:
            if not request.get("think") or "does not support thinking" not in str(error):
                raise
            click.echo(f'warning: model "{self.model}" does not support thinking output', err=True)
            self.settings.think = None
            yield from ask({name: value for name, value in request.items() if name != "think"})

    def _follow(self, events: Iterator[dict[str, Any]]) -> Iterator[Chunk]:
        self.timings, self.notes = [], []
        for event in events:
            message = event.get("message") or {}
            thinking = message.get("thinking") or event.get("thinking")
            if thinking:
                yield Chunk(str(thinking), thinking=True)
            text = message.get("content") or event.get("response")
            if text:
                yield Chunk(str(text))
            if event.get("done"):
                self.timings = server_timings(event)
                self.notes = _warnings(event)


def joined(piped: str, words: str) -> str:
    """What was piped in before the words of a person, with one space between them."""
    return f"{piped} {words}" if piped and words else piped or words


def _warnings(event: Mapping[str, Any]) -> list[str]:
    return [f"Warning: {warning}" for warning in event.get("warnings") or []]
