"""What differs between operating systems, each with a portable fallback: locks, syncing folders, memory figures and
limits, priorities, children that end with their parent.

Nothing else in the package asks which system it runs on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

try:
    import resource
except ImportError:  # not a POSIX system
    resource = None  # type: ignore[assignment]

__all__ = [
    "FileLock",
    "anonymous_bytes",
    "die_with_parent",
    "limit_memory",
    "locked",
    "lower_io_priority",
    "memory",
    "process_figures",
    "processor_name",
    "raise_file_limit",
    "return_memory",
    "signal_name",
    "sync_folder",
]

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


class FileLock:
    """A lock that processes and threads hold by a file: one of them alone, or several that share it.

    One object is one holder. The lock of a dead process is free at once where the system has `flock`; elsewhere nobody
    shares, and a lock is taken for abandoned after an hour.
    """

    def __init__(self, path: Path, *, mode: int = 0o666) -> None:
        self.path = path
        self._mode = mode
        self._descriptor: int | None = None

    def acquire(self, *, shared: bool = False, wait: bool = True) -> bool:
        """Take the lock; False if `wait` is off and another one has it. Raises `OSError` where no lock can be."""
        if fcntl is None:
            return self._create(wait)
        mode = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
        while True:
            descriptor = _open_lock(self.path, self._mode)
            try:
                fcntl.flock(descriptor, mode)
                if _is_file_at(descriptor, self.path):
                    self._descriptor = descriptor
                    return True
            except BlockingIOError:
                os.close(descriptor)
                return False
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # it was removed while this one waited: the lock is another file now

    def release(self, *, remove: bool = False) -> None:
        """Give it back; `remove` deletes the file too, which is safe for whoever waits."""
        if self._descriptor is None:
            return
        if remove or fcntl is None:
            with contextlib.suppress(OSError):
                self.path.unlink()
        os.close(self._descriptor)
        self._descriptor = None

    def _create(self, wait: bool) -> bool:
        while True:
            try:
                self._descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, self._mode)
                return True
            except FileExistsError:
                with contextlib.suppress(FileNotFoundError):
                    if time.time() - self.path.stat().st_mtime > _STALE_SECONDS:
                        self.path.unlink()
                        continue
                if not wait:
                    return False
                time.sleep(_POLL_SECONDS)


def _open_lock(path: Path, mode: int) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), mode)
    except PermissionError:
        # Another user made it; a lock needs no right to write.
        return os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))


def _is_file_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


_IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "riscv64": 30, "ppc64le": 273, "s390x": 282}
"""Numbers of the system call, which the C library has no function for."""
_IOPRIO_WHO_PROCESS, _IOPRIO_IDLE, _IOPRIO_CLASS_SHIFT = 1, 3, 13  # linux/ioprio.h


def lower_io_priority() -> bool:
    """Let this thread use the disk only when nobody else does; False where the system has no such thing."""
    number = _IOPRIO_SET.get(os.uname().machine) if sys.platform.startswith("linux") else None
    if number is None:
        return False
    import ctypes

    try:
        system_call = ctypes.CDLL(None, use_errno=True).syscall
    except (OSError, AttributeError):
        return False
    return bool(system_call(number, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_IDLE << _IOPRIO_CLASS_SHIFT) == 0)


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


def memory(root: Path = Path("/")) -> dict[str, int]:
    """Bytes of memory: `total` and `available`, as far as the system tells, and within the limits of a container.

    Memory that holds cached file pages counts as available. `root` is where the system's files are, for tests.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = dict(line.split(":", 1) for line in (root / "proc/meminfo").read_text().splitlines())
        figures = {"total": "MemTotal", "available": "MemAvailable"}
        found = {name: int(lines[key].split()[0]) * 1024 for name, key in figures.items() if key in lines}
        for limit, left in _group_limits(root):
            for name, bound in (("total", limit), ("available", left)):
                found[name] = min(found.get(name, bound), bound)
        return found
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return {"total": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")}
    return {}


# Of each version of control groups: where it is mounted, its limit, its usage, and the file cache dropped first.
_GROUPS = {
    2: ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    1: ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def _group_limits(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and rest, in bytes, of each control group that bounds the memory of this process."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        mount, limit_file, usage_file, cache_line = _GROUPS[1 if controllers else 2]
        group = root / mount / path.lstrip("/")
        # A limit of any parent binds too; in a container the path may be the host's and lead nowhere but to the mount.
        for folder in [group, *group.parents]:
            with contextlib.suppress(OSError, ValueError):  # "max" is no number, hence no limit
                limit = int((folder / limit_file).read_text())
                usage = int((folder / usage_file).read_text())
                yield limit, max(0, limit - max(0, usage - _cache_bytes(folder / "memory.stat", cache_line)))
            if folder == root / mount:
                break


def _cache_bytes(path: Path, name: str) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            if line.startswith(f"{name} "):
                return int(line.split()[1])
    return 0


def anonymous_bytes(process: int) -> int | None:
    """Memory of a process that is no copy of a file, in bytes; `None` where the system does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return None


def process_figures() -> dict[str, float]:
    """What this process takes: `cpu_seconds`, and where the system tells `resident_bytes` (with the pages of files that
    it has mapped) and `own_bytes` (without)."""
    figures: dict[str, float] = {"cpu_seconds": time.process_time()}
    try:
        resident, shared = map(int, Path("/proc/self/statm").read_text().split()[1:3])
    except (OSError, ValueError):
        return figures
    page = os.sysconf("SC_PAGE_SIZE")
    return {**figures, "resident_bytes": resident * page, "own_bytes": (resident - shared) * page}


def raise_file_limit(most: int = 65_536) -> None:
    """Let this process have as many files and connections open as it may, up to `most`; less is the system's default,
    for programs that cannot count beyond 1,024."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def return_memory() -> bool:
    """Have the allocator give the system what it keeps for later; false where it cannot be told to.

    The C library keeps freed blocks below 32 MiB, which are most of a model's, however many there are.
    """
    import ctypes

    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except (OSError, AttributeError, TypeError):  # another C library
        return False


def limit_memory(limit: int) -> None:
    """Let this process take at most `limit` bytes of memory of its own; files it maps do not count.

    Raises `ValueError` or `OSError` where the limit cannot be set, or the system has none.
    """
    if resource is None:
        raise OSError(errno.ENOSYS, "this system cannot limit the memory of a process")
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(parent: int) -> bool:
    """Have the kernel kill this process when the thread that started it ends; `parent` is that thread's process.

    Needs no help of the interpreter later, so it works whatever this process is doing. False where the system cannot;
    True, or the end of this process, if the parent is dead already.
    """
    if not sys.platform.startswith("linux"):
        return False
    import ctypes

    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):
        return False
    if prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        return False
    if os.getppid() != parent:  # it died before the kernel knew whom to watch
        os._exit(0)
    return True


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; the number itself where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def processor_name() -> str | None:
    """What the processor calls itself, if the system tells."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return None
