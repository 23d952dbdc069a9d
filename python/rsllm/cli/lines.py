"""Lines that a person types: editing, a history, lines of several lines, and an editor.

Editing is readline's, from the standard library, with the keys of the user's own `inputrc`; two are added. Ctrl-J puts
a line break into the line. Ctrl-G opens an editor (`OLLAMA_EDITOR`, `VISUAL`, `EDITOR`, else vi) with what stands in
the line so far, and its text comes back to be edited or sent. Without readline plain lines are read.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from rsllm.config import config

__all__ = ["Lines"]

_HISTORY_LINES = 1000
# What Ctrl-G does: it puts itself before the line, and sends it.
_EDIT = "\x07"
_KEYS = (r'"\C-g": "\C-a\C-v\C-g\C-m"', r'"\C-j": "\C-v\C-j"')


class Lines:
    """The person at the terminal; use it as a context, at whose end the history is written."""

    def __init__(self) -> None:
        self._readline = _readline()
        self._stack = contextlib.ExitStack()
        self._keep_history = config().history_file is not None
        self._prompt = ""

    def __enter__(self) -> Lines:
        if self._readline is not None:
            if "libedit" not in (self._readline.__doc__ or ""):  # which binds keys in its own words
                for key in _KEYS:
                    self._readline.parse_and_bind(key)
            if (path := config().history_file) is not None:
                with contextlib.suppress(OSError):
                    self._readline.read_history_file(path)
                self._readline.set_history_length(_HISTORY_LINES)
        self._stack.enter_context(self._terminal())
        return self

    def __exit__(self, *failure: object) -> None:
        self._stack.close()
        path = config().history_file
        if self._readline is not None and path is not None and self._keep_history:
            with contextlib.suppress(OSError):  # a read-only home is no reason to fail at the end
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch(mode=0o600)
                self._readline.write_history_file(path)

    def read(self, prompt: str) -> str:
        """The next line; raises `EOFError`, `KeyboardInterrupt`."""
        self._prompt = prompt
        try:
            return self._read(prompt)
        finally:
            self._prompt = ""

    def _read(self, prompt: str) -> str:
        line = input(prompt)
        while line.startswith(_EDIT):
            self._forget_last()
            line = self._again(prompt, _edited(line.removeprefix(_EDIT)))
        if "\n" in line:
            self._remember_as_one_line(line)
        return line

    def keep_history(self, on: bool) -> bool:
        """Whether lines are remembered from here on; they are not where the environment forbids it."""
        self._keep_history = on and config().history_file is not None
        if self._readline is not None:
            self._readline.set_auto_history(self._keep_history)
        return self._keep_history

    def _again(self, prompt: str, text: str) -> str:
        """A line that begins with a text."""
        if self._readline is None:
            return text
        self._readline.set_startup_hook(lambda: self._readline.insert_text(text))
        try:
            return input(prompt)
        finally:
            self._readline.set_startup_hook(None)

    @contextlib.contextmanager
    def _terminal(self) -> Iterator[None]:
        """Keep Return and Ctrl-J apart, also for what is typed while an answer comes, and suspend at Ctrl-Z."""
        try:
            import termios
        except ImportError:
            yield
            return
        if sys.stdin is None or sys.stdin.closed or not sys.stdin.isatty():
            yield
            return
        import signal

        before = termios.tcgetattr(sys.stdin)

        def suspend(number: int, frame: object) -> None:
            editing = termios.tcgetattr(sys.stdin)
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)  # from here on by SIGCONT
            signal.signal(signal.SIGTSTP, suspend)
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, editing)
            if self._prompt and self._readline is not None:
                print(self._prompt + self._readline.get_line_buffer(), end="", flush=True)

        handler = signal.signal(signal.SIGTSTP, suspend)
        termios.tcsetattr(sys.stdin, termios.TCSANOW, [before[0] & ~termios.ICRNL, *before[1:]])
        try:
            yield
        finally:
            signal.signal(signal.SIGTSTP, handler)
            termios.tcsetattr(sys.stdin, termios.TCSANOW, before)

    def _forget_last(self) -> None:
        """The line that Ctrl-G sent is none."""
        if self._readline is not None and (count := self._readline.get_current_history_length()):
            if (self._readline.get_history_item(count) or "").startswith(_EDIT):
                self._readline.remove_history_item(count - 1)

    def _remember_as_one_line(self, line: str) -> None:
        """The file of the history has an entry a line."""
        if self._readline is not None and (count := self._readline.get_current_history_length()):
            if self._readline.get_history_item(count) == line:
                self._readline.replace_history_item(count - 1, " ".join(line.splitlines()))


def _edited(text: str) -> str:
    """The text as it is when the editor ends; as it was where there is none."""
    with tempfile.TemporaryDirectory(prefix="rsllm-") as folder:
        path = Path(folder) / "message.txt"
        path.write_text(text)
        command = shlex.split(config().editor or "vi")
        try:
            subprocess.run([*command, str(path)], check=True)
            return path.read_text(errors="replace").rstrip("\n")
        except (OSError, subprocess.CalledProcessError) as error:
            click.echo(f"error: {error}", err=True)
            click.echo("OLLAMA_EDITOR chooses the editor.", err=True)
            return text


def _readline() -> Any:
    try:
        import readline
    except ImportError:
        return None
    return readline
