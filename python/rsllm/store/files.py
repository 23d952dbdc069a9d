"""Files that are there whole or not at all: written beside their place, synced, renamed.

Also here: what the system's errors mean for a store, room on the disk, and staying out of the way of others.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from rsllm.errors import ReadOnlyStoreError, StoreError, StoreFullError
from rsllm.pages import LARGE_PAGE
from rsllm.system import FileLock, lower_io_priority, sync_folder

__all__ = ["NewFile", "explained", "lower_io_priority", "read_limited", "require_space", "write_file"]

_FULL = {
    errno.ENOSPC: "no space is left on the disk",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would be larger than this process or file system allows",
}
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


@contextlib.contextmanager
def explained(path: Path, doing: str) -> Iterator[None]:
    """Turn what the system refuses into a `StoreError` that names the path; `doing` completes "cannot …"."""
    try:
        yield
    except OSError as error:
        name = str(error.filename or path)
        if error.errno in _FULL:
            raise StoreFullError(
                f"cannot {doing}: {_FULL[error.errno]}: {name}",
                path=name,
                hint="make room (`rsllm prune`, `rsllm rm MODEL`), or set OLLAMA_MODELS to a folder on another disk",
            ) from error
        if error.errno in _READ_ONLY:
            reason = "the file system is read-only" if error.errno == errno.EROFS else "permission denied"
            raise ReadOnlyStoreError(
                f"cannot {doing}: {reason}: {name}",
                path=name,
                hint="use a user that may write there, or set OLLAMA_MODELS to another folder",
            ) from error
        raise StoreError(f"cannot {doing}: {error.strerror or error}: {name}", path=name) from error


class NewFile:
    """A file that has no place yet: `write`, then `place`; leaving the `with` block without `place` removes it.

    It lies in `folder` under a name that begins with `prefix`, so both must be on the file system of its place. It is
    locked until then, by which housekeeping tells it from those whose writers are dead.
    """

    def __init__(self, folder: Path, *, prefix: str, mode: int = 0o644) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{prefix}{secrets.token_hex(8)}"
        self._lock = FileLock(self.path, mode=mode)
        self._lock.acquire()
        self._file: BinaryIO = self.path.open("wb", buffering=0)
        self._pending = bytearray()  # less than a large page
        self._placed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """All of `data`; the file may hold the last of it only when it is placed, or at `flush`."""
        rest = memoryview(data)
        if self._pending:
            taken = LARGE_PAGE - len(self._pending)
            self._pending += rest[:taken]
            rest = rest[taken:]
            if len(self._pending) == LARGE_PAGE:
                self.flush()
        whole = len(rest) - len(rest) % LARGE_PAGE
        self._write(rest[:whole])
        self._pending += rest[whole:]

    def flush(self) -> None:
        """Have the file hold all that was written."""
        pending, self._pending = self._pending, bytearray()
        self._write(memoryview(pending))

    def _write(self, rest: memoryview) -> None:
        while len(rest):
            rest = rest[self._file.write(rest) :]

    def place(self, path: Path) -> None:
        """Sync, and become `path`, in place of what is there."""
        self.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self.path, path)
        self._placed = True
        sync_folder(path.parent)

    def __enter__(self) -> NewFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()
        self._lock.release(remove=not self._placed)


def write_file(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write a small file whole; raises `StoreError` and leaves what was there before."""
    with explained(path, f"write {path.name}"), NewFile(path.parent, prefix=f".{path.name}-", mode=mode) as new:
        new.write(data)
        new.place(path)


def read_limited(path: Path, limit: int) -> bytes:
    """A file of at most `limit` bytes; raises `StoreError` where it has more, `OSError` where it cannot be read."""
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise StoreError(f"{path.name} has more than the {limit:,} bytes that are allowed", path=str(path))
    return data


def require_space(folder: Path, needed: int, doing: str) -> None:
    """Raise `StoreFullError` where fewer than `needed` bytes are free on the file system of `folder`."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    free = shutil.disk_usage(there).free
    if free < needed:
        raise StoreFullError(
            f"cannot {doing}: {needed:,} bytes are needed and {free:,} are free: {folder}",
            path=str(folder),
            hint="make room (`rsllm prune`, `rsllm rm MODEL`), or set OLLAMA_MODELS to a folder on another disk",
        )
