"""Servers of both programs, each with a home of its own, and both programs' commands aimed at either of them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rsllm.store.manifest import Manifest
from rsllm.store.name import ModelName
from rsllm.store.store import Store
from tests.ollama_peer import build

__all__ = ["Done", "Server", "manifest_of", "ollama_server", "rsllm_server"]

ROOT = Path(__file__).parents[2]
_START_SECONDS = 60
_COMMAND_SECONDS = 90
_TAIL = 800
# How a terminal is told to draw: Ollama does so in pipes as well.
_DRAWING = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    def ok(self) -> str:
        """What it printed; it must have gone well."""
        assert self.code == 0, f"status {self.code}: {(self.err or self.out)[-_TAIL:]}"
        return self.out

    @property
    def error(self) -> str:
        """The error that it ended with."""
        assert self.code != 0, self.out
        lines = [line for line in self.err.splitlines() if line.startswith("Error: ")]
        assert lines, self.err[-_TAIL:]
        return lines[-1].removeprefix("Error: ")


@dataclass
class Server:
    """A server of either program, and the store that it serves."""

    kind: str
    store: Store
    environment: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{self.environment['OLLAMA_HOST']}"

    def ollama(self, *arguments: str, stdin: str = "") -> Done:
        """Run Ollama's command at this server."""
        return self._run([str(build.ollama()), *arguments], stdin)

    def rsllm(self, *arguments: str, stdin: str = "") -> Done:
        """Run ours."""
        return self._run([sys.executable, "-m", "rsllm", *arguments], stdin)

    def both(self, *arguments: str) -> tuple[Done, Done]:
        """The same with both, Ollama first."""
        return self.ollama(*arguments), self.rsllm(*arguments)

    def get(self, path: str) -> Any:
        """What the server answers to a GET."""
        with _open(self.url + path) as response:
            return json.load(response)

    def post(self, path: str, **body: Any) -> Any:
        """What it answers to a POST; of a stream the last line."""
        request = urllib.request.Request(self.url + path, json.dumps(body).encode())
        with _open(request) as response:
            lines = response.read().splitlines()
        return json.loads(lines[-1]) if lines else None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        program = [str(build.ollama())] if self.kind == "ollama" else [sys.executable, "-m", "rsllm"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*program, "serve"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment, cwd=ROOT
            )
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                _open(self.url).close()
                return
            except OSError:
                said = self.log.read_text(errors="replace")[-2000:]
                assert self.process.poll() is None and time.monotonic() < deadline, said
                time.sleep(0.05)

    def kill(self) -> None:
        """End it at once, as a power cut does."""
        assert self.process is not None, "it was started"
        self.process.kill()
        self.process.wait()
        self.process = None

    def stop(self) -> None:
        """End it in order."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            try:
                status = self.process.wait(60)
            finally:
                self.kill()
            assert status == 0, self.log.read_text(errors="replace")[-2000:]

    def _run(self, command: Sequence[str], stdin: str) -> Done:
        done = subprocess.run(
            command, input=stdin.encode(), capture_output=True, env=self.environment, timeout=_COMMAND_SECONDS, cwd=ROOT
        )
        out, err = (_DRAWING.sub("", text.decode(errors="replace")) for text in (done.stdout, done.stderr))
        return Done(done.returncode, out, err)


def manifest_of(store: Store, name: str) -> Manifest:
    """The manifest of a model, from the disk."""
    return store.find(ModelName.parse(name)).manifest


@contextlib.contextmanager
def ollama_server(home: Path, models: Path) -> Iterator[Server]:
    """Ollama at work in `home`, with the store `models`."""
    with _server("ollama", home, models) as server:
        yield server


@contextlib.contextmanager
def rsllm_server(home: Path, models: Path) -> Iterator[Server]:
    """The same of ours."""
    with _server("rsllm", home, models) as server:
        yield server


@contextlib.contextmanager
def _server(kind: str, home: Path, models: Path) -> Iterator[Server]:
    home.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")},
        "HOME": str(home),
        "OLLAMA_MODELS": str(models),
        "OLLAMA_HOST": f"127.0.0.1:{port}",
        "OLLAMA_NO_CLOUD": "1",
        "OLLAMA_CONTEXT_LENGTH": "512",
        # Ollama's command cannot tell our server that its user typed a name.
        "RSLLM_PRIVATE_REGISTRIES": "127.0.0.1,localhost",
        "RSLLM_STATE": str(home / "state"),
        "RSLLM_SERVER": "never",
    }
    server = Server(kind, Store(models), environment, home / f"{kind}.log")
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _open(what: str | urllib.request.Request) -> Any:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        return opener.open(what, timeout=_COMMAND_SECONDS)
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{error.code}: {error.read().decode(errors='replace')}") from None
