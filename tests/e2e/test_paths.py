"""Folders with any characters in their names: home, store, state and model, from pull to answer, with a real model."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(120)]


def test_every_folder_may_have_any_name(smollm2_path: Path, tmp_path: Path) -> None:
    """PKG-01."""
    home = tmp_path / "ü 模型 Ž'\" $x"
    home.mkdir()
    (home / "m 模.gguf").symlink_to(smollm2_path)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    environment = {
        **os.environ,
        "HOME": str(home),
        "OLLAMA_MODELS": str(home / "store 模"),
        "OLLAMA_HOST": f"127.0.0.1:{port}",
        "RSLLM_STATE": str(home / "state é"),
        "RSLLM_SERVER": "auto",
        "RSLLM_SERVER_IDLE": "1s",
        "OLLAMA_KEEP_ALIVE": "0",
    }

    def rsllm(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "rsllm", *arguments],
            env=environment,
            cwd=home,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    (home / "Modelfile ö").write_text("FROM './m 模.gguf'\nSYSTEM é".replace("'", '"'))
    rsllm("create", "mine", "-f", "Modelfile ö")
    (model,) = json.loads(rsllm("list", "--json"))["models"]
    assert (model["name"], model["details"]["quantization_level"]) == ("mine:latest", "Q4_1")
    assert rsllm("run", "mine", "hi", "--num-predict", "3", "--num-ctx", "64").strip()
    assert str(home / "store 模") in rsllm("show", "--modelfile", "mine")
    assert "Everything is as it should be." in rsllm("doctor", "--store")
