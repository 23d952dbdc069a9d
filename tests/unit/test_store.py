"""The store: finding, writing, copying and deleting models, whatever else lies around."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path

import pytest

from rsllm.errors import (
    DigestMismatchError,
    ManifestError,
    ModelError,
    ModelNotFoundError,
    ReadOnlyStoreError,
    StoreError,
)
from rsllm.store import store as store_module
from rsllm.store.digest import Digest
from rsllm.store.files import NewFile
from rsllm.store.manifest import Layer, Manifest, MediaType
from rsllm.store.model import StoredModel
from rsllm.store.name import ModelName
from rsllm.store.store import Store
from tests.support.stores import add_model, age, blobs, digest_names, names

CONFIG = b'{"model_format": "gguf"}'


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store under a path that is not ASCII."""
    return Store(tmp_path / "ü 模型 Ž" / "models")


def find(store: Store, name: str) -> StoredModel:
    return store.find(ModelName.parse(name))


def test_a_store_that_is_not_there_is_empty(store: Store) -> None:
    assert store.names() == []
    with pytest.raises(ModelNotFoundError, match="model 'm:latest' not found") as caught:
        find(store, "m")
    assert "rsllm pull m:latest" in str(caught.value.hint)
    assert not store.has_blob(Digest.of(b""))
    assert not store.root.exists()


def test_a_model_is_where_ollama_looks_for_it(store: Store) -> None:
    manifest = add_model(store, "me/m:1b", b"w")
    path = store.root / "manifests/registry.ollama.ai/me/m/1b"
    assert path.read_bytes() == manifest.raw
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755
    assert blobs(store) == digest_names(b"w", CONFIG)
    model = find(store, "me/m:1b")
    assert model.weights.read_bytes() == b"w"
    assert stat.S_IMODE(model.weights.stat().st_mode) == 0o644
    assert model.digest_hex == Digest.of(manifest.raw).hex
    assert model.size == 1 + len(CONFIG)
    assert model.config == {"model_format": "gguf"}
    (entry,) = store.names()
    assert (entry.name.short, entry.size, entry.error) == ("me/m:1b", model.size, None)
    assert entry.modified_at == model.modified_at


def test_latest_is_what_a_name_without_a_tag_means(store: Store) -> None:
    """STO-17."""
    add_model(store, "m:latest")
    assert find(store, "m").name == find(store, "M:LATEST").name
    store.delete(ModelName.parse("m"))
    assert store.names() == []


def test_a_name_is_found_in_any_case_and_keeps_its_own(store: Store) -> None:
    """STO-08."""
    add_model(store, "Me/Llama3.1:q6_K", b"1")
    assert find(store, "me/llama3.1:Q6_k").name.full == "registry.ollama.ai/Me/Llama3.1:q6_K"
    add_model(store, "ME/LLAMA3.1:Q6_K", b"2")
    add_model(store, "me/llama3.1:8b", b"3")
    assert names(store) == ["Me/Llama3.1:8b", "Me/Llama3.1:q6_K"]
    assert find(store, "me/llama3.1:q6_k").weights.read_bytes() == b"2"


def test_of_two_spellings_on_disk_the_one_asked_for_counts(store: Store) -> None:
    add_model(store, "m:a", b"1")
    raw = add_model(store, "n:a", b"2").raw
    other = store.root / "manifests/registry.ollama.ai/library/M/a"
    other.parent.mkdir()
    other.write_bytes(raw)
    assert find(store, "m:a").weights.read_bytes() == b"1"
    assert find(store, "M:a").weights.read_bytes() == b"2"
    # A folder of another spelling that does not lead to the tag is left again.
    other.rename(other.with_name("b"))
    assert find(store, "m:B").weights.read_bytes() == b"2"
    assert find(store, "M:A").weights.read_bytes() == b"1"


def test_a_manifest_is_kept_byte_for_byte(store: Store) -> None:
    raw = add_model(store, "m").raw
    odd = b"\n " + raw.replace(b'"layers"', b'"odd" : 1.50, "layers"') + b"\r\n"
    replaced = store.write_manifest(ModelName.parse("m"), odd)
    assert replaced is not None
    assert replaced.raw == raw
    store.copy(ModelName.parse("m"), ModelName.parse("hf.co/a/b:c"))
    assert find(store, "hf.co/a/b:c").manifest.raw == odd


def test_a_manifest_comes_after_its_blobs(store: Store) -> None:
    missing = Manifest.build(None, [Layer(MediaType.MODEL, Digest.of(b"x"), 1)])
    with pytest.raises(StoreError, match=f"needs {Digest.of(b'x').file_name} of 1 bytes"):
        store.write_manifest(ModelName.parse("m"), missing.raw)
    with pytest.raises(ManifestError):
        store.write_manifest(ModelName.parse("m"), b"{")
    assert store.names() == []
    # Registries list empty layers that nobody stores.
    store.write_manifest(ModelName.parse("m"), Manifest.build(None, [Layer(MediaType.SYSTEM, Digest.of(b""), 0)]).raw)
    assert find(store, "m").system == ""
    assert find(store, "m").config == {}
    with pytest.raises(ModelError, match="no layer with weights"):
        _ = find(store, "m").weights


def test_the_parts_of_a_model(store: Store) -> None:
    add_model(
        store,
        "m",
        template=b"{{ .Prompt }}",
        system=b"be brief",
        params=b'{"stop": ["a"], "temperature": 0.5}',
        messages='[{"role": "user", "content": "hé"}]'.encode(),
        license=b"MIT",
        adapter=b"lora",
        projector=b"clip",
    )
    model = find(store, "m")
    assert model.template == "{{ .Prompt }}"
    assert model.system == "be brief"
    assert model.parameters == {"stop": ["a"], "temperature": 0.5}
    assert model.messages == [{"role": "user", "content": "hé"}]
    assert model.licenses == ["MIT"]
    assert [path.read_bytes() for path in (*model.adapters, *model.projectors)] == [b"lora", b"clip"]
    assert model.drafts == []


def test_of_several_weights_the_last_ones_count_and_old_templates_are_read(store: Store) -> None:
    add_model(store, "a", b"first", prompt=b"old")
    add_model(store, "b", b"last")
    layers = [*find(store, "a").manifest.layers, *find(store, "b").manifest.layers]
    store.write_manifest(ModelName.parse("c"), Manifest.build(None, layers).raw)
    assert find(store, "c").weights.read_bytes() == b"last"
    assert find(store, "c").template == "old"


@pytest.mark.parametrize(
    ("kind", "content", "attribute"),
    [("params", b"[]", "parameters"), ("params", b"{", "parameters"), ("messages", b"[1]", "messages")],
)
def test_a_part_that_makes_no_sense_is_a_typed_error(store: Store, kind: str, content: bytes, attribute: str) -> None:
    add_model(store, "m", **{kind: content})
    with pytest.raises(StoreError, match="model 'm:latest'"):
        getattr(find(store, "m"), attribute)


def test_a_part_that_is_missing_says_what_to_do(store: Store) -> None:
    add_model(store, "m", b"w", system=b"s")
    model = find(store, "m")
    store.blob_path(Digest.of(b"w")).unlink()
    store.blob_path(Digest.of(b"s")).unlink()
    with pytest.raises(ModelError, match="incomplete") as caught:
        _ = model.weights
    assert "rsllm pull m:latest" in str(caught.value.hint)
    with pytest.raises(StoreError, match="its system sha256-"):
        _ = model.system


def test_removing_a_model_keeps_what_others_need(store: Store) -> None:
    add_model(store, "a", b"shared", system=b"a")
    add_model(store, "me/b", b"shared", system=b"b")
    assert store.delete(ModelName.parse("ME/B")) == [Digest.of(b"b")]
    assert blobs(store) == digest_names(b"shared", b"a", CONFIG)
    assert not (store.root / "manifests/registry.ollama.ai/me").exists()
    removed = store.delete(ModelName.parse("a"))
    assert {digest.file_name for digest in removed} == digest_names(b"shared", b"a", CONFIG)
    assert blobs(store) == set()
    with pytest.raises(ModelNotFoundError):
        store.delete(ModelName.parse("a"))


def test_a_damaged_manifest_is_listed_and_can_be_removed(store: Store) -> None:
    """STO-03."""
    add_model(store, "good", b"1")
    add_model(store, "bad", b"2")
    path = store.root / "manifests/registry.ollama.ai/library/bad/latest"
    with path.open("ab") as file:
        file.write(b"{")
    entries = {entry.name.short: entry for entry in store.names()}
    assert entries["good:latest"].error is None
    assert "not JSON" in str(entries["bad:latest"].error)
    with pytest.raises(ManifestError, match="not JSON") as caught:
        find(store, "bad")
    assert caught.value.path == str(path)
    # What it mentions is needed as long as it is there.
    store.delete(ModelName.parse("good"))
    assert blobs(store) == digest_names(b"2", CONFIG)
    assert set(store.delete(ModelName.parse("bad"))) == {Digest.of(b"2"), Digest.of(CONFIG)}
    assert blobs(store) == set()


def test_odd_entries_hide_no_model(store: Store) -> None:
    """STO-08."""
    add_model(store, "m")
    folder = store.root / "manifests/registry.ollama.ai/library"
    (folder / "m" / ".DS_Store").write_bytes(b"x")
    (folder / "m" / "folder").mkdir()
    (folder / "stray").write_bytes(b"x")
    (folder / "m" / "dangling").symlink_to(folder / "nowhere")
    (folder / "m" / "not a tag").write_bytes(b"{}")
    (folder / "m" / "huge").write_bytes(b" " * (4 * 2**20 + 1))
    (folder / "m" / "loop").symlink_to(folder / "m" / "loop")
    errors = {entry.name.tag: entry.error for entry in store.names()}
    assert errors.pop("latest") is None
    assert "invalid model name" in str(errors.pop("not a tag"))
    assert "more than" in str(errors.pop("huge"))
    assert errors == {}


def test_links_are_followed_and_only_the_link_is_removed(store: Store, tmp_path: Path) -> None:
    add_model(store, "m", b"w")
    elsewhere = tmp_path / "elsewhere"
    (store.layout.blobs).rename(elsewhere)
    store.layout.blobs.symlink_to(elsewhere)
    blob = store.blob_path(Digest.of(b"w"))
    big = tmp_path / "big"
    blob.rename(big)
    blob.symlink_to(big)
    assert find(store, "m").weights.read_bytes() == b"w"
    assert store.has_blob(Digest.of(b"w"), 1)
    add_model(store, "n", b"n")
    store.delete(ModelName.parse("m"))
    assert big.read_bytes() == b"w"
    assert not blob.is_symlink()
    assert names(store) == ["n:latest"]


def test_a_manifest_crosses_to_another_disk(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = add_model(store, "m").raw
    replace = os.replace

    def only_within_a_folder(source: Path, target: Path) -> None:
        if source.parent != target.parent:
            raise OSError(errno.EXDEV, "cross-device link")
        replace(source, target)

    monkeypatch.setattr("rsllm.store.files.os.replace", only_within_a_folder)
    store.write_manifest(ModelName.parse("other/n"), raw)
    assert names(store) == ["m:latest", "other/n:latest"]
    assert not list(store.layout.manifests.rglob(".rsllm-*"))


def test_a_blob_that_is_not_what_was_expected_leaves_nothing(store: Store) -> None:
    expected = Digest.of(b"right")
    with pytest.raises(DigestMismatchError) as caught:
        store.add_blob([b"wro", b"ng"], expected)
    assert str(caught.value) == f'digest mismatch, expected "{expected}", got "{Digest.of(b"wrong")}"'
    assert blobs(store) == set()


def test_a_blob_that_is_there_is_not_read_again_but_touched(store: Store) -> None:
    digest, size = store.add_blob([b"abc"])
    path = store.blob_path(digest)
    age(path, 7200)
    before = path.stat()
    assert store.add_blob([b"never read"], digest) == (digest, size)
    assert path.stat().st_mtime > before.st_mtime + 3600
    age(path, 7200)
    assert store.add_blob([b"abc"]) == (digest, 3)
    assert path.stat().st_mtime > before.st_mtime + 3600
    assert path.stat().st_ino == before.st_ino


def test_a_blob_cut_short_is_replaced(store: Store) -> None:
    digest, _ = store.add_blob([b"abc"])
    store.blob_path(digest).write_bytes(b"a")
    assert not store.has_blob(digest, 3)
    store.add_blob([b"abc"])
    assert store.has_blob(digest, 3)


def test_a_blob_from_a_file(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "m.gguf"
    source.write_bytes(b"x" * 3_000_000)
    seen: list[int] = []
    digest, size = store.add_blob(source, progress=seen.append)
    assert size == 3_000_000
    assert seen[-1] == size
    assert seen == sorted(seen)
    assert digest == Digest.of(b"x" * 3_000_000)
    with pytest.raises(FileNotFoundError):
        store.add_blob(tmp_path / "no.gguf")


def test_a_source_that_fails_leaves_nothing(store: Store) -> None:
    def pieces() -> object:
        yield b"abc"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.add_blob(pieces())  # type: ignore[arg-type]
    assert blobs(store) == set()


def test_a_digest_cannot_lead_out_of_the_store(store: Store) -> None:
    """CVE-2024-37032, CVE-2026-7020."""
    add_model(store, "m")
    path = store.root / "manifests/registry.ollama.ai/library/m/latest"
    path.write_bytes(path.read_bytes().replace(b"sha256:", b"sha256:../../"))
    with pytest.raises(ManifestError, match="invalid digest format"):
        find(store, "m")


def test_a_digest_spelt_with_escapes_is_needed_all_the_same(store: Store) -> None:
    raw = add_model(store, "m", b"w").raw
    store.write_manifest(ModelName.parse("n"), raw.replace(b"sha256:", b"sha25\\u0036:"))
    assert store.delete(ModelName.parse("m")) == []


def test_a_listed_manifest_in_a_blob_counts(store: Store) -> None:
    raw = add_model(store, "m", b"w").raw
    inner, _ = store.add_blob([raw])
    path = store.root / "manifests/registry.ollama.ai/library/n/latest"
    path.parent.mkdir()
    path.write_bytes(f'{{"manifests":[{{"digest":"{inner}"}}]}}'.encode())
    assert store.delete(ModelName.parse("m")) == []
    assert inner.file_name in blobs(store)


def test_what_is_being_added_is_not_removed(store: Store) -> None:
    add_model(store, "m", b"w")
    raw = find(store, "m").manifest.raw
    with store.adding() as adding:
        assert adding.has_blob(Digest.of(b"w"), 1)
        assert adding.has_blob(Digest.of(CONFIG))
        assert store.delete(ModelName.parse("m")) == []
        adding.write_manifest(ModelName.parse("n"), raw)
    assert names(store) == ["n:latest"]
    assert list(store.layout.adding.iterdir()) == []
    assert len(store.delete(ModelName.parse("n"))) == 2


def test_what_a_dead_process_was_adding_counts_no_more(store: Store) -> None:
    add_model(store, "m", b"w")
    (store.layout.adding / "dead").write_text(f"{Digest.of(b'w')}\n")
    assert Digest.of(b"w") in store.delete(ModelName.parse("m"))
    assert list(store.layout.adding.iterdir()) == []


def test_copies(store: Store) -> None:
    add_model(store, "a", b"1")
    add_model(store, "b", b"2")
    store.copy(ModelName.parse("A"), ModelName.parse("gpt-3.5-turbo"))
    store.copy(ModelName.parse("b"), ModelName.parse("A"))
    store.copy(ModelName.parse("b"), ModelName.parse("B"))
    assert names(store) == ["a:latest", "b:latest", "gpt-3.5-turbo:latest"]
    assert find(store, "a").weights.read_bytes() == b"2"
    assert find(store, "gpt-3.5-turbo").weights.read_bytes() == b"1"
    with pytest.raises(ModelNotFoundError):
        store.copy(ModelName.parse("c"), ModelName.parse("d"))


def test_a_store_for_reading_only(store: Store) -> None:
    add_model(store, "m", b"w")
    reader = Store(store.root, read_only=True)
    assert names(reader) == ["m:latest"]
    age(store.blob_path(Digest.of(b"w")), 7200)
    before = store.blob_path(Digest.of(b"w")).stat().st_mtime
    assert reader.has_blob(Digest.of(b"w"))
    assert store.blob_path(Digest.of(b"w")).stat().st_mtime == before
    name = ModelName.parse("m")
    for change in (
        lambda: reader.delete(name),
        lambda: reader.copy(name, ModelName.parse("n")),
        lambda: reader.write_manifest(name, find(reader, "m").manifest.raw),
        lambda: reader.add_blob([b"x"]),
        lambda: reader.prune(dry_run=False),
        reader.adding,
        lambda: reader.blob_lock(Digest.of(b"w")),
    ):
        with pytest.raises(ReadOnlyStoreError, match="reading only") as caught:
            change()
        assert str(store.root) in str(caught.value)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_store_that_cannot_be_written_to_is_named(store: Store, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Root may write everywhere, so what the system would say is said here."""
    add_model(store, "m", b"w")

    def refuse(path: object, *_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr("rsllm.system.os.open", refuse)
    for change in (lambda: store.delete(ModelName.parse("m")), lambda: store.add_blob([b"x"])):
        with pytest.raises(ReadOnlyStoreError) as caught:
            change()
        assert str(store.root) in str(caught.value)
        assert "OLLAMA_MODELS" in str(caught.value.hint)
    assert find(store, "m").weights.read_bytes() == b"w"


def test_a_manifest_that_cannot_be_read_keeps_all_blobs(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    add_model(store, "a", b"1")
    add_model(store, "b", b"2")
    read = store_module._read_manifest

    def fail(path: Path) -> object:
        if path.parent.name == "b":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(store_module, "_read_manifest", fail)
    assert store.delete(ModelName.parse("a")) == []
    assert "Permission denied" in str(store.names()[0].error)
    assert "cannot be read" in str(store.prune(dry_run=False).skipped)


def test_ollama_may_remove_a_folder_that_a_manifest_is_to_go_in(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = add_model(store, "m").raw
    place, taken = NewFile.place, []

    def take_the_folder_first(self: NewFile, path: Path) -> None:
        if len(taken) < 2:
            taken.append(path)
            path.parent.rmdir()
        place(self, path)

    monkeypatch.setattr(NewFile, "place", take_the_folder_first)
    store.write_manifest(ModelName.parse("new/n"), raw)
    assert len(taken) == 2
    assert names(store) == ["m:latest", "new/n:latest"]


def test_threads_share_a_store(store: Store) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(8):
                add_model(store, f"m{number % 3}", b"w%d" % (turn % 3), system=b"s%d" % number)
                try:
                    store.delete(ModelName.parse(f"m{turn % 3}"))
                except ModelNotFoundError:
                    continue
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for entry in store.names():
        assert entry.error is None
        assert all(store.has_blob(layer.digest, layer.size) for layer in entry.manifest.all_layers)  # type: ignore[union-attr]


def test_the_lock_of_a_blob_is_held_by_one(store: Store) -> None:
    one, other = store.blob_lock(Digest.of(b"")), store.blob_lock(Digest.of(b""))
    assert one.acquire(wait=False)
    assert not other.acquire(wait=False)
    one.release(remove=True)
    assert other.acquire(wait=False)
    other.release()
