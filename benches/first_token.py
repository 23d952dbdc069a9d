"""How long a person waits: from starting a command to its first character, warm page cache.

    python -m benches.first_token                     rsllm run demo hi: a model in the command's own process
    python -m benches.first_token --server            rsllm run NAME hi: cold (the server is started too) and warm
    python -m benches.first_token --server --file model.gguf
    python -m benches.first_token --repetitions 9 -- rsllm run model.gguf "Why is the sky blue?"

The command is started without a terminal, as in a pipe, and is ended after its first character. One run before the
measured ones fetches the model where needed and warms the page cache. With `--server` the model (the demo's file, or
`--file`) is put into a store of the bench's own, and servers listen on a port of their own; what is wanted is a first
character within 0.5 s from a warm server, and within 2 s where no server runs yet.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median

DEFAULT = ("rsllm", "run", "demo", "hi")
NAME = "first-token"
WARM_SECONDS = 0.5
COLD_SECONDS = 2.0
IDLE = "500ms"


def main() -> int:
    """Prints each time, the median and the range."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.first_token", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--server", action="store_true", help="measure a name of the store, with and without a server")
    parser.add_argument("--file", type=Path, help="with --server: the model (default: the demo's)")
    parser.add_argument("command", nargs="*", default=list(DEFAULT))
    arguments = parser.parse_args()
    if arguments.server:
        return measure_server(arguments.file, arguments.repetitions)
    command = list(arguments.command)
    command[0] = program(command[0])
    first_character(command)
    report("first token", [first_character(command) for _ in range(arguments.repetitions)])
    return 0


def measure_server(file: Path | None, repetitions: int) -> int:
    """Cold and warm; the exit code says whether both are what is wanted."""
    from rsllm.refs import resolve

    weights = file or resolve("demo")
    with tempfile.TemporaryDirectory() as folder:
        environment = place(Path(folder), weights)
        command = [program("rsllm"), "run", NAME, "hi"]
        first_character(command, environment)
        cold = []
        for _ in range(repetitions):
            wait_until_gone(environment)
            cold.append(first_character(command, environment))
        # From here on the server stays: the model is loaded with the first one.
        environment = {**environment, "RSLLM_SERVER_IDLE": "60s"}
        wait_until_gone(environment)
        subprocess.run([*command[:-1], ""], env=environment, stdin=subprocess.DEVNULL, check=True)
        first_character(command, environment)
        warm = [first_character(command, environment) for _ in range(repetitions)]
        subprocess.run([command[0], "stop", NAME], env=environment, stdin=subprocess.DEVNULL, check=True)
        report(f"cold server (wanted: {COLD_SECONDS:g} s)", cold)
        report(f"warm server (wanted: {WARM_SECONDS:g} s)", warm)
    return 0 if median(cold) <= COLD_SECONDS and median(warm) <= WARM_SECONDS else 1


def place(folder: Path, weights: Path) -> dict[str, str]:
    """A store with the model, and an environment whose servers end when idle."""
    from rsllm.store.manifest import Layer, Manifest, MediaType
    from rsllm.store.name import ModelName
    from rsllm.store.store import Store

    store = Store(folder / "models")
    layer = Layer(MediaType.MODEL, *store.add_blob(weights))
    config = Layer(MediaType.CONFIG, *store.add_blob([b'{"model_format":"gguf"}']))
    store.write_manifest(ModelName.parse(NAME), Manifest.build(config, [layer]).raw)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    return {
        **os.environ,
        "OLLAMA_MODELS": str(folder / "models"),
        "OLLAMA_HOST": f"127.0.0.1:{port}",
        "OLLAMA_KEEP_ALIVE": "60s",
        "RSLLM_STATE": str(folder / "state"),
        "RSLLM_SERVER": "auto",
        "RSLLM_SERVER_IDLE": IDLE,
    }


def wait_until_gone(environment: Mapping[str, str]) -> None:
    """Unload the model, and wait for the server to end by itself."""
    subprocess.run([program("rsllm"), "stop", NAME], env=environment, stdin=subprocess.DEVNULL, capture_output=True)
    host, _, port = environment["OLLAMA_HOST"].partition(":")
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            return
        time.sleep(0.05)


def program(name: str) -> str:
    """The program beside this interpreter, or else on the path."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name) or name


def report(what: str, times: list[float]) -> None:
    """All times, and the one that counts."""
    print(" ".join(f"{seconds:.3f}" for seconds in times), "s")
    print(f"{what}: {median(times):.3f} s (median of {len(times)}; {min(times):.3f} to {max(times):.3f})")


def first_character(command: list[str], environment: Mapping[str, str] | None = None) -> float:
    """Seconds from starting the process until it has written something."""
    start = time.perf_counter()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, bufsize=0, env=environment
    ) as child:
        assert child.stdout is not None, "it was asked for"
        first = os.read(child.stdout.fileno(), 1)
        seconds = time.perf_counter() - start
        child.kill()
    if not first:
        raise SystemExit(f"{' '.join(command)} wrote nothing and ended with status {child.returncode}")
    return seconds


if __name__ == "__main__":
    raise SystemExit(main())
