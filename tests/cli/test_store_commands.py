"""`rsllm prune` and `rsllm doctor --store`, and names of the store where a command takes a model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result

import rsllm
from rsllm.config import config
from rsllm.errors import ModelError, ModelNotFoundError
from rsllm.refs import resolve
from rsllm.store.digest import Digest
from rsllm.store.store import Store
from tests.support.stores import add_model, age_all, blobs

Run = Callable[..., Result]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """The store of this user, with one model and one blob that nothing needs."""
    root = tmp_path / "my models"
    monkeypatch.setenv("OLLAMA_MODELS", str(root))
    config.cache_clear()
    store = Store(root)
    add_model(store, "Qwen3:8B", b"GGUF" + bytes(100))
    store.add_blob([b"x" * 4000])
    yield store
    config.cache_clear()


def test_prune_lists_before_it_removes(rsllm_command: Run, store: Store) -> None:
    lost = Digest.of(b"x" * 4000).file_name
    assert rsllm_command("prune").stdout == "Every file is needed, or was used lately.\n"
    age_all(store)
    listed = rsllm_command("prune")
    assert listed.stdout == f"{lost}\n1 file, 4 KB; `rsllm prune --yes` removes them.\n"
    assert lost in blobs(store)
    assert json.loads(rsllm_command("prune", "--json").stdout) == {
        "store": str(store.root),
        "removed": False,
        "files": [lost],
        "bytes": 4000,
        "skipped": None,
    }
    assert rsllm_command("prune", "--yes").stdout == f"{lost}\nRemoved 1 file, 4 KB.\n"
    assert lost not in blobs(store)


def test_prune_removes_a_cancelled_download_at_once_when_asked(rsllm_command: Run, store: Store) -> None:
    partial = f"sha256-{'a' * 64}-partial"
    for name in (partial, f"{partial}-0", f"{partial}-1"):
        (store.layout.blobs / name).write_bytes(b"x")
    assert rsllm_command("prune", "--yes").exit_code == 0
    assert partial in blobs(store)
    report = json.loads(rsllm_command("prune", "--yes", "--older-than", "0", "--json").stdout)
    assert report["removed"]
    assert {partial, f"{partial}-0", f"{partial}-1"} < set(report["files"])
    assert len(blobs(store)) == 2


def test_prune_says_why_it_does_nothing(rsllm_command: Run, store: Store) -> None:
    path = store.root / "manifests/registry.ollama.ai/library/Qwen3/8B"
    path.write_bytes(b"{")
    age_all(store)
    result = rsllm_command("prune", "--yes")
    assert result.exit_code == 1
    assert "Error: nothing was removed: nobody knows which blobs a damaged manifest needs" in result.stderr
    assert len(blobs(store)) == 3


@pytest.mark.parametrize("value", ["1x", "-1", "x", ""])
def test_an_age_that_is_none_is_a_usage_error(rsllm_command: Run, value: str) -> None:
    assert rsllm_command("prune", "--older-than", value).exit_code == 2


def test_doctor_checks_the_store(rsllm_command: Run, store: Store) -> None:
    sound = rsllm_command("doctor", "--store")
    assert sound.exit_code == 0
    assert sound.stdout == (
        f"{store.root}: 1 model, 3 blobs (1 needed by no model), 4.1 KB hashed\nEverything is as it should be.\n"
    )
    blob = store.blob_path(Digest.of(b"GGUF" + bytes(100)))
    blob.write_bytes(b"GGUF" + bytes(99) + b"x")
    damaged = rsllm_command("doctor", "--store")
    assert damaged.exit_code == 1
    assert f"{blob.name}: its content has the digest sha256:" in damaged.stdout
    assert damaged.stderr == "Error: the store has 1 fault\n"
    result = rsllm_command("doctor", "--store", "--json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert not report["ok"]
    assert report["findings"][0]["path"] == str(blob)


def test_a_name_leads_to_the_weights_in_the_store(rsllm_command: Run, store: Store) -> None:
    weights = store.blob_path(Digest.of(b"GGUF" + bytes(100)))
    assert resolve("qwen3:8b") == weights
    assert resolve("registry.ollama.ai/library/QWEN3:8b") == weights
    with rsllm.load("qwen3:8b") as model:
        assert model.path == str(weights)
    assert rsllm_command("tokenize", "qwen3:8b", "hi").exit_code == 0


@pytest.mark.parametrize(
    ("ref", "name"),
    [("gemma3", "gemma3:latest"), ("hf.co/o/r:m.Q4.gguf", "hf.co/o/r:m.Q4.gguf"), ("a/b", "a/b:latest")],
)
def test_a_name_that_is_not_in_the_store_says_how_to_get_it(store: Store, ref: str, name: str) -> None:
    with pytest.raises(ModelNotFoundError, match=f"model '{ref}' not found") as caught:
        resolve(ref)
    assert caught.value.hint == f"get it with `rsllm pull {name}`"


def test_files_come_before_names_and_names_before_folders(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen3:8B").mkdir()
    assert resolve("Qwen3:8B").parent == store.layout.blobs
    (tmp_path / "gemma3").mkdir()
    with pytest.raises(IsADirectoryError):
        resolve("gemma3")
    (tmp_path / "Qwen3:8B").rmdir()
    (tmp_path / "Qwen3:8B").write_bytes(b"GGUF")
    assert resolve("Qwen3:8B") == Path("Qwen3:8B")


def test_what_loading_the_weights_leaves_out_is_said(rsllm_command: Run, store: Store) -> None:
    add_model(store, "talker", b"GGUF" + bytes(100), system=b"hi", params=b'{"top_k": 1}', license=b"MIT")
    with rsllm.load("talker") as model:
        assert model.info()["warnings"][-1] == (
            "the store has a system message, parameters for this model, which loading its file alone does not apply"
        )
    with rsllm.load("qwen3:8b") as model:
        assert not any("store" in warning for warning in model.info()["warnings"])


def test_an_adapter_is_not_ignored_in_silence(store: Store) -> None:
    add_model(store, "tuned", b"w", adapter=b"lora")
    with pytest.raises(ModelError, match="adapter"):
        resolve("tuned")
