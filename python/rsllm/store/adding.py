"""What is being added now.

A model becomes visible with its manifest, after its blobs; until then nothing refers to them. So whoever adds one holds
the blobs it counts on: their digests stand in a file of its own, which it keeps locked, and whoever deletes leaves them
alone. When the process dies the lock is free, the file counts no more, and the next one to look removes it.

This way `rsllm rm` need not wait for a pull that takes hours, and the pull need not fear that a blob which was there
at its start is gone at its end.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from rsllm.store.digest import Digest
from rsllm.store.files import explained
from rsllm.system import FileLock

if TYPE_CHECKING:
    from rsllm.store.manifest import Manifest
    from rsllm.store.name import ModelName
    from rsllm.store.store import Store

__all__ = ["Adding", "held_digests"]


class Adding:
    """A model on its way into the store: `with store.adding() as adding`. One thread at a time."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._lock = FileLock(folder / secrets.token_hex(8))
        self._held: set[Digest] = set()

    def __enter__(self) -> Adding:
        with explained(self._lock.path, "add to the store"):
            self._lock.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release(remove=True)

    def hold(self, digests: Iterable[Digest]) -> None:
        """From here on nobody who knows of locks deletes these blobs, whether they are there yet or not."""
        new = [digest for digest in digests if digest not in self._held]
        if not new:
            return
        # Under the lock, so that nobody is just about to delete one of them.
        with self._store.lock(), explained(self._lock.path, "add to the store"):
            with self._lock.path.open("ab") as file:
                file.write(b"".join(f"{digest}\n".encode() for digest in new))
        self._held.update(new)

    def has_blob(self, digest: Digest, size: int | None = None) -> bool:
        """Whether the blob is there, with this size; if so, it stays."""
        self.hold([digest])
        return self._store.has_blob(digest, size)

    def add_blob(
        self,
        source: Iterable[bytes] | Path,
        expected: Digest | None = None,
        *,
        progress: Callable[[int], None] | None = None,
    ) -> tuple[Digest, int]:
        """`Store.add_blob`, of a blob that stays."""
        if expected is not None:
            self.hold([expected])
        return self._store.add_blob(source, expected, progress=progress, placing=lambda digest: self.hold([digest]))

    def write_manifest(self, name: ModelName, raw: bytes) -> Manifest | None:
        """`Store.write_manifest`: the model is there; the manifest that was there before, if any."""
        return self._store.write_manifest(name, raw)


def held_digests(folder: Path) -> set[Digest]:
    """The digests that somebody is adding. Only for holders of the store's lock: what the dead left is removed."""
    held: set[Digest] = set()
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return held
    for name in names:
        path = folder / name
        lock = FileLock(path)
        if lock.acquire(wait=False):
            lock.release(remove=True)
            continue
        with contextlib.suppress(FileNotFoundError):
            lines = path.read_text().split("\n")
            # A line counts once it is complete; its writer holds the store's lock until it is.
            held.update(Digest.parse(line) for line in lines[:-1])
    return held
