"""State of the engine on the real models: equal bits, saved prefixes, shifted contexts, a child that nobody stops."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy
import pytest

import rsllm
from rsllm import _core
from rsllm.errors import OptionError
from tests.bit_equality import checks
from tests.support.reference import Reference

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


def test_a_saved_prefix_is_taken_up_by_another_model_of_the_same_file(
    smollm2_path: Path, gemma3_path: Path, tmp_path: Path
) -> None:
    text = "A long text about salt and stones. " * 40
    saved: dict[Path, bytes] = {}
    for path in (smollm2_path, gemma3_path):
        with rsllm.load(path, context=1024, threads=2) as first:
            count = len(first.tokenize(text, add_special=True)) // 64 * 64
            saved[path] = first.save_prefix(text)
            file = first.persist_prefix(text, tmp_path)
            expected = first.generate(text, max_tokens=8, temperature=0.0)
        with rsllm.load(path, context=1024, threads=2) as second:
            assert second.restore_prefix(saved[path]) == count
            assert (file, count, None) in second.restore_prefixes(tmp_path)
            reply = second.generate(text, max_tokens=8, temperature=0.0)
            assert (reply.tokens, reply.stats.cached_tokens) == (expected.tokens, count)
            with pytest.raises(OptionError, match="damaged"):
                second.restore_prefix(saved[path][:-1] + bytes([saved[path][-1] ^ 1]))
        with rsllm.load(path, context=1024, threads=2) as third:
            assert third.restore_prefixes(tmp_path / "none") == []
            assert (file, count, None) in third.restore_prefixes(tmp_path)
            assert third.generate(text, max_tokens=1).stats.cached_tokens == count
    with rsllm.load(smollm2_path, context=1024, threads=2) as other:
        with pytest.raises(OptionError, match="another model"):
            other.restore_prefix(saved[gemma3_path])
        assert [error for _, _, error in other.restore_prefixes(tmp_path)] == [None], "another model's is left alone"
    with (
        rsllm.load(smollm2_path, context=1024, threads=2, kv_type="q8_0") as quantised,
        pytest.raises(OptionError, match="q8_0"),
    ):
        quantised.restore_prefix(saved[smollm2_path])


@pytest.mark.reference
def test_every_kv_type_is_near_the_exact_one(smollm2_path: Path, reference_python: Path) -> None:
    """Within some five times what was measured, and nearer than the reference engine with the same type."""
    text = "The river rises in the mountains, passes three towns and a lake, and reaches the sea after 900 miles. " * 3

    def scores(kv_type: Any) -> numpy.ndarray[Any, Any]:
        with rsllm.load(smollm2_path, context=256, threads=2, kv_type=kv_type) as model:
            return model.logits(ids)

    def theirs(kv_type: Any) -> numpy.ndarray[Any, Any]:
        with Reference(smollm2_path, kv_type=kv_type, context=256) as engine:
            return engine.logits(ids)

    with rsllm.load(smollm2_path, context=256) as model:
        ids = model.tokenize(text)
    exact = scores("f32")
    for kv_type, bound in {"f16": 2e-4, "bf16": 3e-4, "q8_0": 2.5e-3, "q4_0": 0.15}.items():
        assert 0 < divergence(exact, scores(kv_type)) < bound, kv_type
    for kv_type in ("q8_0", "q4_0"):
        assert divergence(exact, scores(kv_type)) < divergence(theirs("f32"), theirs(kv_type)), kv_type


def divergence(exact: numpy.ndarray[Any, Any], found: numpy.ndarray[Any, Any]) -> float:
    """The mean KL divergence of rows of scores."""
    one, other = (
        rows - numpy.log(numpy.exp(rows).sum(axis=1, keepdims=True))
        for rows in (exact.astype(numpy.float64), found.astype(numpy.float64))
    )
    return float((numpy.exp(one) * (one - other)).sum(axis=1).mean())


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
