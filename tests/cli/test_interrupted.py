"""Ctrl-C in the middle of long work: the command ends, and the store is as it was but for parts to go on from."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rsllm.store.check import check
from rsllm.store.manifest import MediaType
from rsllm.store.name import ModelName
from tests.server.conftest import Bench
from tests.support.background import serving_in_thread
from tests.support.hostile_registry import Exchange, HostileRegistry
from tests.support.registry import noise
from tests.support.tiny_models import SHAPES, write

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Bench, dict[str, str]]]:
    """A server with an empty store, and an environment whose commands ask it."""
    made = Bench(tmp_path / "server", environment={"RSLLM_PRIVATE_REGISTRIES": "127.0.0.0/8"})
    with serving_in_thread(lambda: made.app) as port:
        environment = {
            **os.environ,
            "HOME": str(tmp_path),
            "OLLAMA_HOST": f"127.0.0.1:{port}",
            "RSLLM_SERVER": "never",
            "RSLLM_STATE": str(tmp_path / "state"),
        }
        yield made, environment


def start(environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rsllm", *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def until(true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_pull(server: tuple[Bench, dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    bench, environment = server
    monkeypatch.setenv("RSLLM_STATE", environment["RSLLM_STATE"])
    from rsllm.config import config

    config.cache_clear()
    weights = noise(3_000_000)
    held = threading.Event()

    def half(exchange: Exchange) -> bool:
        """The first half at once, and the rest when it is allowed."""
        if held.is_set() or exchange.command == "HEAD":
            return False
        start, end = exchange.range(len(weights)) or (0, len(weights))
        exchange.send_response(206)
        exchange.send_header("Content-Length", str(end - start))
        exchange.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(weights)}")
        exchange.end_headers()
        exchange.wfile.write(weights[start : start + (end - start) // 2])
        exchange.wfile.flush()
        held.wait(60)
        return True

    with HostileRegistry() as registry:
        manifest = registry.add("me/m", "latest", {MediaType.MODEL: weights})
        registry.tricks["blob"] = half
        name = f"{registry.host}/me/m"
        command = start(environment, "pull", "--insecure", name)
        blobs = bench.store.layout.blobs
        until(
            lambda: list(blobs.glob("*-partial-0")) and any(path.stat().st_blocks for path in blobs.glob("*-partial"))
        )
        command.send_signal(signal.SIGINT)
        output, errors = command.communicate(timeout=30)
        assert (command.returncode, output) == (130, ""), errors
        assert "Traceback" not in errors
        until(lambda: not bench.services.active)
        assert bench.store.names() == []
        assert check(bench.store) == []
        held.set()
        again = start(environment, "pull", "--insecure", name)
        assert again.communicate(timeout=60) == ("", "")
        assert bench.store.find(ModelName.parse(name)).manifest.raw == manifest.raw
        ranges = [request.headers.get("Range") for request in registry.asked("blob")]
        assert ranges[-1] != ranges[0], ranges  # it went on where it was
        assert check(bench.store) == []
    config.cache_clear()


def test_creating_from_a_large_file(server: tuple[Bench, dict[str, str]], tmp_path: Path) -> None:
    bench, environment = server
    path = write(tmp_path / "m.gguf", SHAPES["llama"])
    with path.open("ab") as file:
        file.truncate(2**29)  # mostly holes, and yet half a gigabyte to send
    (tmp_path / "Modelfile").write_text(f"FROM {path}")
    command = start(environment, "create", "mine", "-f", str(tmp_path / "Modelfile"))
    until(lambda: command.poll() is not None or list(bench.store.layout.blobs.glob("sha256-new-*")))
    command.send_signal(signal.SIGINT)
    output, errors = command.communicate(timeout=60)
    assert (command.returncode, output) == (130, ""), errors
    assert "Traceback" not in errors
    until(lambda: not list(bench.store.layout.blobs.iterdir()))
    assert bench.store.names() == []
