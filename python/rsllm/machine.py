"""What the machine offers: the processor and the kernels chosen for it, memory, and how fast it reads."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

from rsllm import _core
from rsllm.system import memory, processor_name

__all__ = ["describe", "memory_plan", "read_bandwidth"]


def describe() -> dict[str, Any]:
    """Processor, kernels by tensor type with the reason for the choice, memory in bytes, and versions."""
    from importlib.metadata import version

    return {
        "cpu": {"model": processor_name(), **_core.cpu_info()},
        "memory": memory(),
        "versions": {
            "rsllm": _core.__version__,
            "python": f"{platform.python_version()} ({sys.executable})",
            "system": platform.platform(),
            **{name: version(name) for name in ("numpy", "jinja2", "click")},
        },
    }


def read_bandwidth(path: str | os.PathLike[str], threads: int) -> float:
    """The best rate, in bytes a second, at which `threads` threads read the mapped file and do nothing else."""
    return _core.measure_read_bandwidth(os.fspath(path), threads)


def memory_plan(path: str | os.PathLike[str], draft: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """What loading the file, with a draft model or without, would take, unallocated; raises `MemoryPlanError`."""
    return _core.plan(os.fspath(path), draft=None if draft is None else os.fspath(draft), draft_must_fit=False)
