"""What differs between operating systems, each with a portable fallback: locks, syncing folders, memory figures.

Nothing else in the package asks which system it runs on.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

__all__ = ["locked", "memory", "processor_name", "sync_folder"]

_POLL_SECONDS = 0.1
_STALE_SECONDS = 3600.0


@contextlib.contextmanager
def locked(path: Path, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock file `path`, among processes and threads; `waiting` is called once if another one has it.

    A lock of a dead process is free at once where the system has `flock`, after an hour elsewhere.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _flocked(path, waiting) if fcntl else _created(path, waiting):
        yield


@contextlib.contextmanager
def _flocked(path: Path, waiting: Callable[[], None] | None) -> Iterator[None]:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting:
                waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file frees the lock


@contextlib.contextmanager
def _created(path: Path, waiting: Callable[[], None] | None) -> Iterator[None]:
    mine = path.with_suffix(path.suffix + ".held")
    while True:
        try:
            os.close(os.open(mine, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            break
        except FileExistsError:
            if waiting:
                waiting()
                waiting = None
            with contextlib.suppress(FileNotFoundError):
                if time.time() - mine.stat().st_mtime > _STALE_SECONDS:
                    mine.unlink()
            time.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        mine.unlink(missing_ok=True)


def sync_folder(path: Path) -> None:
    """Make a rename in the folder survive a power cut, where the system can."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:  # Windows opens no folders
        return
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def memory() -> dict[str, int]:
    """Bytes of memory: `total` and `available`, as far as the system tells."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        figures = {"total": "MemTotal", "available": "MemAvailable"}
        return {name: int(lines[key].split()[0]) * 1024 for name, key in figures.items() if key in lines}
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return {"total": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")}
    return {}


def processor_name() -> str | None:
    """What the processor calls itself, if the system tells."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return None
