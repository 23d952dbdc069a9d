"""What the server keeps to itself, and what it does not let anybody have: paths, time, the network."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

import rsllm
from rsllm.address import Address
from rsllm.errors import GgufError, RunnerCrashedError
from rsllm.server.errors import answer
from tests.server.conftest import Bench, asking
from tests.server.test_serving import ROOT, free_port, running

BODY = {"model": "tiny", "prompt": "hi"}


def test_the_default_address_is_of_this_machine_alone() -> None:
    address = Address.parse("")
    assert (address.host, address.port, address.is_loopback) == ("127.0.0.1", 11434, True)
    assert Address.parse(":8080").host == "127.0.0.1"


@pytest.mark.skipif(not os.path.exists("/proc/net/tcp"), reason="this machine has no /proc/net")
def test_without_a_host_nobody_else_can_connect(tmp_path: Path) -> None:
    port = free_port()
    with subprocess.Popen(
        [sys.executable, "-m", "rsllm", "serve"],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env={**os.environ, "HOME": str(tmp_path), "OLLAMA_HOST": f":{port}"},
    ) as process:
        listening: set[str] = set()
        deadline = time.monotonic() + 25
        while not listening and process.poll() is None and time.monotonic() < deadline:
            tables = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
            rows = [line.split() for line in tables.splitlines()]
            listening = {row[1] for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "0A"}
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
    assert listening == {f"0100007F:{port:04X}"}


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.0.2.7"])
def test_the_command_refuses_to_serve_everybody_without_a_key(tmp_path: Path, host: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rsllm", "serve", "--host", f"{host}:{free_port()}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "HOME": str(tmp_path)},
        timeout=30,
    )
    assert done.returncode != 0
    assert "no API key is set" in done.stderr
    assert "--allow-public" in done.stderr
    assert "Traceback" not in done.stderr


# Time.


@pytest.mark.parametrize("behaviour", [{"load_delay": 20}, {"pieces": None, "delay": 20}])
async def test_a_request_has_its_time_and_no_more(make_bench: Callable[..., Bench], behaviour: dict[str, Any]) -> None:
    bench = make_bench(environment={"RSLLM_REQUEST_TIMEOUT": "500ms"})
    bench.add(behaviour=behaviour)
    async with bench.pool, asking(bench) as client:
        response = await client.post("/api/generate", json=BODY)
        assert response.status_code == 504
        assert response.json()["kind"] == "RequestTimeoutError"
        assert running(bench) == 0


async def test_time_that_is_over_in_the_middle_is_the_last_line(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(environment={"RSLLM_REQUEST_TIMEOUT": "1s"})
    bench.add(behaviour={"pieces": None, "delay": 0.1})
    async with bench.pool, asking(bench) as client:
        response = await client.post("/api/generate", json=BODY)
        assert response.status_code == 200
        assert "took longer than 1 s" in json.loads(response.text.splitlines()[-1])["error"]


# Paths.


def test_folders_of_this_machine_are_not_named(tmp_path: Path) -> None:
    package = Path(rsllm.__file__).parent
    home = Path.home()
    for path, left in (
        (tmp_path / "models/blobs/sha256-1", "blobs/sha256-1"),
        (home / "x.gguf", "x.gguf"),
        (package / "server/app.py", "app.py"),
        (Path(sys.prefix) / "lib/y", "lib/y"),
    ):
        told = answer(GgufError(f"{path}: it is cut short", hint=f"look at {path}"), hidden=str(tmp_path / "models"))
        for text in (told.body["error"], told.body["hint"]):
            assert left in text
            assert str(path.parent) not in text
    for text in ("use /api/generate with raw", f"https://host.example{home}/x", "/no/folder/of/ours"):
        assert answer(GgufError(text)).body["error"] == text


async def test_what_a_dead_runner_wrote_names_no_folder(make_bench: Callable[..., Bench], tmp_path: Path) -> None:
    bench = make_bench()
    trace = f'File "{Path(sys.prefix) / "lib/python3/x.py"}", line 3, {tmp_path}/models/blobs/sha256-1'
    bench.add(behaviour={"crash_at_load": 3, "log": [trace]})
    async with bench.pool, asking(bench) as client:
        response = await client.post("/api/generate", json=BODY)
    assert response.status_code == 500
    error = response.json()["error"]
    assert "exit code 3" in error and "blobs/sha256-1" in error
    assert str(tmp_path) not in error and sys.prefix not in error


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/create", {"model": "m", "files": {"0.gguf": ""}}),
        ("POST", "/api/create", {"model": "m", "files": {"0.gguf": "sha256:" + "0" * 64}}),
        ("POST", "/api/create", {"model": "m", "from": "nosuch/../../x"}),
        ("POST", "/api/show", {"model": "../../etc/passwd"}),
        ("POST", "/api/show", {"model": "nosuch"}),
        ("POST", "/api/copy", {"source": "/etc/passwd", "destination": "x"}),
        ("DELETE", "/api/delete", {"model": "../x"}),
        ("POST", "/api/blobs/sha256:..%2f..%2fx", None),
        ("POST", "/api/generate", {"model": "damaged", "prompt": "x"}),
        ("GET", "/v1/models/..%2f..%2fetc%2fpasswd", None),
    ],
)
async def test_no_error_names_a_folder(
    client: httpx2.AsyncClient, bench: Bench, tmp_path: Path, method: str, path: str, body: Any
) -> None:
    """SEC-05, CVE-2024-39719."""
    damaged = bench.add("damaged")
    Path(damaged).chmod(0o600)
    Path(damaged).write_bytes(b"GG")
    response = await client.request(method, path, json=body)
    assert response.status_code >= 400 or "error" in response.text
    for folder in (tmp_path, Path.home(), ROOT):
        assert f"{folder}/" not in response.text


def test_the_errors_of_dead_runners_stay_short() -> None:
    error = RunnerCrashedError("x", last_lines=tuple("y" * 2000 for _ in range(20)))
    assert len(json.dumps(answer(error).body)) < 1000


async def test_a_refusal_says_how_to_sign_in(make_bench: Callable[..., Bench]) -> None:
    async with asking(make_bench(environment={"RSLLM_API_KEY": "ключ"})) as client:
        response = await client.get("/api/tags", headers={"authorization": "Bearer wrong"})
        assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
        right = {"authorization": "Bearer ключ".encode()}
        assert (await client.get("/api/tags", headers=right)).status_code == 200  # type: ignore[arg-type]
