"""A short run of `tests.schemathesis_run`; the whole takes some minutes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(400)  # the first run installs schemathesis
@pytest.mark.parametrize(
    "arguments",
    [
        ["--short", "--examples", "150"],
        pytest.param(["--examples", "5000"], marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)
def test_no_request_makes_the_server_fail(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.schemathesis_run", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
