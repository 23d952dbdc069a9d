"""`rsllm gguf`: inspect, split, merge, on a small real file."""

from __future__ import annotations

import json
from pathlib import Path

import gguf as reference
import pytest
from click.testing import CliRunner, Result

import rsllm.cli.main
from rsllm import gguf, shards
from tests.support.tiny_models import SHAPES, write


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small real model."""
    return write(tmp_path_factory.mktemp("tiny") / "tiny.gguf", SHAPES["llama"])


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(rsllm.cli.main.cli, ["gguf", *map(str, arguments)], prog_name="rsllm")


def test_inspect(tiny: Path) -> None:
    text = run("inspect", tiny).stdout
    assert "version         3" in text
    assert "general.architecture" in text
    assert "token_embd.weight" in text
    report = json.loads(run("inspect", "--json", tiny).stdout)
    assert report["header"]["tensor_count"] == len(report["tensors"]) == 21
    assert report["metadata"]["llama.block_count"] == 2
    assert report["header"]["file_bytes"] == tiny.stat().st_size


@pytest.mark.parametrize("limit", [("--max-tensors", "4"), ("--max-size", "100K"), ("--max-size", "1"), ()])
def test_split_and_merge_give_the_same_file(tiny: Path, tmp_path: Path, limit: tuple[str, ...]) -> None:
    made = run("split", *limit, tiny, tmp_path / "parts" / "m")
    assert made.exit_code == 0, made.stderr
    paths = [Path(line) for line in made.stdout.splitlines()]
    assert [path.name for path in paths] == [shards.shard_name("m", n + 1, len(paths)) for n in range(len(paths))]
    assert len(gguf.open(paths[-1]).files) == len(paths)
    # Another reader finds what llama.cpp's splitter writes.
    for number, path in enumerate(paths):
        reader = reference.GGUFReader(path)
        fields = [reader.fields[f"split.{key}"].contents() for key in ("no", "count", "tensors.count")]
        assert fields == [number, len(paths), 21]
        if "--max-tensors" in limit:
            assert len(reader.tensors) <= 4
    merged = run("merge", paths[0])
    assert merged.stdout == f"{tmp_path / 'parts' / 'm.gguf'}\n"
    whole = tmp_path / "parts" / "m.gguf"
    assert contents(whole) == contents(tiny)
    # A file that this writes, split and merged again, is the same to the last byte.
    assert run("merge", paths[-1], tmp_path / "again.gguf").exit_code == 0
    assert (tmp_path / "again.gguf").read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in whole.parent.iterdir()) == sorted([*(path.name for path in paths), "m.gguf"])


def contents(path: Path) -> dict[str, object]:
    """Metadata and tensors as the `gguf` package reads them."""
    reader = reference.GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    tensors = {one.name: (one.tensor_type, list(one.shape), one.data.tobytes()) for one in reader.tensors}
    return {"fields": fields, "tensors": tensors, "order": list(tensors)}


def test_a_file_that_is_there_stays_without_force(tiny: Path, tmp_path: Path) -> None:
    there = tmp_path / "m-00001-of-00001.gguf"
    there.write_bytes(b"mine")
    refused = run("split", tiny, tmp_path / "m")
    assert (refused.exit_code, there.read_bytes()) == (1, b"mine")
    assert "is there already" in refused.stderr
    assert run("split", "--force", tiny, tmp_path / "m").exit_code == 0
    assert gguf.open(there).metadata["split.count"] == 1


def test_refusals(tiny: Path, tmp_path: Path) -> None:
    assert run("merge", tiny).exit_code == 2
    assert "is what is read" in run("merge", "--force", tiny, tiny).stderr
    for size in ("0", "x", "-1", "1.5G", "9" * 30):
        assert run("split", "--max-size", size, tiny).exit_code == 2
    page = tmp_path / "page.gguf"
    page.write_text("<html>")
    for command in ("inspect", "split"):
        assert run(command, page).exit_code == 1
    run("split", "--max-tensors", "9", tiny, tmp_path / "m")
    (tmp_path / "m-00002-of-00003.gguf").unlink()
    missing = run("merge", tmp_path / "m-00001-of-00003.gguf")
    assert missing.exit_code == 1
    assert not (tmp_path / "m.gguf").exists()


def test_the_group_shows_its_help() -> None:
    text = run("--help").stdout
    for command in ("inspect", "split", "merge"):
        assert command in text
        assert "Examples:" in run(command, "--help").stdout
