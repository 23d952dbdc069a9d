"""The engines that are compared: their environments, and a worker process of each.

`build_peers.sh` makes the environments, under `RSLLM_PEERS` or `.cache/peers`. A worker that is not being measured is
stopped by a signal, so that its idle threads cannot spin into another engine's figures.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PEERS = Path(os.environ.get("RSLLM_PEERS") or ROOT / ".cache" / "peers")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class EngineSpec:
    """Name, worker script, environment folder under the peers' (none: this interpreter), and what it is.

    `isa` limits rsllm to an instruction set; it is then compared with `counterpart` alone, a peer limited likewise.
    """

    name: str
    worker: str
    folder: str | None
    about: str
    isa: str | None = None
    counterpart: str | None = None

    @property
    def python(self) -> Path:
        """The interpreter that has the engine."""
        return PEERS / self.folder / "bin" / "python" if self.folder else Path(sys.executable)


ENGINES = {
    spec.name: spec
    for spec in (
        EngineSpec("rsllm", "rsllm_worker", None, "this project, from this environment"),
        EngineSpec("rsllm-no-amx", "rsllm_worker", None, "the same without AMX", "avx512", "llama-no-amx"),
        EngineSpec("rsllm-avx2", "rsllm_worker", None, "the same with AVX2 at most", "avx2", "llama-avx2"),
        EngineSpec("llama-native", "llama_cpp_worker", "llama-native", "llama.cpp built for this machine by clang"),
        EngineSpec("llama-no-amx", "llama_cpp_worker", "llama-no-amx", "llama-native without AMX"),
        EngineSpec("llama-avx2", "llama_cpp_worker", "llama-avx2", "llama.cpp with GGML_NATIVE=OFF"),
        EngineSpec("xllamacpp", "xllamacpp_worker", "xllamacpp", "llama.cpp as shipped in a wheel"),
        EngineSpec("mistralrs", "mistralrs_worker", "mistralrs", "mistral.rs as shipped in a wheel"),
    )
}


class EngineError(RuntimeError):
    """A worker refused a request, died, or took too long."""


@dataclass
class Measurement:
    """A worker's answer, how many cores other processes used meanwhile, and how long the whole call took."""

    answer: dict[str, Any]
    foreign_cores: float = field(default=0.0)
    wall_seconds: float = field(default=0.0)


class Worker:
    """One process with one loaded model. Stopped except during a call."""

    def __init__(
        self, spec: EngineSpec, model: Path, threads: int, context: int, timeout_seconds: float, **load: Any
    ) -> None:
        """Starts and loads; `load` has arguments that the engine's own `load` takes besides."""
        self.spec = spec
        self.timeout_seconds = timeout_seconds
        self._log = tempfile.TemporaryFile()
        # mistral.rs takes its thread count from the environment alone.
        environment = os.environ | {"RAYON_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
        if spec.isa:
            environment["RSLLM_ISA"] = spec.isa
        self._child = subprocess.Popen(
            [str(spec.python), str(Path(__file__).parent / "workers" / f"{spec.worker}.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            text=True,
        )
        try:
            self.loaded = self.call("load", model=str(model), threads=threads, context=context, **load).answer
        except EngineError:
            self.close()
            raise

    def call(self, call: str, **arguments: Any) -> Measurement:
        """One request. Raises `EngineError`."""
        assert self._child.stdin is not None and self._child.stdout is not None, "both pipes were asked for"
        self._signal(signal.SIGCONT)
        before = self._times()
        try:
            self._child.stdin.write(json.dumps({"call": call, **arguments}) + "\n")
            self._child.stdin.flush()
            ready, _, _ = select.select([self._child.stdout], [], [], self.timeout_seconds)
            line = self._child.stdout.readline() if ready else None
        except BrokenPipeError:
            line = ""
        if line is None:
            self._child.kill()
            raise EngineError(f"{self.spec.name}: `{call}` took more than {self.timeout_seconds:.0f} s")
        if not line:
            raise EngineError(f"{self.spec.name} ended with status {self._child.wait()} in `{call}`: {self._tail()}")
        reply = json.loads(line)
        wall, foreign = self._foreign_cores(before)
        self._signal(signal.SIGSTOP)
        if "error" in reply:
            raise EngineError(f"{self.spec.name}: {reply['error']}")
        return Measurement(reply["ok"], foreign, wall)

    def close(self) -> None:
        """Ends the process."""
        if self._child.poll() is None:
            self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()
        self._log.close()

    def _signal(self, number: int) -> None:
        if self._child.poll() is None:
            self._child.send_signal(number)

    def _tail(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-1500:]

    def _times(self) -> tuple[float, float, float]:
        """Wall-clock seconds, processor seconds of the whole machine, and those of the worker."""
        with open("/proc/stat") as stat:
            fields = [int(n) for n in stat.readline().split()[1:9]]
        busy = sum(fields) - fields[3] - fields[4]  # all but idle and waiting for disks
        own = 0
        try:
            with open(f"/proc/{self._child.pid}/stat") as stat:
                words = stat.read().rpartition(")")[2].split()
            own = int(words[11]) + int(words[12])
        except OSError:
            pass
        return os.times().elapsed, busy / TICKS_PER_SECOND, own / TICKS_PER_SECOND

    def _foreign_cores(self, before: tuple[float, float, float]) -> tuple[float, float]:
        """Seconds since `before`, and how many cores others have used in them."""
        wall, busy, own = (after - earlier for after, earlier in zip(self._times(), before, strict=True))
        return wall, max(0.0, busy - own) / max(wall, 0.05)
