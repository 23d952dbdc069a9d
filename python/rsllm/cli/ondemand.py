"""The server that a command needs: the one that answers, or one that is started now.

RSLLM_SERVER says what becomes of a server that a command has started: `auto`, the default, lets it run until nothing
has been loaded or asked for RSLLM_SERVER_IDLE (10 minutes), `keep` for ever, and `never` starts none. It is a process
of its own, with its log in the state folder (`server.log`, of limited size), and outlives the command and its terminal.
Only at an address of this machine is one started.
"""

from __future__ import annotations

import math
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rsllm.address import Address
from rsllm.config import config
from rsllm.errors import ServerUnreachableError

if TYPE_CHECKING:
    import subprocess

    from rsllm.client import Client

__all__ = ["connect", "log_path", "start_server"]

START_SECONDS = 30.0
_POLL_SECONDS = 0.01
_CONNECT_SECONDS = 1.0
_TAIL_BYTES = 4000


def connect(*, start: bool = True, runs_model: bool = False) -> Client:
    """A client of the server of OLLAMA_HOST, which is started where none answers.

    With `runs_model` a server that is started here starts the process for a model at once as well.
    """
    address = Address.parse(config().host).for_client
    may_start = start and address.is_loopback and address.scheme == "http" and config().server != "never"
    starting = None
    if may_start and not _listens(address):
        # The client's HTTP library is imported while the server starts.
        starting = Starting(address, runs_model=runs_model)
    from rsllm.client import Client

    client = Client(address, start=(lambda: start_server(address)) if may_start else None)
    if starting is not None:
        starting.wait()
    return client


def log_path() -> Path:
    """Where a server that a command starts writes its log."""
    return config().state_dir / "server.log"


def start_server(address: Address) -> None:
    """Start a server and wait until it listens. Raises `ServerUnreachableError`."""
    Starting(address).wait()


class Starting:
    """A server that starts; of several commands at once only one starts it, and the others wait for that."""

    def __init__(self, address: Address, *, runs_model: bool = False) -> None:
        from rsllm.system import FileLock

        self._address = address
        self._log = log_path()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = FileLock(config().state_dir / "server.lock")
        self._lock.acquire()
        try:
            if not _listens(address):
                self._log.parent.mkdir(parents=True, exist_ok=True)
                self._before = self._log.stat().st_size if self._log.exists() else 0
                self._process = _spawn(address, self._log, runs_model)
        except BaseException:
            self._lock.release()
            raise

    def wait(self) -> None:
        """Until it listens. Raises `ServerUnreachableError` with the end of its log where it does not come up."""
        try:
            if self._process is not None:
                self._await(self._process)
        finally:
            self._lock.release()

    def _await(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not _listens(self._address):
            code = process.poll()
            if code is not None or time.monotonic() > deadline:
                reason = f"it ended with status {code}" if code is not None else f"not within {START_SECONDS:g} s"
                raise ServerUnreachableError(
                    f"a server was started for this command, but did not come up: {reason}"
                    f"{_tail(self._log, self._before)}",
                    hint=f"its log is {self._log}",
                )
            time.sleep(_POLL_SECONDS)
        # It is to live on: its end is nobody's business here.
        process.returncode = 0


def _spawn(address: Address, log: Path, runs_model: bool) -> subprocess.Popen[bytes]:
    import json
    import os
    import subprocess

    settings = config()
    asked: dict[str, Any] = {"log_file": str(log), "warm": runs_model}
    if settings.server == "auto" and math.isfinite(settings.server_idle_seconds):
        asked["idle_seconds"] = settings.server_idle_seconds
    host = f"[{address.host}]" if ":" in address.host else address.host
    with log.open("ab") as output:
        return subprocess.Popen(
            # Not from the working folder (-P): what lies there is not ours.
            [sys.executable, "-P", "-m", "rsllm.server", json.dumps(asked)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "OLLAMA_HOST": f"{host}:{address.port}"},
            cwd=Path.home() if Path.home().is_dir() else None,
            start_new_session=True,
        )


def _listens(address: Address) -> bool:
    try:
        socket.create_connection((address.host, address.port), timeout=_CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def _tail(log: Path, start: int) -> str:
    """The last line that was written since."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(start, size - _TAIL_BYTES) if size >= start else 0)
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return f" ({lines[-1].strip()})" if lines else ""
