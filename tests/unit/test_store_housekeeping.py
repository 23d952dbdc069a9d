"""Pruning by Ollama's rules, old names, and the check of a whole store."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from rsllm.store.check import check, examine
from rsllm.store.digest import Digest
from rsllm.store.files import NewFile
from rsllm.store.housekeeping import Pruned
from rsllm.store.manifest import Layer, Manifest, MediaType
from rsllm.store.name import ModelName
from rsllm.store.store import Store
from tests.support.stores import add_model, age, age_all, blobs, digest_names, names

CONFIG = b'{"model_format": "gguf"}'
LOST = Digest.of(b"lost")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with one model, and a blob that nothing needs."""
    store = Store(tmp_path / "models")
    add_model(store, "m", b"w")
    store.add_blob([b"lost"])
    return store


def put(store: Store, name: str, seconds: float, content: bytes = b"x") -> Path:
    """A file among the blobs that was last touched so long ago."""
    path = store.layout.blobs / name
    path.write_bytes(content)
    age(path, seconds)
    return path


def test_what_was_touched_within_the_hour_stays(store: Store) -> None:
    assert store.prune(dry_run=False) == Pruned()
    age_all(store, 3000)
    assert store.prune(dry_run=False) == Pruned()
    assert LOST.file_name in blobs(store)


def test_what_no_model_needs_goes_after_an_hour(store: Store) -> None:
    age_all(store)
    before = blobs(store)
    dry = store.prune(dry_run=True)
    assert dry == Pruned(blobs=(LOST,), bytes=4)
    assert blobs(store) == before
    assert store.prune(dry_run=False) == dry
    assert blobs(store) == digest_names(b"w", CONFIG)
    assert check(store) == []


def test_downloads_of_ollama_stay_while_they_are_young_and_whole(store: Store) -> None:
    partial = f"sha256-{'a' * 64}-partial"
    part = json.dumps({"N": 0, "Offset": 0, "Size": 100, "Completed": 4}).encode()
    put(store, partial, 7200)
    put(store, f"{partial}-0", 60, part)
    put(store, f"{partial}-1", 7200, part)
    put(store, f"sha256-{'b' * 64}-partial", 7200)
    put(store, "sha256-temporary123", 7200)
    put(store, "sha256-young", 60)
    pruned = store.prune(dry_run=False)
    assert pruned.partials == (f"sha256-{'b' * 64}-partial", "sha256-temporary123")
    assert {partial, f"{partial}-0", f"{partial}-1", "sha256-young"} < blobs(store)
    assert store.prune(dry_run=False, older_than_seconds=0).partials[:3] == (partial, f"{partial}-0", f"{partial}-1")


def test_what_somebody_is_writing_stays_whatever_its_age(store: Store) -> None:
    partial = put(store, f"{LOST.file_name}-partial", 7200)
    lock = store.blob_lock(LOST)
    lock.acquire()
    with NewFile(store.layout.blobs, prefix="sha256-new-") as new, store.adding() as adding:
        age(new.path, 7200)
        adding.hold([LOST])
        age_all(store)
        assert store.prune(dry_run=False) == Pruned()
    lock.release()
    age_all(store)
    pruned = store.prune(dry_run=False)
    assert (pruned.blobs, pruned.partials) == ((LOST,), (partial.name,))
    assert list(store.layout.downloads.iterdir()) == []


def test_a_damaged_manifest_keeps_everything_and_says_so(store: Store) -> None:
    path = store.root / "manifests/registry.ollama.ai/library/m/latest"
    path.write_bytes(path.read_bytes() + b"{")
    age_all(store)
    before = blobs(store)
    pruned = store.prune(dry_run=False)
    assert str(path) in str(pruned.skipped)
    assert blobs(store) == before
    assert store.start(no_prune=False).skipped == pruned.skipped
    store.delete(ModelName.parse("m"))
    age_all(store)
    assert store.prune(dry_run=False).blobs == (LOST,)
    assert blobs(store) == set()


def test_empty_folders_and_what_a_killed_writer_left_go(store: Store) -> None:
    empty = store.layout.manifests / "host/a/b"
    empty.mkdir(parents=True)
    left = store.layout.manifests / ".rsllm-0123"
    left.write_bytes(b"x")
    store.prune(dry_run=False)
    assert not empty.parents[1].exists()
    assert not left.exists()
    assert names(store) == ["m:latest"]


def test_links_that_lead_nowhere_go_and_folders_stay(store: Store) -> None:
    link = store.layout.blobs / f"sha256-{'c' * 64}"
    link.symlink_to(store.root / "nowhere")
    (store.layout.blobs / "folder").mkdir()
    assert any("leads nowhere" in str(finding) for finding in check(store))
    age_all(store)
    age(link, 7200)
    assert store.prune(dry_run=False).blobs == tuple(sorted((LOST, Digest("c" * 64))))
    assert (store.layout.blobs / "folder").is_dir()


def test_old_blob_names_are_brought_up_to_date(store: Store) -> None:
    path = store.blob_path(Digest.of(b"w"))
    path.rename(path.with_name(path.name.replace("-", ":")))
    put(store, f"sha256:{'a' * 64}-partial-0", 60)
    put(store, "sha256:odd", 60)
    started = store.start(no_prune=True)
    assert started.renamed == 2
    assert "OLLAMA_NOPRUNE" in str(started.skipped)
    assert path.read_bytes() == b"w"
    assert {f"sha256-{'a' * 64}-partial-0", "sha256:odd"} < blobs(store)
    assert check(store) == []


def test_starting_prunes_unless_told_not_to(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    age_all(store)
    assert store.start(no_prune=True).blobs == ()
    assert store.start(no_prune=False).blobs == (LOST,)
    assert Store(store.root / "none").start(no_prune=False) == Pruned()
    assert not (store.root / "none").exists()
    reader = Store(store.root, read_only=True)
    assert "reading only" in str(reader.start(no_prune=False).skipped)

    def refuse(path: object, *_: object, **__: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr("rsllm.system.os.open", refuse)
    assert "read-only" in str(store.start(no_prune=False).skipped)


def test_every_file_is_needed_after_remove_recreate_and_prune(store: Store) -> None:
    """STO-06."""
    add_model(store, "m", b"w2", system=b"s")
    add_model(store, "n", b"w3")
    store.copy(ModelName.parse("n"), ModelName.parse("o"))
    store.delete(ModelName.parse("n"))
    store.prune(dry_run=False, older_than_seconds=0)
    needed = {layer.digest.file_name for entry in store.names() for layer in entry.manifest.all_layers}  # type: ignore[union-attr]
    assert blobs(store) == needed


def test_a_sound_store_has_no_findings(store: Store) -> None:
    put(store, f"sha256-{'a' * 64}-partial", 60)
    report = examine(store)
    assert report.findings == []
    assert (report.manifests, report.blobs, report.unneeded, report.unfinished) == (1, 3, 1, 1)
    assert report.bytes == len(CONFIG) + len(b"w") + len(b"lost")
    assert check(Store(store.root / "none")) == []


def test_every_kind_of_fault_is_found(store: Store) -> None:
    add_model(store, "short", b"long enough")
    store.blob_path(Digest.of(b"long enough")).write_bytes(b"long")
    add_model(store, "missing", b"gone")
    store.blob_path(Digest.of(b"gone")).unlink()
    add_model(store, "changed", b"right")
    store.blob_path(Digest.of(b"right")).write_bytes(b"wrong")
    add_model(store, "damaged", b"w")
    (store.root / "manifests/registry.ollama.ai/library/damaged/latest").write_bytes(b"")
    findings = {str(finding) for finding in check(store)}
    short, missing, changed = (Digest.of(content) for content in (b"long enough", b"gone", b"right"))
    assert f"short:latest: {short.file_name} has 4 bytes, and 11 are expected" in findings
    assert f"missing:latest: {missing.file_name} is missing" in findings
    assert f"{changed.file_name}: its content has the digest {Digest.of(b'wrong')}" in findings
    assert any(finding.startswith("damaged:latest: the manifest is not JSON") for finding in findings)
    assert len(findings) == 5  # the short one's digest is wrong too


def test_what_goes_away_while_it_is_looked_at_is_no_finding(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = store.names()
    store.delete(ModelName.parse("m"))
    monkeypatch.setattr(store, "names", lambda: listed)
    assert check(store) == []


def test_empty_layers_need_no_blob(store: Store) -> None:
    empty = Layer(MediaType.LICENSE, Digest.of(b""), 0)
    store.write_manifest(ModelName.parse("e"), Manifest.build(None, [empty]).raw)
    assert check(store) == []
