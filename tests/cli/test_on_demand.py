"""A server that a command starts: when, once, and what is said where it does not come up."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rsllm.address import Address
from rsllm.cli import ondemand
from rsllm.config import config
from rsllm.errors import ServerUnreachableError
from tests.support.hostile_registry import HostileRegistry
from tests.support.tiny_models import SHAPES, write

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """An environment with a free port; servers that were started there are ended."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    environment = {
        "HOME": str(tmp_path),
        "OLLAMA_HOST": f"127.0.0.1:{port}",
        "OLLAMA_MODELS": str(tmp_path / "models"),
        "RSLLM_STATE": str(tmp_path / "state"),
        "RSLLM_SERVER": "auto",
        "RSLLM_SERVER_IDLE": "60s",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    config.cache_clear()
    yield environment
    config.cache_clear()
    for pid in servers(port):
        os.kill(pid, signal.SIGKILL)


def servers(port: int | str) -> list[int]:
    """Processes that serve on the port, by their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command, environment = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
        except OSError:
            continue
        if b"\0rsllm.server\0" in command and f"OLLAMA_HOST=127.0.0.1:{port}\0".encode() in environment + b"\0":
            found.append(int(folder.name))
    return found


def rsllm(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rsllm", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def test_commands_at_once_start_one_server_that_stays(place: dict[str, str], tmp_path: Path) -> None:
    commands = [rsllm("list") for _ in range(3)]
    for command in commands:
        output, errors = command.communicate(timeout=60)
        assert (command.returncode, errors) == (0, "")
        assert output.startswith("NAME")
    port = place["OLLAMA_HOST"].partition(":")[2]
    (pid,) = servers(port)
    assert os.getsid(pid) == pid  # the terminal's end is not its end
    log = (tmp_path / "state" / "server.log").read_text()
    assert log.count("listens on") == 1
    assert log.count("GET /api/tags 200") == 3


def test_it_ends_when_idle(place: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RSLLM_SERVER_IDLE", "300ms")
    command = rsllm("list")
    command.communicate(timeout=60)
    assert command.returncode == 0
    port = place["OLLAMA_HOST"].partition(":")[2]
    deadline = time.monotonic() + 30
    while servers(port):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_never_means_never(place: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RSLLM_SERVER", "never")
    command = rsllm("list")
    assert "could not connect" in command.communicate(timeout=60)[1]
    assert command.returncode == 1


def test_another_machine_is_not_started_at(place: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", "192.0.2.1:9")
    config.cache_clear()
    with ondemand.connect() as client:
        assert client._start is None


def test_a_server_that_does_not_come_up_says_why(place: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert config().server == "auto"  # read before what follows, which is for the server alone
    monkeypatch.setenv("OLLAMA_NUM_PARALLEL", "many")
    with pytest.raises(ServerUnreachableError, match="OLLAMA_NUM_PARALLEL must be a whole number") as raised:
        ondemand.start_server(Address.parse(place["OLLAMA_HOST"]))
    assert "server.log" in str(raised.value.hint)


@pytest.mark.parametrize(
    "module", ["rsllm.cli.main", "rsllm.cli.run", "rsllm.cli.pull", "rsllm.cli.serve", "rsllm.client"]
)
def test_what_is_heavy_waits_until_it_is_needed(module: str) -> None:
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", f"import {module}"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=True,
    )
    imported = {line.rsplit("|", 1)[1].strip() for line in run.stderr.splitlines() if line.startswith("import time:")}
    assert module in imported
    heavy = {"httpx2", "starlette", "uvicorn", "cryptography", "rich", "numpy", "jinja2", "asyncio", "subprocess"}
    assert not heavy & imported


def test_a_server_listens_before_it_imports_what_only_some_requests_need() -> None:
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import rsllm.server.main"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=True,
    )
    imported = {line.rsplit("|", 1)[1].strip() for line in run.stderr.splitlines() if line.startswith("import time:")}
    assert "uvicorn" in imported
    for late in (
        "cryptography", "httpx2", "jinja2", "numpy", "prometheus_client", "rich", "rsllm._core",
        "rsllm.chat.go.evaluator", "rsllm.registry", "rsllm.server.dialects", "rsllm.server.generation",
        "rsllm.server.listing", "rsllm.server.openapi",
    ):  # fmt: skip
        assert late not in imported, late


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["list", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "rsllm", *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=True,
        cwd=ROOT,
    )
    for name in ("httpx2", "starlette", "uvicorn", "cryptography", "rich", "numpy", "asyncio"):
        assert f" {name}\n" not in run.stderr


def test_a_file_is_shown_without_anything_heavy(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf", SHAPES["llama"])
    for script in (
        f"from rsllm.cli.main import cli; cli(['show', '-v', {str(path)!r}], standalone_mode=False)",
        f"import rsllm; rsllm.load({str(path)!r}, context=64).generate('hi', max_tokens=1)",
    ):
        run = subprocess.run(
            [sys.executable, "-X", "importtime", "-c", script],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=True,
        )
        for name in ("httpx2", "starlette", "uvicorn", "cryptography", "rich", "numpy", "asyncio", "jinja2"):
            assert f" {name}\n" not in run.stderr


def test_details_are_logged_where_asked_for(
    place: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OLLAMA_DEBUG", "1")
    with HostileRegistry() as registry:
        command = rsllm("pull", "--insecure", f"{registry.host}/me/m")
        # The server of the same user knows that it was typed here, or it would not ask this machine.
        assert "pull model manifest: file does not exist" in command.communicate(timeout=60)[1]
    log = (tmp_path / "state" / "server.log").read_text()
    assert "DEBUG rsllm.registry.client " in log
    assert f" GET {registry.url}/v2/me/m/manifests/latest: 404\n" in log
