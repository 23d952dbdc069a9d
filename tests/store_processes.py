"""Eight processes that pull, create, copy, delete, read and prune the same names of one store, and what they leave.

``python -m tests.store_processes --seconds 60`` prints what they did and what `rsllm doctor --store` finds afterwards;
`--kill` also kills them at random moments with a signal that nobody can catch, and starts new ones in their place. The
exit code is 1 if the store is not sound, or if a process saw what it must never see: an error other than a name that
is not there, or a model that is there with a part missing.

They pull from Debian's `docker-registry`, where the machine has it; the figures say so where it does not.

The blobs are few and small, and pruning spares nothing for its age, so the processes are in each other's way all the
time: nearly every blob that one adds another one is about to delete.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rsllm.errors import ModelError, ModelNotFoundError
from rsllm.registry.push import push
from rsllm.store.check import examine
from rsllm.store.digest import Digest
from rsllm.store.manifest import Layer, Manifest, MediaType
from rsllm.store.name import ModelName
from rsllm.store.store import Store
from tests.support.registry import docker_registry, pulled, quick

PROCESSES = 8
NAMES = [ModelName.parse(name) for name in ("a", "A", "b:1", "b:2", "me/c", "hf.co/o/r:Q4")]
REMOTE = ("me/p:1", "me/p:2", "other/q:latest")
CONTENTS = [bytes([65 + number]) * (1 + 40_000 * number) for number in range(6)]
ROOT = Path(__file__).parents[1]


class Worker:
    """One process's share of the work."""

    def __init__(self, store: Store, seed: int, registry: str | None = None) -> None:
        self.store = store
        self.random = random.Random(seed)
        self.remote = [f"{registry}/{name}" for name in REMOTE] if registry else []
        self.names = [*NAMES, *map(ModelName.parse, self.remote)]
        self.settings = quick(store.root.parent, part_min_bytes=32 * 1024, stall_seconds=10.0)
        self.done: Counter[str] = Counter()

    def run(self, seconds: float) -> Counter[str]:
        works = [self.create, self.create, self.copy, self.delete, self.read, self.add, self.prune, self.list]
        works += [self.pull] * 4 if self.remote else []
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
        return self.random.choice(self.names)

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

    def pull(self) -> None:
        asyncio.run(pulled(self.store, self.random.choice(self.remote), self.settings))

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
    pulls: bool = False
    faults: list[str] = field(default_factory=list)


@contextlib.contextmanager
def filled_registry(folder: Path) -> Iterator[str | None]:
    """The address of a registry with the models `REMOTE`, made of the same blobs; `None` where the machine has none."""
    with contextlib.ExitStack() as stack:
        try:
            host = stack.enter_context(docker_registry(folder / "registry"))
        except FileNotFoundError:
            yield None
            return
        store = Store(folder / "pushed")
        for number, name in enumerate(REMOTE):
            layers = []
            for content in CONTENTS[number : number + 3]:
                digest, size = store.add_blob([content])
                layers.append(Layer(MediaType.MODEL, digest, size))
            config, size = store.add_blob([b"{}"])
            manifest = Manifest.build(Layer(MediaType.CONFIG, config, size), layers)
            store.write_manifest(ModelName.parse(f"{host}/{name}"), manifest.raw)
            asyncio.run(pushed(store, ModelName.parse(f"{host}/{name}"), folder))
        yield host


async def pushed(store: Store, name: ModelName, folder: Path) -> None:
    """Send a model to its registry."""
    async for _ in push(store, name, insecure=True, settings=quick(folder)):
        pass


def start(root: Path, seed: int, seconds: float, registry: str | None) -> subprocess.Popen[str]:
    """A process that works until its time is up, and then prints what it did."""
    command = [sys.executable, "-m", "tests.store_processes", "--worker", str(root), str(seed), str(seconds)]
    command.append(registry or "")
    return subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run(folder: Path, *, seconds: float, kill: bool, seed: int) -> Outcome:
    """Let the processes at a new store `models` in `folder`, and look at what is left."""
    with filled_registry(folder) as registry:
        return run_with(folder / "models", registry, seconds=seconds, kill=kill, seed=seed)


def run_with(root: Path, registry: str | None, *, seconds: float, kill: bool, seed: int) -> Outcome:
    """The same, with this registry."""
    outcome = Outcome(pulls=registry is not None)
    chance = random.Random(seed)
    end = time.monotonic() + seconds
    seeds = iter(range(seed, sys.maxsize))
    running = [start(root, next(seeds), seconds, registry) for _ in range(PROCESSES)]
    while kill and (left := end - time.monotonic()) > 1:
        time.sleep(min(left, chance.uniform(0.0, 0.4)))
        index = chance.randrange(PROCESSES)
        running[index].kill()
        gather(running[index], outcome)
        running[index] = start(root, next(seeds), max(end - time.monotonic(), 0.5), registry)
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
    parser.add_argument("--worker", nargs=4, metavar=("ROOT", "SEED", "SECONDS", "REGISTRY"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        root, seed, seconds, registry = arguments.worker
        print(json.dumps(Worker(Store(Path(root)), int(seed), registry or None).run(float(seconds))))
        return 0
    with tempfile.TemporaryDirectory(prefix="rsllm-store-") as folder:
        outcome = run(Path(folder), seconds=arguments.seconds, kill=arguments.kill, seed=arguments.seed)
        report = examine(Store(Path(folder) / "models"))
    pulls = "pulls from docker-registry" if outcome.pulls else "no docker-registry, so no pulls"
    print(f"{PROCESSES} processes, {arguments.seconds:g} s, seed {arguments.seed}, {outcome.killed} killed, {pulls}")
    print("  " + ", ".join(f"{name} {count:,}" for name, count in sorted(outcome.done.items())))
    print(f"  left: {report.manifests} models, {report.blobs} blobs, {report.bytes:,} bytes hashed")
    for fault in outcome.faults:
        print(f"FAULT: {fault}")
    print("sound" if not outcome.faults else f"{len(outcome.faults)} faults")
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    sys.exit(main())
