"""A server of each program on one store, and tiny models to fill it with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType

from tests.ollama_peer import build
from tests.ollama_peer.servers import Server, ollama_server, rsllm_server
from tests.support import tiny_models


@pytest.fixture(scope="session")
def ollama_program() -> Path:
    """A real Ollama; where there is no Go to build it, the tests that want it are skipped."""
    if build.go() is None:
        pytest.skip(build.MISSING)
    return build.ollama()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights, a few hundred kilobytes."""
    shape = replace(tiny_models.SHAPES["llama"], metadata={"general.file_type": 1})
    return tiny_models.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf", shape, GGMLQuantizationType.F16)


@pytest.fixture(scope="module")
def ollama(ollama_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Ollama, with a store of its own."""
    folder = tmp_path_factory.mktemp("ollama")
    with ollama_server(folder / "home", folder / "models") as server:
        yield server


@pytest.fixture(scope="module")
def rsllm(ollama_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Ours, with a store of its own."""
    folder = tmp_path_factory.mktemp("rsllm")
    with rsllm_server(folder / "home", folder / "models") as server:
        yield server


@pytest.fixture(scope="module")
def shared(ollama: Server, ollama_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Ours, on the store of `ollama`."""
    with rsllm_server(tmp_path_factory.mktemp("shared"), ollama.store.root) as server:
        yield server
