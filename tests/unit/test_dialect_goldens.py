"""Whole requests, replies and streams of each dialect, compared with what was recorded and read.

`python -m tests.support.dialect_cases` writes the golden files anew.
"""

from __future__ import annotations

import pytest

from tests.support import dialect_cases


@pytest.mark.parametrize("name", dialect_cases.CASES)
def test_golden(name: str) -> None:
    assert dialect_cases.outcome(name) == dialect_cases.golden(name).read_text(encoding="utf-8")


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in dialect_cases.GOLDEN.glob("*.txt")} == set(dialect_cases.CASES)
