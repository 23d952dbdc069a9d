"""State of the engine on the real models: equal bits, saved prefixes, shifted contexts, a child that nobody stops."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rsllm import _core
from rsllm.errors import OptionError
from tests.bit_equality import checks

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(300)]

BUSY = """
    import os, sys
    from rsllm import _core
    assert _core.exit_when_closed(int(sys.argv[1]), status=7, grace_ms=50)
    print("watching", flush=True)
    sys.setswitchinterval(3600)  # no other thread of the interpreter gets a turn
    while True:
        pass
"""

PARENT = """
    import os, socket, subprocess, sys
    mine, theirs = socket.socketpair()
    child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(theirs.fileno())], pass_fds=[theirs.fileno()])
    theirs.close()
    print(child.pid, flush=True)
    child.wait()
"""


def test_numbers_do_not_depend_on_company_threads_or_cuts(smollm2_path: Path, gemma3_path: Path) -> None:
    for path in (smollm2_path, gemma3_path):
        assert [check for check in checks(path, quick=True) if check.different] == []


def test_a_saved_prefix_is_taken_up_by_another_engine(smollm2_path: Path, gemma3_path: Path, tmp_path: Path) -> None:
    for path in (smollm2_path, gemma3_path):
        options = {"max_tokens": 8, "temperature": 0.0}
        first = _core.Engine(str(path), context=1024, threads=2)
        ids = first.tokenize("A long text about salt and stones. " * 40, add_special=True)
        saved = first.save_prefix(ids)
        file = first.persist_prefix(ids, str(tmp_path))
        expected = answer(first.generate(ids, options))
        first.close()
        second = _core.Engine(str(path), context=1024, threads=2)
        assert second.restore_prefix(saved) == len(ids) // 64 * 64
        assert (file, len(ids) // 64 * 64, None) in second.restore_prefixes(str(tmp_path))
        generation = second.generate(ids, options)
        assert answer(generation) == expected
        assert generation.stats()["cached_tokens"] == len(ids) // 64 * 64
        with pytest.raises(OptionError, match="damaged"):
            second.restore_prefix(saved[:-1] + bytes([saved[-1] ^ 1]))
        second.close()


def test_a_full_context_is_shifted_when_asked_for(smollm2_path: Path) -> None:
    engine = _core.Engine(str(smollm2_path), context=128, threads=2)
    ids = engine.tokenize("Count: 1 2 3")
    options = {"max_tokens": 300, "temperature": 0.0, "ignore_eos": True}
    generation = engine.generate(ids, options)
    assert len(answer(generation)) == 129 - len(ids)
    assert (generation.stats()["finish_reason"], generation.stats()["shifts"]) == ("context", 0)
    generation = engine.generate(ids, {**options, "shift": True, "num_keep": 4})
    assert len(answer(generation)) == 300
    stats = generation.stats()
    assert stats["finish_reason"] == "length" and stats["shifts"] >= 3 and stats["dropped_tokens"] >= 3 * 60
    engine.close()


def test_what_a_schema_does_not_enforce_is_said(smollm2_path: Path) -> None:
    engine = _core.Engine(str(smollm2_path), context=256, threads=2)
    schema = '{"oneOf": [{"type": "boolean"}, {"type": "null"}]}'
    generation = engine.generate([1, 2, 3], {"schema": schema, "max_tokens": 8})
    answer(generation)
    assert generation.stats()["warnings"] == ["oneOf at # is enforced as anyOf"]
    engine.close()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no socket pairs to inherit")
def test_a_child_that_holds_the_interpreter_ends_with_its_socket() -> None:
    mine, theirs = socket.socketpair()
    child = busy_child(theirs.fileno())
    theirs.close()
    assert child.stdout is not None and child.stdout.readline() == "watching\n"
    mine.close()
    assert child.wait(timeout=20) == 7
    child.stdout.close()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no socket pairs to inherit")
def test_a_child_that_holds_the_interpreter_ends_when_its_parent_is_killed() -> None:
    code = [textwrap.dedent(PARENT), textwrap.dedent(BUSY)]
    with subprocess.Popen([sys.executable, "-c", *code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        lines = {parent.stdout.readline().strip(), parent.stdout.readline().strip()}
        child = int((lines - {"watching"}).pop())
        os.kill(child, 0)
        parent.kill()
        # The child inherited the pipe: it ends when both are gone.
        assert parent.stdout.read() == ""


def busy_child(fd: int) -> subprocess.Popen[str]:
    """A process that watches `fd` and then computes for ever; nothing asks the kernel to kill it with its parent."""
    command = [sys.executable, "-c", textwrap.dedent(BUSY), str(fd)]
    return subprocess.Popen(command, pass_fds=[fd], stdout=subprocess.PIPE, text=True)


def answer(generation: _core.Generation) -> list[int]:
    ids: list[int] = []
    while (piece := generation.next()) is not None:
        ids += piece[1]
    return ids
