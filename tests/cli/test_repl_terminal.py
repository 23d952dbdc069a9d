"""The conversation on a pseudo-terminal: every key, one by one, the history, Ctrl-C and Ctrl-Z."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import subprocess
import sys
import termios
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

pytestmark = pytest.mark.timeout(120)

SCRIPT = """
import time
from rsllm.cli.repl import Repl
from rsllm.cli.sessions import Chunk
from rsllm.cli.settings import Settings

class Echo:
    settings, notes, timings = Settings(), [], []

    def history(self):
        return []

    def answer(self, message):
        yield Chunk("GOT " + ascii(message))
        while message == "endless":
            time.sleep(0.02)
            yield Chunk(".")
        if message == "slow":
            time.sleep(1)
        yield Chunk(" END")

Repl(Echo()).run()
print("LEFT")
"""

# As a shell with job control: who stops gives the terminal back, and gets it again a moment later.
SHELL = """
import os, signal, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
child = os.fork()
if not child:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.executable, [sys.executable, sys.argv[1]])
while not os.WIFEXITED(status := os.waitpid(child, os.WUNTRACED)[1]):
    if os.WIFSIGNALED(status):
        sys.exit(1)
    os.tcsetpgrp(0, os.getpgrp())
    print("SHELL", flush=True)
    os.tcsetpgrp(0, child)
    os.killpg(child, signal.SIGCONT)
sys.exit(os.WEXITSTATUS(status))
"""


class Terminal:
    """A conversation that is typed into."""

    def __init__(self, folder: Path, *, in_shell: bool = False, **environment: str) -> None:
        self.history = folder / "state" / "history"
        script = folder / "talk.py"
        script.write_text(textwrap.dedent(SCRIPT))
        self._parent, child = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, *(["-c", SHELL] if in_shell else []), str(script)],
            stdin=child,
            stdout=child,
            stderr=child,
            env={
                **os.environ,
                "RSLLM_HISTORY": str(self.history),
                "TERM": "xterm",
                "INPUTRC": "/dev/null",
                **environment,
            },
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(child)
        self._output = b""

    def type(self, keys: str) -> None:
        os.write(self._parent, keys.encode())

    def until(self, text: str, *, again: str = "") -> str:
        """What comes before the text, which is waited for; `again` is typed when nothing comes for a while.

        Python hears of a signal with the next key where it comes just before waiting for one.
        """
        deadline = time.monotonic() + 40
        while text.encode() not in self._output:
            assert time.monotonic() < deadline, self._output
            if select.select([self._parent], [], [], 4)[0]:
                self._output += os.read(self._parent, 4096)
            elif again:
                self.type(again)
        before, _, self._output = self._output.partition(text.encode())
        return before.decode(errors="replace")

    def message(self) -> str:
        """The message that was sent."""
        self.until("GOT '")
        return self.until("' END")

    def end(self) -> None:
        self.until("LEFT")
        assert self._process.wait(20) == 0

    def __enter__(self) -> Self:
        self.until(">>> ")
        return self

    def __exit__(self, *failure: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)
        self._process.kill()
        self._process.wait()
        os.close(self._parent)


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """One conversation for all keys that leave it as it was."""
    folder = tmp_path_factory.mktemp("terminal")
    editor = folder / "my editor"
    editor.write_text('#!/bin/sh\nprintf " and more\\nlines\\n" >> "$2"\n')
    editor.chmod(0o755)
    with Terminal(folder, OLLAMA_EDITOR=f"'{editor}' --wait") as terminal:
        yield terminal
        terminal.type("\x04")
        terminal.end()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("world\x01hello ", "hello world"),
        ("b\x01a\x05c", "abc"),
        ("ac\x02b", "abc"),
        ("abd\x02\x02\x06c", "abcd"),
        ("ac\x1b[Db", "abc"),
        ("abd\x1b[D\x1b[D\x1b[Cc", "abcd"),
        ("one two\x1bbX", "one Xtwo"),
        ("one two\x01\x1bfX", "oneX two"),
        ("abc\x01\x06\x0b", "a"),
        ("abc\x15d", "d"),
        ("one two\x17three", "one three"),
        ("one\ntwo", r"one\ntwo"),
        ("abx\x7fc", "abc"),
        ("abxc\x02\x02\x1b[3~", "abc"),
        ("first\x0c", "first"),
        ("\x1b[200~one\ntwo\x1b[201~ three", r"one\ntwo three"),
        ('"""one\rtwo\rthree"""', r"one\ntwo\nthree"),
        ("mine", "mine"),
        ("\x10", "mine"),
        ("\x1b[A", "mine"),
        ("\x10\x10\x10\x0e\x0e", "mine"),
    ],
    ids=lambda value: ascii(value),
)
def test_keys(terminal: Terminal, keys: str, message: str) -> None:
    terminal.type(keys + "\r")
    assert terminal.message() == message
    terminal.until(">>> ")


def test_an_editor_goes_on_with_the_line(terminal: Terminal) -> None:
    terminal.type("a draft\x07")
    terminal.until("lines")  # it is shown again, to be sent or edited further
    terminal.type("!\r")
    assert terminal.message() == r"a draft and more\nlines!"
    terminal.until(">>> ")
    # In the history it is one line, and what asked for the editor is none.
    terminal.type("\x10\r")
    assert terminal.message() == "a draft and more lines!"
    terminal.until(">>> ")


def test_what_is_typed_during_an_answer_is_the_next_message(terminal: Terminal) -> None:
    terminal.type("slow\r")
    terminal.until("GOT 'slow'")
    terminal.type("next\r")
    assert terminal.message() == "next"
    terminal.until(">>> ")


def test_lines_end_between_words(tmp_path: Path) -> None:
    with Terminal(tmp_path, COLUMNS="40") as terminal:
        terminal.type("word " * 12 + "\r")
        shown = terminal.message()
        assert "\r\n" in shown or "\x1b[K" in shown
        terminal.type("/set nowordwrap\r")
        terminal.until("Set 'nowordwrap' mode.")
        terminal.type("word " * 12 + "\r")
        assert terminal.message() == "word " * 12


def test_without_an_editor_the_line_stays(tmp_path: Path) -> None:
    with Terminal(tmp_path, OLLAMA_EDITOR="/no/such/editor") as terminal:
        terminal.type("a draft\x07")
        terminal.until("OLLAMA_EDITOR chooses the editor.")
        terminal.type("!\r")
        assert terminal.message() == "a draft!"


def test_ctrl_c_stops_the_answer_and_the_history_is_kept(tmp_path: Path) -> None:
    with Terminal(tmp_path) as terminal:
        terminal.type("endless\r")
        terminal.until("GOT 'endless'")
        terminal.type("\x03")
        terminal.until(">>> ")
        time.sleep(0.3)
        terminal.type("\x03")
        terminal.until("Use Ctrl + d or /bye to exit.", again="\x03")
        terminal.type("/set nohistory\r")
        terminal.until("History is off.")
        terminal.type("/bye\r")
        terminal.end()
    assert not terminal.history.exists()
    with Terminal(tmp_path) as terminal:
        terminal.type("hello there\r")
        assert terminal.message() == "hello there"
        terminal.type("/bye\r")
        terminal.end()
    assert "hello there" in terminal.history.read_text()
    assert terminal.history.stat().st_mode & 0o077 == 0
    with Terminal(tmp_path) as terminal:
        terminal.type("\x10\x10\r")
        assert terminal.message() == "hello there"


def test_ctrl_z_suspends(tmp_path: Path) -> None:
    with Terminal(tmp_path, in_shell=True) as terminal:
        terminal.type("some")
        terminal.until("some")  # the signal drops what has not been read
        time.sleep(0.3)  # until the conversation waits for the next key; see `until`
        terminal.type("\x1a")
        terminal.until("SHELL", again="\x1a")  # it has the terminal, and brings the conversation back
        terminal.until(">>> some")
        terminal.type(" words\r")
        assert terminal.message() == "some words"
        terminal.until(">>> ")
        terminal.type("\x04")
        terminal.end()
