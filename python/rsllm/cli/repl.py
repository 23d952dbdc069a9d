"""The conversation on a terminal: prompt, history, multi-line messages, and commands that begin with a slash.

How a line is edited is the affair of `rsllm.cli.lines`. Ctrl-C stops the answer and keeps the conversation, Ctrl-D
leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from rsllm.cli import media
from rsllm.cli.lines import Lines
from rsllm.cli.run import print_timings, stream_to
from rsllm.cli.settings import parse_think, request_options
from rsllm.errors import ModelNameError, ModelNotFoundError, OptionError, RsllmError
from rsllm.options import OPTIONS

if TYPE_CHECKING:
    from rsllm.cli.sessions import Session

__all__ = ["Repl"]

_QUOTES = '"""'

_HELP = """\
Available commands:
  /set             Set session variables
  /show            Show model information
  /load MODEL      Go on with another model of the server
  /save NAME       Make a model of this one, its settings and the conversation
  /list            List the models there are
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
  /set wordwrap               End lines between words
  /set nowordwrap             Do not
  /set format json            Answer in JSON
  /set noformat               Do not
  /set think [LEVEL]          Let the model think first: high, medium, low, max
  /set nothink                Do not
  /set verbose                Show timings after each answer
  /set quiet                  Do not""",
    "show": """\
Available commands:
  /show info                  The model, and how it was loaded
  /show parameters            Options, their values and meanings
  /show system                The system message
  /show template              The chat template
  /show license               The licence
  /show modelfile             The Modelfile""",
    "shortcuts": """\
  Ctrl-A, Ctrl-E              Begin and end of the line
  Alt-B, Alt-F                A word back and on
  Ctrl-K, Ctrl-U, Ctrl-W      Delete to the end, to the begin, the word before
  Ctrl-P, Ctrl-N, Ctrl-R      Back, on and search in the history
  Ctrl-L                      Clear the screen
  Ctrl-J                      A line break in the message
  Ctrl-G                      Go on in an editor
  Ctrl-Z                      Suspend
  Ctrl-C                      Stop the answer
  Ctrl-D                      Leave""",
}


class Repl:
    """One conversation. `read` is `input`, or a stand-in that raises `EOFError` at the end."""

    def __init__(
        self,
        session: Session,
        *,
        verbose: bool = False,
        hide_thinking: bool = False,
        wrap: bool = True,
        read: Callable[[str], str] | None = None,
    ) -> None:
        self._session = session
        self._settings = session.settings
        self._verbose = verbose
        self._hide_thinking = hide_thinking
        self._wrap = wrap
        self._lines = Lines()
        self._read = read or self._lines.read

    def run(self) -> None:
        """Read and answer until the user leaves."""
        click.echo("Send a message (/? for help)", err=True)
        self._print_history()
        with self._lines:
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
                if message.startswith("/") and not _is_a_file(message):
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

    def _print_history(self) -> None:
        """The conversation that the model starts with."""
        try:
            history = self._session.history()
        except RsllmError as error:  # it can be talked to all the same
            _complain(error)
            return
        for message in history:
            prefix = ">>> " if message.get("role") == "user" else ""
            if message.get("role") != "system":
                click.echo(f"{prefix}{message.get('content', '')}" + ("" if prefix else "\n"))

    def _answer(self, message: str) -> None:
        try:
            stream_to(self._session.answer(message), hide_thinking=self._hide_thinking, wrap=self._wrap)
        except KeyboardInterrupt:
            click.echo()
            return
        except RsllmError as error:
            _complain(error)
            return
        for note in self._session.notes:
            click.echo(note, err=True)
        if self._verbose:
            print_timings(self._session)
        click.echo()

    def _command(self, line: str) -> bool:
        """Carry out a slash command; false to leave."""
        name, _, rest = line.partition(" ")
        if name in ("/bye", "/exit"):
            return False
        commands: dict[str, Callable[[str], None]] = {
            "/?": lambda topic: click.echo(_HELP_TOPICS.get(topic.removeprefix("/"), _HELP)),
            "/help": lambda topic: click.echo(_HELP_TOPICS.get(topic.removeprefix("/"), _HELP)),
            "/clear": lambda _: self._clear(),
            "/set": self._set,
            "/show": self._show,
            "/load": self._load,
            "/save": self._save,
            "/list": lambda _: click.echo(self._session.models()),
            "/ls": lambda _: click.echo(self._session.models()),
        }
        command = commands.get(name)
        if command is None:
            click.echo(f"Unknown command '{name}'. Type /? for help")
            return True
        try:
            command(rest.strip())
        except KeyboardInterrupt:
            click.echo()
        except RsllmError as error:
            _complain(error)
        return True

    def _clear(self) -> None:
        self._session.clear()
        click.echo("Cleared session context")

    def _set(self, line: str) -> None:
        what, _, rest = line.partition(" ")
        rest = rest.strip()
        setters: dict[str, Callable[[str, str], None]] = {
            "parameter": lambda _, value: self._set_parameter(value),
            "system": lambda _, value: self._set_system(value),
            "history": self._set_history,
            "nohistory": self._set_history,
            "wordwrap": self._set_wrap,
            "nowordwrap": self._set_wrap,
            "verbose": self._set_verbose,
            "quiet": self._set_verbose,
            "format": lambda _, value: self._set_format(value),
            "noformat": lambda *_: self._set_format(None),
            "think": lambda _, value: self._set_think(value or True),
            "nothink": lambda *_: self._set_think(False),
        }
        if what in setters:
            setters[what](what, rest)
        elif what:
            click.echo(f"Unknown command '/set {what}'. Type /? for help")
        else:
            click.echo(_HELP_TOPICS["set"])

    def _set_history(self, what: str, _: str) -> None:
        is_on = self._lines.keep_history(what == "history")
        click.echo("History is on." if is_on else "History is off.")

    def _set_verbose(self, what: str, _: str) -> None:
        self._verbose = what == "verbose"
        click.echo(f"Set '{what}' mode.")

    def _set_wrap(self, what: str, _: str) -> None:
        self._wrap = what == "wordwrap"
        click.echo(f"Set '{what}' mode.")

    def _set_parameter(self, line: str) -> None:
        name, _, text = line.partition(" ")
        try:
            if not text.strip():
                raise OptionError("write /set parameter NAME VALUE")
            self._session.set_parameter(name, text.strip())
        except OptionError as error:
            click.echo(f'Couldn\'t set parameter: "{error}"')
            return
        click.echo(f"Set parameter '{name}' to '{', '.join(text.split())}'")

    def _set_system(self, text: str) -> None:
        if self._settings.raw:
            click.echo("There is no system message with --raw.")
            return
        self._settings.system = text or None
        click.echo("Set system message.")

    def _set_format(self, text: str | None) -> None:
        if text is None:
            self._settings.format = None
            click.echo("Disabled format.")
        elif text == "json":
            self._settings.format = text
            click.echo("Set format to 'json' mode.")
        else:
            click.echo("Invalid or missing format. For 'json' mode use '/set format json'")

    def _set_think(self, level: bool | str) -> None:
        if isinstance(level, str):
            level = parse_think(level)
        self._settings.think = level
        mode = "think" if level else "nothink"
        click.echo(f"Set '{mode}' mode to '{level}'." if isinstance(level, str) else f"Set '{mode}' mode.")

    def _show(self, what: str) -> None:
        if what == "parameters":
            self._show_parameters()
        elif what in ("info", "license", "modelfile", "system", "template"):
            click.echo(self._session.show(what))
        elif what:
            click.echo(f"Unknown command '/show {what}'. Type /? for help")
        else:
            click.echo(_HELP_TOPICS["show"])

    def _show_parameters(self) -> None:
        """The model's own, the user's, and what there is."""
        try:
            defined = self._session.show("parameters")
        except OptionError:  # a file has none
            defined = ""
        click.echo("Model defined parameters:")
        nothing = "No additional parameters were specified for this model."
        click.echo("\n".join(f"  {line}" for line in (defined or nothing).splitlines()) + "\n")
        options = self._settings.options
        if options or self._settings.loading:
            click.echo("User defined parameters:")
            for name, value in {**request_options(options), **self._settings.loading}.items():
                for one in value if isinstance(value, list) else [value]:
                    click.echo(f"  {name:<30} {one}")
            click.echo()
        for option in OPTIONS.values():
            mark = "*" if option.name in options else " "
            click.echo(f"{mark} {option.name:<18}{options.get(option.name, option.default)!s:<10}{option.help}")

    def _load(self, name: str) -> None:
        if not name:
            click.echo("Usage:\n  /load <modelname>")
            return
        click.echo(f"Loading model '{name}'")
        try:
            self._session.load(name)
        except ModelNotFoundError:
            click.echo(f"Couldn't find model '{name}'")

    def _save(self, name: str) -> None:
        if not name:
            click.echo("Usage:\n  /save <modelname>")
            return
        try:
            self._session.save(name)
        except ModelNameError:
            click.echo(f"error: The model name '{name}' is invalid")
            return
        click.echo(f"Created new model '{name}'")


def _is_a_file(message: str) -> bool:
    """Whether a message begins with the path of an image or a sound, and not with a command."""
    return any(message.startswith(file.written) for file in media.found(message))


def _complain(error: RsllmError) -> None:
    hint = f"\n{error.hint[0].upper()}{error.hint[1:]}" if error.hint else ""
    click.echo(f"Error: {error}{hint}", err=True)
