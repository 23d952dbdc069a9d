"""Completion in a real bash, and what other shells are told."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rsllm.store.store import Store
from tests.support.stores import add_model

RSLLM = Path(sys.executable).with_name("rsllm")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A store with three models, and `rsllm` on the path."""
    store = Store(tmp_path / "models")
    for name in ("qwen3:8b", "qwen3:0.6b", "hf.co/org/repo:Q4_K_M"):
        add_model(store, name, b"GGUF")
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    script = bin_folder / "rsllm"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rsllm "$@"\n')
    script.chmod(0o755)
    return {
        **os.environ,
        "OLLAMA_MODELS": str(store.root),
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
    }


def in_bash(words: str, environment: dict[str, str]) -> list[str]:
    """What bash offers at the end of these words, which it has cut as it does."""
    script = f"""
        eval "$(_RSLLM_COMPLETE=bash_source rsllm)"
        compopt() {{ :; }}
        COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        _rsllm_completion rsllm
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line]


@pytest.mark.skipif(shutil.which("bash") is None, reason="this machine has no bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("rsllm pu", {"pull", "push"}),
        ("rsllm run qw", {"qwen3:8b", "qwen3:0.6b"}),
        ("rsllm run qwen3 :", {"8b", "0.6b"}),
        ("rsllm run qwen3 : 8", {"8b"}),
        ("rsllm show hf.co/org/repo : Q4", {"Q4_K_M"}),
        ("rsllm rm qwen3 : 8b qwen3 : 0", {"0.6b"}),
        ("rsllm cp QWEN3 : 8", {"qwen3:8b"}),
        ("rsllm show --mod", {"--modelfile"}),
    ],
)
def test_bash(environment: dict[str, str], words: str, offered: set[str]) -> None:
    found = in_bash(words, environment)
    assert offered <= set(found)
    assert not {"qwen3:8b", "8b", "0.6b", "Q4_K_M", "push"} & (set(found) - offered)


@pytest.mark.parametrize("shell", ["zsh", "fish", "bash"])
def test_every_shell_is_told_what_to_do(environment: dict[str, str], shell: str) -> None:
    done = subprocess.run(
        [str(RSLLM)] if RSLLM.exists() else [sys.executable, "-m", "rsllm"],
        env={**environment, "_RSLLM_COMPLETE": f"{shell}_source"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert "rsllm" in done.stdout
    assert f"{shell}_complete" in done.stdout


@pytest.mark.parametrize(
    ("shell", "variables"),
    [
        ("zsh", {"COMP_WORDS": "rsllm run qwen3:8", "COMP_CWORD": "2"}),
        ("fish", {"COMP_WORDS": "rsllm run qwen3:8", "COMP_CWORD": "qwen3:8"}),
    ],
)
def test_other_shells(environment: dict[str, str], shell: str, variables: dict[str, str]) -> None:
    done = subprocess.run(
        ["rsllm"],
        env={**environment, **variables, "_RSLLM_COMPLETE": f"{shell}_complete"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert "qwen3:8b" in done.stdout
    assert "qwen3:0.6b" not in done.stdout
