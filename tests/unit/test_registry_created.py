"""Shards as one file, and the numbers in a configuration."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import gguf
import pytest

import rsllm
from rsllm.errors import GgufError
from rsllm.shards import joined, open_linked
from rsllm.store.details import human_count
from tests.support import tiny_models


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[dict[str, Path]]:
    """A tiny model in shards whose files have names that say nothing, as blobs have."""
    folder = tmp_path / "shards"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_models, "GGUFWriter", functools.partial(gguf.GGUFWriter, split_max_tensors=7))
        tiny_models.write(folder / "tiny.gguf", tiny_models.SHAPES["gemma3"])
    files = {}
    for number, path in enumerate(sorted(folder.iterdir())):
        files[path.name] = path.rename(folder / f"sha256-{number}")
    yield files


def test_the_joined_file_is_the_one_that_was_never_split(shards: dict[str, Path], tmp_path: Path) -> None:
    assert len(shards) > 3
    whole = tiny_models.write(tmp_path / "whole.gguf", tiny_models.SHAPES["gemma3"])
    path = tmp_path / "joined.gguf"
    path.write_bytes(b"".join(joined(open_linked(tmp_path / "links", shards))))
    assert path.read_bytes() == whole.read_bytes()
    assert rsllm.gguf.open(path).files == [str(path)]


def test_a_missing_shard_is_an_error(shards: dict[str, Path], tmp_path: Path) -> None:
    del shards[max(shards)]
    with pytest.raises(GgufError, match=r"shard|00"):
        open_linked(tmp_path / "links", shards)


def test_a_file_that_is_no_model_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"GGUF and no more")
    with pytest.raises(GgufError):
        open_linked(tmp_path / "links", {"m.gguf": tmp_path / "blob"})


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        (134_515_008, "134.52M"), (8_000_000_000, "8B"), (8_030_261_248, "8.0B"), (1_000_000, "1M"), (999, "999"),
        (15_000, "15K"),
    ],
)  # fmt: skip
def test_numbers_of_parameters(parameters: int, text: str) -> None:
    assert human_count(parameters) == text
