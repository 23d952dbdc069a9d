"""Pulls that are killed at random bytes, and what becomes of them: `python -m tests.registry_kills --rounds 50`.

A round begins with an empty store. A child process pulls, and dies by SIGKILL in the middle of the write that brings
a random byte, once to three times; then one more child pulls to the end. The round holds if every child after the
first goes on from what was there and the store is whole in the end, each digest computed anew. The registry is
Debian's `docker-registry` on loopback.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rsllm.registry.disk import Disk
from rsllm.registry.parts import Part
from rsllm.registry.push import push
from rsllm.store.digest import Digest
from rsllm.store.manifest import Manifest, MediaType
from rsllm.store.name import ModelName
from rsllm.store.store import Store
from tests.support.registry import add_model, docker_registry, noise, pulled, quick

WEIGHT_BYTES = 12_000_000
_CHILD_SECONDS = 60


@dataclass(frozen=True)
class Round:
    """`kills` are the bytes at which children died; `kept` what the following child found of them."""

    kills: list[int]
    kept: list[int]
    fetched: int


def run_rounds(rounds: int, folder: Path, *, seed: int = 1) -> list[Round]:
    """Raises `AssertionError` for the first round that does not hold."""
    random_numbers = random.Random(seed)
    with docker_registry(folder / "registry") as host:
        name = ModelName.parse(f"http://{host}/library/killed")
        origin = Store(folder / "origin")
        layers = {MediaType.MODEL: noise(WEIGHT_BYTES), MediaType.SYSTEM: b"be brief"}
        manifest = add_model(origin, name, layers)
        asyncio.run(_push(origin, name, folder))
        return [_round(folder / f"store-{number}", name, manifest, random_numbers, folder) for number in range(rounds)]


async def _push(store: Store, name: ModelName, folder: Path) -> None:
    async for _ in push(store, name, insecure=True, settings=quick(folder)):
        pass


def _round(root: Path, name: ModelName, manifest: Manifest, numbers: random.Random, folder: Path) -> Round:
    kills: list[int] = []
    kept: list[int] = []
    left = WEIGHT_BYTES
    for _ in range(numbers.randint(1, 3)):
        after = numbers.randrange(1, left)
        report = _child(root, name, folder, after)
        assert report is None, f"a child was to die after {after} bytes and did not"
        kills.append(after)
        before = left
        left = WEIGHT_BYTES - _kept(root, manifest)
        assert left <= before, "bytes that were there are no more"
        kept.append(WEIGHT_BYTES - left)
        if left < 2:
            break
    report = _child(root, name, folder, None)
    assert report is not None, "the last pull did not end well"
    assert report["resumed"] == kept[-1], f"{kept[-1]} bytes were there, and {report['resumed']} were used"
    store = Store(root)
    assert store.find(name).manifest.raw == manifest.raw
    for layer in manifest.all_layers:
        assert Digest.of(store.blob_path(layer.digest).read_bytes()) == layer.digest
    assert {path.name for path in store.layout.blobs.iterdir()} == {digest.file_name for digest in manifest.digests}
    return Round(kills, kept, WEIGHT_BYTES - report["resumed"])


def _kept(root: Path, manifest: Manifest) -> int:
    """The bytes that the part files speak of."""
    blob = Store(root).blob_path(manifest.layers[0].digest)
    records = blob.parent.glob(f"{blob.name}-partial-*")
    return sum(json.loads(path.read_text())["Completed"] for path in records)


def _child(root: Path, name: ModelName, folder: Path, die_after: int | None) -> dict[str, int] | None:
    """What a pull in a process of its own reports; `None` if it died by SIGKILL."""
    command = [sys.executable, "-m", "tests.registry_kills", "--child", str(root), "--name", f"http://{name.full}"]
    command += ["--folder", str(folder)] + (["--die-after", str(die_after)] if die_after is not None else [])
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_CHILD_SECONDS, cwd=Path(__file__).parents[1]
    )
    if done.returncode == -signal.SIGKILL:
        return None
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
    report: dict[str, int] = json.loads(done.stdout)
    return report


def _pull_as_child(root: Path, name: str, folder: Path, die_after: int | None) -> None:
    if die_after is not None:
        _die_after(die_after)
    resumed = []
    for step in asyncio.run(pulled(Store(root), name, quick(folder, parallel=8, stall_seconds=30.0))):
        if step.total == WEIGHT_BYTES and step.completed:
            resumed.append(step.completed)
    fetched = sum(_written)
    print(json.dumps({"resumed": WEIGHT_BYTES - fetched, "steps": len(resumed)}))


_written: list[int] = []
_write = Disk._write


def _count(self: Disk, part: Part, data: bytes | bytearray) -> None:
    _write(self, part, data)
    if self._files.data.stat().st_size == WEIGHT_BYTES:
        _written.append(len(data))


def _die_after(count: int) -> None:
    """End this process, unasked and at once, in the middle of the write that brings byte `count` of the weights."""
    left = count

    def write(self: Disk, part: Part, data: bytes | bytearray) -> None:
        nonlocal left
        if self._files.data.stat().st_size == WEIGHT_BYTES:
            if len(data) >= left:
                self._file.seek(part.position)
                self._file.write(data[:left])
                os.kill(os.getpid(), signal.SIGKILL)
            left -= len(data)
        _write(self, part, data)

    Disk._write = write  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--die-after", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        Disk._write = _count  # type: ignore[method-assign]
        return _pull_as_child(options.child, options.name, options.folder, options.die_after)
    with tempfile.TemporaryDirectory() as folder:
        done = run_rounds(options.rounds, Path(folder), seed=options.seed)
    kills = sum(len(round.kills) for round in done)
    share = sum(round.kept[-1] for round in done) / (len(done) * WEIGHT_BYTES)
    print(f"{len(done)} pulls of {WEIGHT_BYTES:,} bytes, killed {kills} times: all resumed and verified")
    print(f"at the last kill {share:.0%} was there on average, and none of it was fetched again")


if __name__ == "__main__":
    main()
