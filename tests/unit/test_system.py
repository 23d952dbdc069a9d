"""What the system tells, from made-up systems."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rsllm.system import anonymous_bytes, die_with_parent, memory, signal_name

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
