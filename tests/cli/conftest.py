"""Fixtures of the command line's tests: the fake core behind every command, and a way to run one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner, Result

import rsllm.cli.main
import rsllm.gguf
import rsllm.machine
import rsllm.model
from rsllm.config import config
from tests.unit import fake_core


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    """The fake core in place of the real one, and an environment of our own."""
    monkeypatch.setattr(fake_core, "behaviour", fake_core.Behaviour())
    for module in (rsllm.model, rsllm.gguf, rsllm.machine):
        monkeypatch.setattr(module, "_core", fake_core)
    for variable in ("RSLLM_DEBUG", "OLLAMA_CONTEXT_LENGTH", "OLLAMA_KV_CACHE_TYPE", "OLLAMA_NOHISTORY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("RSLLM_CACHE", str(tmp_path / "cache"))
    # Nobody listens on port 1, and no server is started.
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:1")
    monkeypatch.setenv("RSLLM_SERVER", "never")
    monkeypatch.setenv("RSLLM_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("RSLLM_HISTORY", str(tmp_path / "history"))
    config.cache_clear()
    yield fake_core
    config.cache_clear()


@pytest.fixture
def model_file(tmp_path: Path) -> str:
    """A file that the fake core takes for a model."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    return str(path)


@pytest.fixture
def rsllm_command(core: ModuleType) -> Callable[..., Result]:
    """Runs `rsllm` with arguments and standard input, in this process."""

    def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(rsllm.cli.main.cli, arguments, input=stdin, prog_name="rsllm")

    return run


def reader_of(lines: Iterable[str | BaseException]) -> Callable[[str], str]:
    """What a conversation reads its lines with: these, exceptions raised in their place, then the end."""
    remaining = iter(lines)

    def read(prompt: str) -> str:
        line = next(remaining, EOFError())
        if isinstance(line, BaseException):
            raise line
        return line

    return read
