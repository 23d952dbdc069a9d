"""The application with a store on disk and runners that run no model.

A model's weights are a small GGUF that tells a fake runner how to behave, so all but the numbers is as in earnest: the
files, the store, the pool, its child processes, the protocol.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest

from rsllm.config import Config
from rsllm.runner.pool import RunnerPool
from rsllm.runner.scheduler import Settings
from rsllm.server.app import create_app
from rsllm.server.models import Models
from rsllm.server.service import Services
from rsllm.store.manifest import Layer, Manifest, MediaType
from rsllm.store.name import ModelName
from rsllm.store.store import Store
from tests.support.fake_models import fake_gguf
from tests.support.fake_runner import COMMAND, fake_path

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
METADATA: dict[str, Any] = {
    "general.architecture": "fake",
    "fake.context_length": 4096,
    "tokenizer.ggml.tokens": ["<|im_start|>", "<|im_end|>", "a"],
    "tokenizer.ggml.token_type": [3, 3, 1],
    "tokenizer.chat_template": CHATML,
}


class Bench:
    """A store, the services and the application on them."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.store = Store(root / "models")
        environment = {"HOME": str(root), "OLLAMA_MODELS": str(root / "models"), **settings.pop("environment", {})}
        self.config = Config.from_environment(environment)
        seconds = self.config.request_seconds
        rules = Settings(**settings)
        self.pool = RunnerPool(rules, command=COMMAND, available_bytes=lambda: 10**12, request_seconds=seconds)
        self.services = Services(self.config, Models(self.store), self.pool)
        self.app = create_app(self.services)

    def add(
        self,
        name: str = "tiny",
        behaviour: Mapping[str, Any] | None = None,
        *,
        metadata: Mapping[str, Any] | None = None,
        layers: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> str:
        """Put a model into the store; the path of its weights. `layers` maps media types to texts."""
        content = fake_gguf(fake_path(**(behaviour or {})), METADATA if metadata is None else metadata)
        entries = [self._layer(MediaType.MODEL, content)]
        entries += [self._layer(kind, text.encode()) for kind, text in (layers or {}).items()]
        described = {"model_format": "gguf", "model_family": "fake", "model_type": "1B", "file_type": "F16"}
        head = self._layer(MediaType.CONFIG, json.dumps({**described, **(config or {})}).encode())
        self.store.write_manifest(ModelName.parse(name), Manifest.build(head, entries).raw)
        return str(self.store.blob_path(entries[0].digest))

    def _layer(self, kind: str, content: bytes) -> Layer:
        digest, size = self.store.add_blob([content])
        return Layer(kind, digest, size)


@pytest.fixture
def make_bench(tmp_path: Path) -> Callable[..., Bench]:
    """Makes a bench; keyword arguments are settings of the scheduler, and `environment`."""
    return lambda **settings: Bench(tmp_path, **settings)


@pytest.fixture
async def bench(make_bench: Callable[..., Bench]) -> AsyncIterator[Bench]:
    """A bench with the model `tiny`."""
    bench = make_bench()
    bench.add()
    yield bench
    await bench.pool.close()


@pytest.fixture
async def client(bench: Bench) -> AsyncIterator[httpx2.AsyncClient]:
    """Asks the application of `bench` without a network."""
    async with asking(bench) as client:
        yield client


def asking(bench: Bench, **arguments: Any) -> httpx2.AsyncClient:
    """A client of a bench's application."""
    transport = httpx2.ASGITransport(app=bench.app, raise_app_exceptions=True)
    return httpx2.AsyncClient(transport=transport, base_url="http://localhost:11434", **arguments)


def lines(response: httpx2.Response) -> list[dict[str, Any]]:
    """The objects of a stream."""
    assert response.headers["content-type"] == "application/x-ndjson", response.text
    return [json.loads(line) for line in response.text.splitlines()]
