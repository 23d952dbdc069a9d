"""The conversation on a terminal: prompt, history, multi-line messages, and commands that begin with a slash.

Line editing is readline's, from the standard library; without it plain lines are read. Ctrl-C stops the answer and
keeps the conversation, Ctrl-D leaves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from rsllm.cli.common import LOAD_OPTIONS
from rsllm.cli.run import print_timings, stream_to
from rsllm.config import config
from rsllm.errors import OptionError, RsllmError
from rsllm.options import OPTIONS, parse_option

if TYPE_CHECKING:
    from rsllm.model import Model
    from rsllm.streams import TokenStream

__all__ = ["Repl"]

_HISTORY_LINES = 1000
_QUOTES = '"""'

_HELP = """\
Available commands:
  /set             Set session variables
  /show            Show model information
  /clear           Forget the conversation; the system message stays
  /bye             Leave (also /exit, Ctrl-D)
  /?, /help        This help; also /? set, /? show, /? shortcuts

Use \"\"\" to begin and end a message of several lines."""

_HELP_TOPICS = {
    "set": """\
Available commands:
  /set parameter NAME VALUE   Set an option; /show parameters lists them
  /set system TEXT            Set the system message
  /set history                Remember lines in the history file
  /set nohistory              Do not
  /set verbose                Show timings after each answer
  /set quiet                  Do not""",
    "show": """\
Available commands:
  /show info                  The model, and how it was loaded
  /show parameters            Options, their values and meanings
  /show system                The system message
  /show template              The chat template
  /show license               The licence in the file""",
    "shortcuts": """\
  Ctrl-A, Ctrl-E              Begin and end of the line
  Alt-B, Alt-F                A word back and on
  Ctrl-K, Ctrl-U, Ctrl-W      Delete to the end, to the begin, the word before
  Ctrl-P, Ctrl-N, Ctrl-R      Back, on and search in the history
  Ctrl-L                      Clear the screen
  Ctrl-C                      Stop the answer
  Ctrl-D                      Leave""",
}


class Repl:
    """One conversation. `read` is `input`, or a stand-in that raises `EOFError` at the end."""

    def __init__(
        self,
        model: Model,
        *,
        system: str | None = None,
        options: dict[str, Any] | None = None,
        verbose: bool = False,
        raw: bool = False,
        read: Callable[[str], str] = input,
    ) -> None:
        self._model = model
        self._chat = None if raw else model.chat(system=system)
        self._options = dict(options or {})
        self._verbose = verbose
        self._read = read
        self._keep_history = config().history_file is not None

    def run(self) -> None:
        """Read and answer until the user leaves."""
        click.echo("Send a message (/? for help)", err=True)
        with self._history():
            while True:
                try:
                    message = self._read_message()
                except EOFError:
                    click.echo()
                    return
                except KeyboardInterrupt:
                    click.echo("\nUse Ctrl + d or /bye to exit.")
                    continue
                if not message.strip():
                    continue
                if message.startswith("/"):
                    if not self._command(message.strip()):
                        return
                else:
                    self._answer(message)

    def _read_message(self) -> str:
        line = self._read(">>> ")
        if line.startswith("/set system " + _QUOTES):
            return "/set system " + self._read_quoted(line.removeprefix("/set system "))
        return self._read_quoted(line) if line.startswith(_QUOTES) else line

    def _read_quoted(self, line: str) -> str:
        text = line.removeprefix(_QUOTES)
        while not text.endswith(_QUOTES):
            text += "\n" + self._read("... ")
        return text.removesuffix(_QUOTES).strip("\n")

    def _answer(self, message: str) -> None:
        stream: TokenStream | None = None
        try:
            stream = (
                self._chat.stream(message, **self._options)
                if self._chat is not None
                else self._model.stream(message, **self._options)
            )
            stats = stream_to(stream)
        except KeyboardInterrupt:
            if stream is not None:
                stream.close()
            click.echo()
            return
        except RsllmError as error:
            _complain(error)
            return
        if self._verbose:
            print_timings(self._model, stats)
        click.echo()

    def _command(self, line: str) -> bool:
        """Carry out a slash command; false to leave."""
        name, _, rest = line.partition(" ")
        rest = rest.strip()
        if name in ("/bye", "/exit"):
            return False
        if name in ("/?", "/help"):
            click.echo(_HELP_TOPICS.get(rest.removeprefix("/"), _HELP))
        elif name == "/clear":
            if self._chat is not None:
                self._chat.clear()
            click.echo("Cleared session context")
        elif name == "/set":
            self._set(rest)
        elif name == "/show":
            self._show(rest)
        else:
            click.echo(f"Unknown command '{name}'. Type /? for help")
        return True

    def _set(self, line: str) -> None:
        what, _, rest = line.partition(" ")
        if what == "parameter":
            self._set_parameter(rest.strip())
        elif what == "system":
            self._set_system(rest.strip())
        elif what in ("history", "nohistory"):
            self._keep_history = what == "history" and config().history_file is not None
            self._set_auto_history(self._keep_history)
            click.echo("History is on" if self._keep_history else "History is off")
        elif what in ("verbose", "quiet"):
            self._verbose = what == "verbose"
            click.echo(f"Set '{what}' mode.")
        elif what:
            click.echo(f"Unknown command '/set {what}'. Type /? for help")
        else:
            click.echo(_HELP_TOPICS["set"])

    def _set_parameter(self, line: str) -> None:
        name, _, text = line.partition(" ")
        try:
            if name in LOAD_OPTIONS:
                raise OptionError(f"{name} is set when the model is loaded: start with {LOAD_OPTIONS[name]}", name=name)
            if not text.strip():
                raise OptionError("write /set parameter NAME VALUE")
            ours, value = parse_option(name, text.strip())
        except OptionError as error:
            click.echo(f'Couldn\'t set parameter: "{error}"')
            return
        self._options[ours] = value
        click.echo(f"Set parameter '{name}' to '{text.strip()}'")

    def _set_system(self, text: str) -> None:
        if self._chat is None:
            click.echo("There is no system message with --raw.")
        else:
            self._chat.system = text or None
            click.echo("Set system message.")

    def _show(self, what: str) -> None:
        if what == "info":
            from rsllm.cli.show import describe_loaded

            click.echo(describe_loaded(self._model))
        elif what == "parameters":
            for option in OPTIONS.values():
                value = self._options.get(option.name, option.default)
                mark = "*" if option.name in self._options else " "
                click.echo(f"{mark} {option.name:<18}{value!s:<10}{option.help}")
        elif what == "system":
            system = self._chat.system if self._chat is not None else None
            click.echo(system or "No system message was specified for this model.")
        elif what == "template":
            click.echo(self._metadata("tokenizer.chat_template", "No prompt template was specified for this model."))
        elif what == "license":
            click.echo(self._metadata("general.license", "No license was specified for this model."))
        elif what:
            click.echo(f"Unknown command '/show {what}'. Type /? for help")
        else:
            click.echo(_HELP_TOPICS["show"])

    def _metadata(self, key: str, otherwise: str) -> str:
        return str(self._model.metadata.get(key) or otherwise)

    @contextlib.contextmanager
    def _history(self) -> Iterator[None]:
        """Line editing, and the lines of earlier sessions."""
        readline = _readline()
        path = config().history_file
        if readline is not None and path is not None:
            with contextlib.suppress(OSError):
                readline.read_history_file(path)
            readline.set_history_length(_HISTORY_LINES)
        try:
            yield
        finally:
            if readline is not None and path is not None and self._keep_history:
                with contextlib.suppress(OSError):  # a read-only home is no reason to fail at the end
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.touch(mode=0o600)
                    readline.write_history_file(path)

    def _set_auto_history(self, on: bool) -> None:
        readline = _readline()
        if readline is not None:
            readline.set_auto_history(on)


def _readline() -> Any:
    try:
        import readline
    except ImportError:
        return None
    return readline


def _complain(error: RsllmError) -> None:
    hint = f"\n{error.hint[0].upper()}{error.hint[1:]}" if error.hint else ""
    click.echo(f"Error: {error}{hint}", err=True)
