"""The fuzz targets of the store, for a moment each; `python -m tests.fuzz_store` runs them for longer."""

from __future__ import annotations

import pytest

from tests.fuzz_store import TARGETS, fuzz


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_a_moment_of_each_target(target: str) -> None:
    tried, kept = fuzz(target, 0.5, seed=1)
    assert tried > 10
    assert kept >= 1


@pytest.mark.soak
@pytest.mark.timeout(120)
@pytest.mark.parametrize("target", sorted(TARGETS))
def test_a_minute_of_each_target(target: str) -> None:
    fuzz(target, 60, seed=2)
