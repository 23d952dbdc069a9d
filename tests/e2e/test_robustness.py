"""Broken model files never crash or hang the process: small counts here, the full ones by `tests/robustness.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import robustness
from tests.support import tiny_models


@pytest.mark.timeout(300)
@pytest.mark.parametrize("family", ["llama", "qwen3moe", "gemma3"])
def test_a_broken_tiny_model_is_an_error_or_a_model(family: str, tmp_path: Path) -> None:
    path = tiny_models.write(tmp_path / f"{family}.gguf", tiny_models.SHAPES[family])
    outcomes = robustness.check(path, truncations=60, changes=300)
    assert outcomes.total() - outcomes["loads"] >= 60


@pytest.mark.real_model
@pytest.mark.timeout(300)
def test_a_broken_real_model_is_an_error_or_a_model(smollm2_path: Path) -> None:
    robustness.check(smollm2_path, truncations=10, changes=20)


@pytest.mark.soak
@pytest.mark.real_model
@pytest.mark.timeout(3600)
def test_a_real_model_broken_in_2200_ways(smollm2_path: Path) -> None:
    robustness.check(smollm2_path, truncations=200, changes=2000)
