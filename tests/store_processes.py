"""Eight processes that create, copy, delete, read and prune the same names of one store, and what is left after them.

``python -m tests.store_processes --seconds 60`` prints what they did and what `rsllm doctor --store` finds afterwards;
`--kill` also kills them at random moments with a signal that nobody can catch, and starts new ones in their place. The
exit code is 1 if the store is not sound, or if a process saw what it must never see: an error other than a name that
is not there, or a model that is there with a part missing.

The blobs are few and small, and pruning spares nothing for its age, so the processes are in each other's way all the
time: nearly every blob that one adds another one is about to delete.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from rsllm.errors import ModelError, ModelNotFoundError
from rsllm.store.check import examine
from rsllm.store.digest import Digest
from rsllm.store.manifest import Layer, Manifest, MediaType
from rsllm.store.name import ModelName
from rsllm.store.store import Store

PROCESSES = 8
NAMES = [ModelName.parse(name) for name in ("a", "A", "b:1", "b:2", "me/c", "hf.co/o/r:Q4")]
CONTENTS = [bytes([65 + number]) * (1 + 40_000 * number) for number in range(6)]
ROOT = Path(__file__).parents[1]


class Worker:
    """One process's share of the work."""

    def __init__(self, store: Store, seed: int) -> None:
        self.store = store
        self.random = random.Random(seed)
        self.done: Counter[str] = Counter()

    def run(self, seconds: float) -> Counter[str]:
        works = [self.create, self.create, self.copy, self.delete, self.read, self.add, self.prune, self.list]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            work = self.random.choice(works)
            try:
                work()
            except ModelNotFoundError:
                self.done["not found"] += 1
            else:
                self.done[work.__name__] += 1
        return self.done

    def name(self) -> ModelName:
        return self.random.choice(NAMES)

    def create(self) -> None:
        name = self.name()
        with self.store.adding() as adding:
            layers = []
            for content in self.random.sample(CONTENTS, self.random.randint(1, 3)):
                digest = Digest.of(content)
                if not adding.has_blob(digest, len(content)):
                    half = len(content) // 2
                    adding.add_blob([content[:half], content[half:]], digest if self.random.random() < 0.5 else None)
                    self.done["blobs written"] += 1
                layers.append(Layer(MediaType.MODEL, digest, len(content)))
            before = adding.write_manifest(name, Manifest.build(None, layers).raw)
        if before is not None and self.random.random() < 0.5:
            self.store.remove_unused(before.digests)

    def copy(self) -> None:
        self.store.copy(self.name(), self.name())

    def delete(self) -> None:
        self.store.delete(self.name())

    def add(self) -> None:
        self.store.add_blob([self.random.choice(CONTENTS)])

    def prune(self) -> None:
        pruned = self.store.prune(dry_run=self.random.random() < 0.3, older_than_seconds=0)
        assert pruned.skipped is None, pruned.skipped

    def list(self) -> None:
        for entry in self.store.names():
            assert entry.error is None, entry.error

    def read(self) -> None:
        name = self.name()
        model = self.store.find(name)
        for layer in model.weight_layers:
            try:
                content = model.path(layer).read_bytes()
            except (FileNotFoundError, ModelError):
                assert not self.is_still(name, model.digest), f"{name} is there and lacks {layer.digest}"
                return
            assert Digest.of(content) == layer.digest

    def is_still(self, name: ModelName, digest: Digest) -> bool:
        """Whether the model is what it was: a reader holds no lock, so it may have been removed meanwhile."""
        try:
            return self.store.find(name).digest == digest and not all(
                self.store.has_blob(layer.digest, layer.size) for layer in self.store.find(name).weight_layers
            )
        except ModelNotFoundError:
            return False


@dataclass
class Outcome:
    """What the processes did, and what they left."""

    done: Counter[str] = field(default_factory=Counter)
    killed: int = 0
    faults: list[str] = field(default_factory=list)


def start(root: Path, seed: int, seconds: float) -> subprocess.Popen[str]:
    """A process that works until its time is up, and then prints what it did."""
    command = [sys.executable, "-m", "tests.store_processes", "--worker", str(root), str(seed), str(seconds)]
    return subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run(root: Path, *, seconds: float, kill: bool, seed: int, processes: int = PROCESSES) -> Outcome:
    """Let the processes at the store, and look at what is left. The store may already have models in it."""
    outcome = Outcome()
    chance = random.Random(seed)
    end = time.monotonic() + seconds
    seeds = iter(range(seed, sys.maxsize))
    running = [start(root, next(seeds), seconds) for _ in range(processes)]
    while kill and (left := end - time.monotonic()) > 1:
        time.sleep(min(left, chance.uniform(0.0, 0.4)))
        index = chance.randrange(processes)
        running[index].kill()
        gather(running[index], outcome)
        running[index] = start(root, next(seeds), max(end - time.monotonic(), 0.5))
    for process in running:
        gather(process, outcome)
    inspect(Store(root), outcome)
    return outcome


def gather(process: subprocess.Popen[str], outcome: Outcome) -> None:
    """Wait for a process, and add up what it did."""
    out, error = process.communicate(timeout=120)
    if process.returncode == -signal.SIGKILL:
        outcome.killed += 1
    elif process.returncode != 0:
        outcome.faults.append(error.strip())
    else:
        outcome.done.update(json.loads(out))


def inspect(store: Store, outcome: Outcome) -> None:
    """A store that everybody has left: sound, and after pruning with nothing in it that no model needs."""
    outcome.faults += map(str, examine(store).findings)
    pruned = store.prune(dry_run=False, older_than_seconds=0)
    if pruned.skipped is not None:
        outcome.faults.append(pruned.skipped)
    needed = {
        layer.digest.file_name for entry in store.names() if entry.manifest for layer in entry.manifest.all_layers
    }
    there = {path.name for path in store.layout.blobs.iterdir()}
    if there != needed:
        outcome.faults.append(
            f"after pruning {sorted(there - needed)} are too many and {sorted(needed - there)} missing"
        )
    outcome.faults += [f"left behind: {path}" for path in store.layout.manifests.glob(".*")]
    outcome.faults += [f"left behind: {path}" for path in store.layout.adding.iterdir()]
    outcome.faults += map(str, examine(store).findings)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--kill", action="store_true", help="kill processes at random moments")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worker", nargs=3, metavar=("ROOT", "SEED", "SECONDS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        root, seed, seconds = arguments.worker
        print(json.dumps(Worker(Store(Path(root)), int(seed)).run(float(seconds))))
        return 0
    with tempfile.TemporaryDirectory(prefix="rsllm-store-") as folder:
        root = Path(folder) / "models"
        outcome = run(root, seconds=arguments.seconds, kill=arguments.kill, seed=arguments.seed)
        report = examine(Store(root))
    print(f"{PROCESSES} processes, {arguments.seconds:g} s, seed {arguments.seed}, {outcome.killed} killed")
    print("  " + ", ".join(f"{name} {count:,}" for name, count in sorted(outcome.done.items())))
    print(f"  left: {report.manifests} models, {report.blobs} blobs, {report.bytes:,} bytes hashed")
    for fault in outcome.faults:
        print(f"FAULT: {fault}")
    print("sound" if not outcome.faults else f"{len(outcome.faults)} faults")
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    sys.exit(main())
