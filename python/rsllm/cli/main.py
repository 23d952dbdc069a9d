"""The command `rsllm`: its subcommands, and what becomes of errors.

Exit codes: 0 success, 1 failure, 2 a mistake on the command line (unknown option, value out of range), 130 Ctrl-C. An
error is one line on standard error, with a second one where there is something to do about it; `RSLLM_DEBUG=1` adds
the traceback. A reader that goes away (`rsllm run … | head`) ends the command without a word.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from rsllm.cli.common import HELP_OPTIONS
from rsllm.config import config
from rsllm.errors import CoreImportError, OptionError, RsllmError

__all__ = ["cli", "main"]

# The module of each command, in the order of the help, and its name there where that is not `command`.
_COMMANDS = {
    "serve": "serve",
    "create": "create",
    "show": "show",
    "run": "run",
    "stop": "stop",
    "pull": "pull",
    "push": "push",
    "signin": "account:signin",
    "signout": "account:signout",
    "list": "listing",
    "ps": "ps",
    "cp": "cp",
    "rm": "rm",
    "tokenize": "tokenize",
    "bench": "bench",
    "perplexity": "perplexity",
    "quantize": "quantize",
    "gguf": "gguf",
    "prune": "prune",
    "doctor": "doctor",
}
# What the commands that ask the server take from the environment.
_SERVER_VARIABLES = {"OLLAMA_HOST": "the server, in all forms (default 127.0.0.1:11434)"}
_VARIABLES = {
    **dict.fromkeys(("create", "show", "stop", "pull", "push", "list", "ps", "cp", "rm"), _SERVER_VARIABLES),
    "run": {
        **_SERVER_VARIABLES,
        "OLLAMA_EDITOR": "the editor of Ctrl-G (before VISUAL and EDITOR)",
        "OLLAMA_NOHISTORY": "1: keep no history of conversations",
    },
}
# How Go's flags spell what is and what is not.
_TRUE, _FALSE = ("1", "t", "true"), ("0", "f", "false")
_ALIASES = {"start": "serve", "ls": "list", "login": "signin", "logout": "signout"}

_EXIT_FAILURE = 1
_EXIT_USAGE = 2
_EXIT_INTERRUPTED = 130


class _Cli(click.Group):
    """Imports a command's module when it is called, and turns errors into messages and exit codes."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        name = _ALIASES.get(name, name)
        if name == "help":
            return _help
        if name not in _COMMANDS:
            return None
        module, _, member = _COMMANDS[name].partition(":")
        command: click.Command = getattr(importlib.import_module(f"rsllm.cli.{module}"), member or "command")
        if command.epilog is None and (variables := _VARIABLES.get(name)):
            lines = (f"  {variable:<18}{meaning}" for variable, meaning in variables.items())
            command.epilog = "\b\nEnvironment variables:\n" + "\n".join(lines)
        return command

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            name, command, rest = super().resolve_command(context, arguments)
            return name, command, rest if command is None else _without_values(command, rest)
        except click.UsageError:
            import difflib

            close = difflib.get_close_matches(arguments[0], _COMMANDS, n=1)
            if not close:
                raise
            raise click.UsageError(f"No such command {arguments[0]!r}; did you mean {close[0]!r}?", context) from None

    def _main_shell_completion(self, context_arguments: Any, prog_name: str, complete_var: str | None = None) -> None:
        variable = complete_var or f"_{prog_name}_COMPLETE".replace("-", "_").replace(".", "_").upper()
        if variable in os.environ:  # a shell asks, and only then is it imported
            from rsllm.cli.completion import register

            register()
        super()._main_shell_completion(context_arguments, prog_name, complete_var)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, **extra)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # a terminal without é is no reason to stop
        try:
            code = super().main(args, prog_name, complete_var, False, **extra)
        except (click.Abort, KeyboardInterrupt):
            code = _EXIT_INTERRUPTED
        except Exception as error:
            code = _report(error)
        sys.exit(code if isinstance(code, int) else 0)


def _without_values(command: click.Command, arguments: list[str]) -> list[str]:
    """The arguments with flags as they are written here: Ollama's may be `--truncate=false`, as all of Go's."""
    flags = {
        spelled: option
        for option in command.params
        if isinstance(option, click.Option) and option.is_flag
        for spelled in (*option.opts, *option.secondary_opts)
        if spelled.startswith("--") and isinstance(option.type, click.types.BoolParamType)
    }
    end = arguments.index("--") if "--" in arguments else len(arguments)
    written = []
    for argument in arguments[:end]:
        name, equals, value = argument.partition("=")
        option = flags.get(name) if equals else None
        if option is None or value.lower() not in (*_TRUE, *_FALSE):
            written.append(argument)
        elif value.lower() in _TRUE:
            written.append(name)
        else:
            written.extend(option.secondary_opts[:1] if name in option.opts else option.opts[:1])
    return [*written, *arguments[end:]]


def _version(context: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked:
        import rsllm

        click.echo(f"rsllm {rsllm.__version__}")
        context.exit()


@click.group(
    cls=_Cli,
    context_settings=HELP_OPTIONS,
    epilog='Shell completion: eval "$(_RSLLM_COMPLETE=bash_source rsllm)", or zsh_source, or fish_source.',
)
@click.option(
    "-v", "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version."
)
def cli() -> None:
    """Run large language models on this machine.

    Commands that name a model of the store ask the server at OLLAMA_HOST, ours or a running Ollama, and start one where
    none answers (RSLLM_SERVER=never keeps them from it).

    \b
    Examples:
      rsllm run qwen3:0.6b "Why is the sky blue?"
      rsllm run demo "Why is the sky blue?"
      rsllm run ./model.gguf
      rsllm list
    """


@click.command("help", hidden=True)
@click.argument("name", required=False)
@click.pass_context
def _help(context: click.Context, name: str | None) -> None:
    """Show the help of a command.

    \b
    Examples:
      rsllm help run
    """
    parent = context.parent
    assert parent is not None, "it is a command of the group"
    command = parent.command
    if name is None:
        click.echo(parent.get_help())
        return
    found = command.get_command(parent, name) if isinstance(command, click.Group) else None
    if found is None:
        raise click.UsageError(f"No such command {name!r}.", parent)
    with click.Context(found, info_name=name, parent=parent) as of_command:
        click.echo(found.get_help(of_command))


def main() -> None:
    """The entry point of the installed script."""
    cli(prog_name="rsllm")


def _debug() -> bool:
    """Whether tracebacks are wanted; not where it is the environment that is wrong."""
    try:
        return config().debug
    except RsllmError:
        return False


def _report(error: Exception) -> int:
    """Say what went wrong; the exit code."""
    if isinstance(error, ImportError):
        error = CoreImportError.of(error) or error
    if _debug():
        import traceback

        traceback.print_exception(error)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return _EXIT_USAGE
    hint = None
    code = _EXIT_FAILURE
    if isinstance(error, click.UsageError):
        message, code = error.format_message(), _EXIT_USAGE
        hint = f"Try '{error.ctx.command_path} --help'." if error.ctx is not None else None
    elif isinstance(error, click.ClickException):
        message, code = error.format_message(), error.exit_code
    elif isinstance(error, RsllmError):
        message, hint = str(error), error.hint
        code = _EXIT_USAGE if isinstance(error, OptionError) else _EXIT_FAILURE
    elif isinstance(error, OSError):
        message = f"{error.strerror}: {error.filename}" if error.filename else str(error)
    else:
        message = f"internal error: {type(error).__name__}: {error}"
        hint = "This is a fault of rsllm; RSLLM_DEBUG=1 shows where."
    click.echo(f"Error: {message}", err=True)
    if hint:
        click.echo(hint[0].upper() + hint[1:], err=True)
    return code
