"""A server in a process of its own whose runners run no model.

    python -m tests.support.fake_server --folder FOLDER [--models '{"tiny": {"pieces": 4}}']

The store lies in the folder. It has the models of the argument, each with the behaviour of its fake runner; the
environment is read as by `rsllm serve`. Nothing is pulled or pushed over a network: both report success. The first line
on standard output is the port.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rsllm.server.main import Server, server_settings
from rsllm.store.progress import Progress
from tests.server.conftest import Bench

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Serve until a signal comes."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.fake_server", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--models", type=json.loads, default={"tiny": {}})
    parser.add_argument("--parallel", type=int)
    arguments = parser.parse_args()
    bench = Bench(arguments.folder, parallel=arguments.parallel, environment=dict(os.environ))
    for name, behaviour in arguments.models.items():
        bench.add(name, behaviour)
    bench.services.pull = bench.services.push = _transfer
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", arguments.port))
        port = listener.getsockname()[1]
        server = Server(server_settings(bench.app, "127.0.0.1", port), bench.services)
        listener.listen(1024)  # who connects now waits until the server is there
        print(port, flush=True)
        server.run([listener])


async def _transfer(store: Any, name: Any, *, insecure: bool, typed: bool) -> AsyncIterator[Progress]:
    yield Progress("success")


@contextmanager
def fake_server(
    folder: Path,
    models: Mapping[str, Any],
    *,
    parallel: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start one, and end it at the end of the block: its process, and its port."""
    command = [
        sys.executable,
        "-m",
        "tests.support.fake_server",
        "--folder",
        str(folder),
        "--models",
        json.dumps(models),
    ]
    if parallel is not None:
        command += ["--parallel", str(parallel)]
    with (
        (folder / "server.log").open("w") as log,
        subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **(environment or {})},
        ) as process,
    ):
        assert process.stdout is not None, "asked for"
        line = process.stdout.readline()
        if not line.strip().isdigit():
            raise RuntimeError(f"no server: {(folder / 'server.log').read_text()}")
        try:
            yield process, int(line)
        finally:
            process.terminate()
            process.wait(30)


if __name__ == "__main__":
    main()
