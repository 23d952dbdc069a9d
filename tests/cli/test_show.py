"""`rsllm show` of models of the store, by the server and without one, and the plan."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import rsllm.cli.main
from rsllm.config import config
from rsllm.store.create import CreateRequest, create
from rsllm.store.name import ModelName
from rsllm.store.store import Store
from tests.server.conftest import Bench
from tests.support.background import serving_in_thread
from tests.support.tiny_models import SHAPES, write

GOLDEN = Path(__file__).parent.parent / "golden" / "output"
TEXTS: dict[str, Any] = {
    "template": "{{ .System }}{{ .Tools }}\n{{ .Prompt }}",
    "system": "You are nice.\n\nAlways.\nTo all.",
    "license": "MIT License\n\nCopyright",
    "parameters": {"temperature": 0.7, "stop": ["<|im_end|>", "a b"]},
    "requires": "0.14.0",
}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Store]:
    """The store of this user with the model `mine`; no server answers."""
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:1")
    monkeypatch.setenv("RSLLM_SERVER", "never")
    config.cache_clear()
    store = Store(tmp_path / "models")
    digest, _ = store.add_blob(write(tmp_path / "tiny.gguf", SHAPES["llama"]))
    request = CreateRequest.from_dict({"files": {"tiny.gguf": str(digest)}, **TEXTS})
    list(create(store, ModelName.parse("mine"), request))
    yield store
    config.cache_clear()


def show(*arguments: str) -> Result:
    return CliRunner().invoke(rsllm.cli.main.cli, ["show", *arguments], prog_name="rsllm")


def golden(name: str, text: str) -> None:
    """`RSLLM_UPDATE_GOLDEN=1 pytest tests/cli` writes the files anew; look at the difference."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("RSLLM_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def test_what_a_model_is(store: Store) -> None:
    golden("model", show("MINE").stdout)
    verbose = show("-v", "mine").stdout
    assert "    llama.block_count " in verbose
    assert "    token_embd.weight " in verbose


def test_the_server_says_the_same(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    alone = json.loads(show("--json", "mine").stdout)
    with serving_in_thread(lambda: Bench(tmp_path).app) as port:
        monkeypatch.setenv("OLLAMA_HOST", f"127.0.0.1:{port}")
        config.cache_clear()
        asked = json.loads(show("--json", "mine").stdout)
    assert asked == alone
    assert alone["details"]["parameter_size"] == "97K"


def test_one_section(store: Store) -> None:
    assert show("--system", "mine").stdout == TEXTS["system"] + "\n"
    assert show("--template", "mine").stdout == TEXTS["template"] + "\n"
    assert show("--license", "mine").stdout == TEXTS["license"] + "\n"
    assert show("--parameters", "mine").stdout.splitlines() == [
        'stop                           "<|im_end|>"',
        'stop                           "a b"',
        "temperature                    0.7",
    ]
    golden("modelfile", show("--modelfile", "mine").stdout.replace(str(store.root), "/models"))
    two = show("--system", "--license", "mine")
    assert two.exit_code == 2
    assert two.stderr.startswith("Error: only one of '--license', '--modelfile', '--parameters', '--system', or '--tem")


def test_the_plan(store: Store) -> None:
    text = show("--plan", "mine").stdout
    assert "context             256" in text
    assert "kv bytes" in text
    plan = json.loads(show("--plan", "--json", "mine").stdout)
    assert plan["context_reason"] == "the model's limit"


def test_what_a_file_has_not(store: Store, tmp_path: Path) -> None:
    path = str(tmp_path / "tiny.gguf")
    assert show("--modelfile", path).stdout == f"FROM {Path(path).resolve()}\n"
    assert show("--system", path).stdout.startswith("A file has no system")
    assert show("--license", path).stdout == "The file has no general.license.\n"


def test_no_such_model(store: Store) -> None:
    result = show("nothing")
    assert (result.exit_code, "model 'nothing:latest' not found" in result.stderr) == (1, True)
