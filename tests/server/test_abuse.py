"""A short run of `tests.http_abuse`; the whole takes a minute."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("seconds", "clients"), [("3", "40"), pytest.param("60", "200", marks=[pytest.mark.soak, pytest.mark.timeout(300)])]
)
def test_bad_clients_do_no_harm_and_leave_nothing(seconds: str, clients: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.http_abuse", "--seconds", seconds, "--clients", clients],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
