"""What proves that a person typed a name, and what does not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rsllm import typed
from rsllm.config import config


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Where the key is."""
    monkeypatch.setenv("RSLLM_STATE", str(tmp_path / "state"))
    config.cache_clear()
    yield tmp_path / "state" / "typed.key"
    config.cache_clear()


def test_a_signature_counts_for_its_path_and_its_name(key: Path) -> None:
    value = typed.signature("/api/pull", "box:5000/a/b")
    assert value is not None
    assert typed.is_typed(value, "/api/pull", "box:5000/a/b")
    assert not typed.is_typed(value, "/api/push", "box:5000/a/b")
    assert not typed.is_typed(value, "/api/pull", "box:5000/a/c")
    assert key.stat().st_mode & 0o077 == 0
    assert [path.name for path in key.parent.iterdir()] == ["typed.key"]


@pytest.mark.parametrize("value", [None, "", ":", "x:y", "1:", f"{2**70}:00", "٣:00", "1700000000:é"])
def test_anything_else_does_not(value: str | None) -> None:
    typed.signature("/api/pull", "m")
    assert not typed.is_typed(value, "/api/pull", "m")


def test_an_old_signature_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    value = typed.signature("/api/pull", "m")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 301)
    assert not typed.is_typed(value, "/api/pull", "m")


def test_without_a_key_nothing_counts(key: Path) -> None:
    value = typed.signature("/api/pull", "m")
    key.unlink()
    assert not typed.is_typed(value, "/api/pull", "m")


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_a_key_that_others_can_read_counts_for_nothing(key: Path, mode: int) -> None:
    value = typed.signature("/api/pull", "m")
    key.chmod(mode)
    assert not typed.is_typed(value, "/api/pull", "m")
    assert typed.signature("/api/pull", "m") is None


def test_where_no_key_can_be_kept_nothing_is_proved(key: Path) -> None:
    key.parent.parent.joinpath("state").write_text("a file")
    assert typed.signature("/api/pull", "m") is None
