"""Fixtures of the tests that need no model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import rsllm.model
from tests.unit import fake_core


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The fake core in place of the real one, with its default behaviour; `core.behaviour` changes it."""
    monkeypatch.setattr(fake_core, "behaviour", fake_core.Behaviour())
    monkeypatch.setattr(rsllm.model, "_core", fake_core)
    yield fake_core


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    """A file that the fake core takes for a model."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    return path


@pytest.fixture
def model(core: ModuleType, model_file: Path) -> Iterator[rsllm.Model]:
    """A model on the fake core."""
    with rsllm.Model(model_file) as model:
        yield model
