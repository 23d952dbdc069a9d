"""Creating models: from files, parts of a split file, or another model; what is inherited, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rsllm import gguf, shards
from rsllm.errors import DigestError, GgufError, ModelNotFoundError, OptionError, RsllmError, StoreError, TemplateError
from rsllm.store.create import CreateRequest, create
from rsllm.store.details import details, human_count, modelfile_of
from rsllm.store.digest import Digest
from rsllm.store.gojson import go_json
from rsllm.store.manifest import MediaType
from rsllm.store.model import StoredModel
from rsllm.store.modelfile import parse
from rsllm.store.name import ModelName
from rsllm.store.store import Store
from tests.support.stores import blobs
from tests.support.tiny_models import SHAPES, write

TEXTS: dict[str, Any] = {
    "template": '{{ .System }}\n"""\n{{ .Prompt }}',
    "system": "You are nice.\nAlways.",
    "license": ["MIT", "second\nlicence"],
    "parameters": {"temperature": 0.7, "stop": ["<|im_end|>", "\n"], "num_ctx": 64, "use_mmap": True, "top_p": 1.0},
    "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello.\n"}],
    "renderer": "qwen3",
    "parser": "qwen3",
    "requires": "0.14.0",
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small real model."""
    return write(tmp_path_factory.mktemp("tiny") / "tiny.gguf", SHAPES["llama"])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models")


def upload(store: Store, *paths: Path) -> dict[str, str]:
    return {path.name: str(store.add_blob(path)[0]) for path in paths}


def make(store: Store, name: str, **members: Any) -> StoredModel:
    list(create(store, ModelName.parse(name), CreateRequest.from_dict(members)))
    return store.find(ModelName.parse(name))


def test_from_a_file(store: Store, tiny: Path) -> None:
    """STO-14, over a GGUF: safetensors are refused as a whole."""
    request = CreateRequest.from_dict({"files": upload(store, tiny), **TEXTS})
    statuses = [step.status for step in create(store, ModelName.parse("mine"), request)]
    assert statuses[0] == "parsing GGUF"
    assert statuses[-2:] == ["writing manifest", "success"]
    assert all(re.fullmatch(r"(using existing|creating new) layer sha256:[0-9a-f]{64}", one) for one in statuses[1:-2])
    model = store.find(ModelName.parse("mine"))
    assert (model.template, model.system) == (TEXTS["template"], TEXTS["system"])
    assert (model.licenses, model.parameters, model.messages) == (
        TEXTS["license"],
        TEXTS["parameters"],
        TEXTS["messages"],
    )
    assert model.weights.read_bytes() == tiny.read_bytes()
    raw = store.blob_path(model.manifest.config.digest).read_text() if model.manifest.config else ""
    assert raw == (
        '{"model_format":"gguf","model_family":"llama","model_families":["llama"],"model_type":"97K","file_type":"F32",'
        '"renderer":"qwen3","parser":"qwen3","requires":"0.14.0","architecture":"amd64","os":"linux"}\n'
    )
    params = model.manifest.of_type(MediaType.PARAMS)[0]
    assert store.blob_path(params.digest).read_bytes() == (
        b'{"num_ctx":64,"stop":["\\u003c|im_end|\\u003e","\\n"],"temperature":0.7,"top_p":1,"use_mmap":true}\n'
    )


def test_the_same_content_has_the_same_digest(store: Store, tiny: Path) -> None:
    first = make(store, "a", files=upload(store, tiny), **TEXTS)
    assert make(store, "b", files=upload(store, tiny), **TEXTS).digest == first.digest
    assert make(store, "a", files=upload(store, tiny), **TEXTS).digest == first.digest


def test_its_own_modelfile_makes_it_again(store: Store, tiny: Path) -> None:
    model = make(store, "a", files=upload(store, tiny), **TEXTS)
    file = parse(modelfile_of(model))
    (path,) = file.all("from")
    again = make(store, "b", files=upload(store, Path(path)), **file.to_request())
    assert again.digest == model.digest


def test_what_is_inherited(store: Store, tiny: Path) -> None:
    base = make(store, "base", files=upload(store, tiny), **TEXTS)
    new = {"system": "Other.", "parameters": {"temperature": 0.1}, "license": "Third", "from": "BASE"}
    child = make(store, "child", **new)
    assert child.parameters == {**TEXTS["parameters"], "temperature": 0.1}
    assert (child.system, child.template, child.messages) == ("Other.", TEXTS["template"], TEXTS["messages"])
    assert child.licenses == [*TEXTS["license"], "Third"]
    assert child.config == base.config
    assert details(child)["parent_model"] == "base:latest"
    same = make(store, "same", **{"from": "base"})
    assert same.manifest.digests - {same.manifest.config.digest} == base.manifest.digests - {
        base.manifest.config.digest
    }


def test_replacing_a_model_removes_what_only_it_needed(store: Store, tiny: Path) -> None:
    make(store, "a", files=upload(store, tiny), system="One.")
    make(store, "a", files=upload(store, tiny), system="Two.")
    kept = {digest.file_name for digest in store.find(ModelName.parse("a")).manifest.digests}
    assert blobs(store) == kept


def test_parts_become_one_file(store: Store, tiny: Path, tmp_path: Path) -> None:
    model = gguf.open(tiny)
    parts = shards.plan(model, max_tensors=7)
    paths = []
    for number in range(len(parts)):
        path = tmp_path / shards.shard_name("tiny", number + 1, len(parts))
        path.write_bytes(b"".join(shards.shard(model, parts, number)))
        paths.append(path)
    whole = make(store, "whole", files=upload(store, tiny))
    split = make(store, "split", files=upload(store, *paths))
    assert split.digest == whole.digest
    assert blobs(store) == {digest.file_name for digest in whole.manifest.digests}
    with pytest.raises(GgufError, match=r"shard|part|split"):
        make(store, "some", files=upload(store, *paths[:-1]))


def test_projectors_adapters_and_drafts(store: Store, tiny: Path, tmp_path: Path) -> None:
    projector = written(tmp_path / "mmproj.gguf", "clip")
    adapter = written(tmp_path / "lora.gguf", "llama", kind="adapter")
    files = upload(store, tiny, projector)
    model = make(store, "m", files=files, adapters=upload(store, adapter), draft_files=upload(store, tiny))
    kinds = [layer.media_type for layer in model.manifest.layers]
    assert sorted(kinds) == sorted([MediaType.MODEL, MediaType.PROJECTOR, MediaType.ADAPTER, MediaType.DRAFT])
    assert model.config["model_families"] == ["llama", "clip"] or model.config["model_families"] == ["clip", "llama"]
    assert model.config["model_family"] == "llama"
    text = modelfile_of(model)
    assert [line.split()[0] for line in text.splitlines()[4:]] == ["FROM", "ADAPTER", "DRAFT", "FROM"]
    with pytest.raises(OptionError, match="only one adapter"):
        make(store, "n", files=files, adapters={"a": files["tiny.gguf"], "b": files["tiny.gguf"]})
    with pytest.raises(OptionError, match="is a model and no adapter"):
        make(store, "n", files=files, adapters=upload(store, tiny))


def written(path: Path, architecture: str, kind: str | None = None) -> Path:
    from gguf import GGUFWriter
    from numpy import zeros

    writer = GGUFWriter(path, architecture)
    if kind:
        writer.add_type(kind)
    writer.add_tensor("x", zeros((2, 32), dtype="float32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


MISSING = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("members", "kind", "text"),
    [
        ({}, OptionError, "neither 'from' or 'files' was specified"),
        ({"files": {"0.gguf": ""}}, DigestError, "invalid digest format"),
        ({"files": {"0.gguf": MISSING}}, OptionError, "is not here"),
        ({"files": {"../x": MISSING}}, OptionError, "file path must be relative"),
        ({"files": {"/x": MISSING}}, OptionError, "file path must be relative"),
        ({"from": "nothing"}, ModelNotFoundError, "model 'nothing:latest' not found"),
        ({"from": "a@b"}, OptionError, "invalid model name"),
        ({"from": "x", "template": "{{ .Prompt"}, TemplateError, "template error"),
        ({"from": "x", "quantize": "q4_K_M"}, OptionError, "cannot be quantized yet"),
        ({"from": "x", "draft_quantize": "q4_K_M"}, OptionError, "requires a DRAFT model"),
        ({"from": "x", "remote_host": "https://a"}, OptionError, "bad remote"),
        ({"from": 1}, OptionError, "from must be a string"),
        ({"files": []}, OptionError, "neither"),
        ({"files": [1]}, OptionError, "files must be an object"),
        ({"from": "x", "messages": [{"role": "robot", "content": ""}]}, OptionError, "message role must be"),
        ({"from": "x", "license": [1]}, OptionError, "license must be a string"),
        ({"from": "x", "system": "\ud800"}, OptionError, "system is not valid Unicode"),
        ({"modelfile": "FROM a"}, OptionError, "the server reads no Modelfile"),
    ],
)
def test_refusals(store: Store, members: dict[str, Any], kind: type[RsllmError], text: str) -> None:
    with pytest.raises(kind, match=re.escape(text)) as caught:
        make(store, "new", **members)
    assert str(store.root) not in str(caught.value)
    assert store.names() == []


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("model.safetensors", b"\0" * 20, "cannot be converted yet"),
        ("x.gguf", b"<html>", "supplied file was not in GGUF format"),
        ("x.gguf", b"", "supplied file was not in GGUF format"),
    ],
)
def test_files_that_are_no_gguf(store: Store, name: str, content: bytes, text: str) -> None:
    """CVE-2024-39720."""
    digest, _ = store.add_blob([content])
    with pytest.raises(OptionError, match=text):
        make(store, "new", files={name: str(digest)})


def test_a_failed_creation_leaves_the_model_as_it_was(store: Store, tiny: Path) -> None:
    before = make(store, "a", files=upload(store, tiny), system="One.").digest
    digest, _ = store.add_blob([b"GGUF" + bytes(3)])
    with pytest.raises((GgufError, StoreError)):
        make(store, "a", files={"x.gguf": str(digest)})
    assert store.find(ModelName.parse("a")).digest == before


def test_details_of_a_bare_configuration_come_from_the_file(store: Store, tiny: Path) -> None:
    from rsllm.store.manifest import Layer, Manifest

    config, weights = store.add_blob([b"{}"]), store.add_blob(tiny)
    manifest = Manifest.build(Layer(MediaType.CONFIG, *config), [Layer(MediaType.MODEL, *weights)])
    store.write_manifest(ModelName.parse("bare"), manifest.raw)
    assert details(store.find(ModelName.parse("bare"))) == {
        "parent_model": "",
        "format": "gguf",
        "family": "llama",
        "families": ["llama"],
        "parameter_size": "97K",
        "quantization_level": "F32",
        "context_length": 256,
        "embedding_length": 64,
    }


def test_counts_as_ollama_writes_them() -> None:
    counts = (7_000_000_000, 2_820_000_000, 137_000_000, 500_500_000, 12_000, 7)
    assert [human_count(count) for count in counts] == ["7B", "2.8B", "137M", "500.50M", "12K", "7"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (0.7, "0.7"),
        (1e-5, "0.00001"),
        (1e-7, "1e-7"),
        (1.5e22, "1.5e+22"),
        (-0.25, "-0.25"),
        (1e20, "1" + "0" * 20),
    ],
)
def test_numbers_as_go_writes_them(value: float, text: str) -> None:
    assert go_json(value) == text.encode() + b"\n"
    assert json.loads(text) == value
    assert Digest.of(go_json({"a": value})) == Digest.of(f'{{"a":{text}}}\n'.encode())
