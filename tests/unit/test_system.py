"""What the system tells, from made-up systems."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rsllm import system
from rsllm.system import (
    FileLock,
    anonymous_bytes,
    die_with_parent,
    lower_io_priority,
    memory,
    return_memory,
    signal_name,
)

MEMINFO = "MemTotal:  8000 kB\nMemFree:   100 kB\nMemAvailable:    4000 kB\n"


def made(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_without_groups_the_machine_decides(tmp_path: Path) -> None:
    assert memory(made(tmp_path, {})) == {"total": 8_192_000, "available": 4_096_000}


def test_the_tightest_group_decides_and_file_cache_is_free(tmp_path: Path) -> None:
    groups = {
        "proc/self/cgroup": "0::/user/app\n",
        "sys/fs/cgroup/user/app/memory.max": "max\n",
        "sys/fs/cgroup/user/app/memory.current": "700000\n",
        "sys/fs/cgroup/user/memory.max": "1000000\n",
        "sys/fs/cgroup/user/memory.current": "800000\n",
        "sys/fs/cgroup/user/memory.stat": "anon 1\ninactive_file 300000\nfile 2\n",
    }
    assert memory(made(tmp_path, groups)) == {"total": 1_000_000, "available": 500_000}


def test_the_first_version_of_groups_is_read_too(tmp_path: Path) -> None:
    groups = {
        "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/host/path\n0::/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "900000\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "400000\n",
    }
    assert memory(made(tmp_path, groups)) == {"total": 900_000, "available": 500_000}


def test_a_process_knows_its_own_memory() -> None:
    assert (anonymous_bytes(os.getpid()) or 0) > 1 << 20
    assert anonymous_bytes(2**22 + 1) is None


def test_signals_have_names() -> None:
    assert (signal_name(9), signal_name(99)) == ("SIGKILL", "99")


@pytest.mark.parametrize("parent", ["os.getppid()", "1"])
def test_a_child_of_a_dead_parent_ends_at_once(parent: str) -> None:
    script = f"import os; from rsllm.system import die_with_parent; print(die_with_parent({parent}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == ("True\n" if parent != "1" else "")
    assert callable(die_with_parent)


def test_a_lock_is_held_alone_or_shared(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "lock"
    one, two, three = FileLock(path), FileLock(path), FileLock(path)
    assert one.acquire(shared=True)
    assert two.acquire(shared=True, wait=False)
    assert not three.acquire(wait=False)
    one.release()
    two.release()
    assert three.acquire(wait=False)
    assert not one.acquire(shared=True, wait=False)
    three.release()
    three.release()


def test_who_waits_for_a_lock_that_is_removed_takes_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first, second, third = FileLock(path), FileLock(path), FileLock(path)
    first.acquire()
    waiting = threading.Thread(target=second.acquire)
    waiting.start()
    time.sleep(0.05)  # most likely it waits by now; the outcome is the same if not
    first.release(remove=True)
    waiting.join()
    assert path.exists()
    assert not third.acquire(wait=False)
    second.release()


def test_the_lock_of_a_dead_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    script = "import os, sys, pathlib; from rsllm.system import FileLock as L; l = L(pathlib.Path(sys.argv[1]))"
    script += "; l.acquire(); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        assert not FileLock(path).acquire(wait=False)
        child.kill()
        child.wait()
    lock = FileLock(path)
    assert lock.acquire(wait=False)
    lock.release()


def test_a_system_without_flock_makes_files_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "fcntl", None)
    path = tmp_path / "lock"
    one, two = FileLock(path), FileLock(path)
    assert one.acquire()
    assert not two.acquire(shared=True, wait=False)
    one.release()
    assert not path.exists()
    path.touch()
    os.utime(path, (1, 1))  # its holder has been dead for long
    assert two.acquire()
    two.release()


def test_a_thread_can_leave_the_disk_to_others() -> None:
    """In a child, since the priority stays."""
    script = "from rsllm.system import lower_io_priority; print(lower_io_priority())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == f"{sys.platform.startswith('linux')}\n"
    assert callable(lower_io_priority)


def test_memory_that_the_allocator_keeps_can_be_had_back() -> None:
    """In a child, whose allocator keeps nothing else."""
    script = """
import os
from rsllm.system import anonymous_bytes, return_memory
blocks = [bytearray(1 << 16) for _ in range(1000)]
last = bytearray(1 << 16)  # pins the end of the heap
del blocks
kept = anonymous_bytes(os.getpid())
assert return_memory()
assert kept - anonymous_bytes(os.getpid()) > 50 << 20, kept
"""
    if sys.platform.startswith("linux"):
        subprocess.run([sys.executable, "-c", script], check=True, timeout=30)
    assert isinstance(return_memory(), bool)


def test_a_server_may_have_more_connections_than_the_default() -> None:
    code = (
        "import resource; from rsllm.system import raise_file_limit\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard)); raise_file_limit(128)\n"
        "assert resource.getrlimit(resource.RLIMIT_NOFILE) == (128, hard)\n"
        "raise_file_limit(100)\n"
        "assert resource.getrlimit(resource.RLIMIT_NOFILE) == (128, hard), 'never lowered'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
