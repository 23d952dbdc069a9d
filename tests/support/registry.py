"""Debian's `docker-registry`, started on a free port of loopback for a test, and what tests of registries share."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rsllm.registry.pull import pull
from rsllm.registry.settings import RegistrySettings
from rsllm.store.manifest import Layer, Manifest, MediaType
from rsllm.store.name import ModelName
from rsllm.store.progress import Progress
from rsllm.store.store import Store

__all__ = ["MISSING", "add_model", "docker_registry", "noise", "pulled", "quick", "run_pull"]

MISSING = "this machine has no docker-registry"
_START_SECONDS = 20.0
_CONFIG = """
version: 0.1
log: {{level: error}}
storage:
  filesystem: {{rootdirectory: {root}}}
  delete: {{enabled: true}}
http: {{addr: "127.0.0.1:{port}"}}
"""


@contextlib.contextmanager
def docker_registry(folder: Path) -> Iterator[str]:
    """A registry whose blobs lie in `folder`; its `host:port`. Raises `FileNotFoundError` without the program."""
    program = shutil.which("docker-registry")
    if program is None:
        raise FileNotFoundError(MISSING)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = folder / "config.yml"
    folder.mkdir(parents=True, exist_ok=True)
    config.write_text(_CONFIG.format(root=folder / "data", port=port))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve", str(config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _wait(f"http://127.0.0.1:{port}/v2/", process, folder / "log")
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError):
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5).close()
            return
        time.sleep(0.05)
    raise RuntimeError(f"docker-registry did not start: {log.read_text(errors='replace')[-2000:]}")


def quick(folder: Path, **changes: Any) -> RegistrySettings:
    """Settings for tests: small parts, hardly any waiting, a key in `folder`."""

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.01))

    values: dict[str, Any] = {
        "user_typed": True,
        "key_path": folder / "key" / "id_ed25519",
        "part_min_bytes": 64 * 1024,
        "part_max_bytes": 256 * 1024,
        "stall_seconds": 10.0,
        "connect_seconds": 5.0,
        "progress_seconds": 0.01,
        "sleep": sleep,
    }
    return RegistrySettings(**{**values, **changes})


def noise(size: int, seed: int = 1) -> bytes:
    """Bytes that no two places have alike."""
    return random.Random(seed).randbytes(size)


def add_model(store: Store, name: ModelName, layers: dict[str, bytes], config: bytes = b"{}") -> Manifest:
    """Put a model into a store."""
    made = []
    for media_type, data in [*layers.items(), (MediaType.CONFIG, config)]:
        digest, size = store.add_blob([data])
        made.append(Layer(media_type, digest, size))
    manifest = Manifest.build(made[-1], made[:-1])
    store.write_manifest(name, manifest.raw)
    return manifest


async def pulled(store: Store, name: str, settings: RegistrySettings, *, insecure: bool = True) -> list[Progress]:
    """Everything that a pull tells."""
    return [step async for step in pull(store, ModelName.parse(name), insecure=insecure, settings=settings)]


def run_pull(store: Store, name: str, settings: RegistrySettings) -> list[Progress]:
    """The same, outside of any event loop."""
    return asyncio.run(pulled(store, name, settings))
