"""One store, eight processes: whatever they do at once, and whenever one is killed, what is left is sound.

`python -m tests.store_processes` is the long form with figures.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.store_processes import PROCESSES, run


def check_run(root: Path, seconds: float, *, kill: bool) -> None:
    outcome = run(root, seconds=seconds, kill=kill, seed=int(seconds))
    print(
        f"{PROCESSES} processes, {seconds:g} s, {outcome.killed} killed, pulls: {outcome.pulls}: {dict(outcome.done)}"
    )
    assert outcome.faults == []
    if kill:
        assert outcome.killed > 0
    else:  # those who are killed do not tell what they did
        assert {"create", "copy", "delete", "prune", "read"} <= set(outcome.done)
        assert outcome.done["pull"] > 0 or not outcome.pulls


@pytest.mark.parametrize("kill", [False, True], ids=["alive", "killed"])
def test_processes_leave_a_sound_store(tmp_path: Path, kill: bool) -> None:
    check_run(tmp_path / "ü", 4, kill=kill)


@pytest.mark.soak
@pytest.mark.timeout(180)
@pytest.mark.parametrize("kill", [False, True], ids=["alive", "killed"])
def test_processes_leave_a_sound_store_after_a_minute(tmp_path: Path, kill: bool) -> None:
    check_run(tmp_path, 60, kill=kill)
