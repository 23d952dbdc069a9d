"""Benchmark records: one JSON file a model, machine and day, with every repetition in it."""

from __future__ import annotations

import glob
import json
import os
import platform
import re
import subprocess
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Self

from benches.engines import Measurement

RECORDS = Path(__file__).parent / "record"


@dataclass
class Record:
    """What was measured, as it stands in the file.

    `cells` maps test, then threads, then engine to a list of repetitions of `seconds`, `tokens`, `foreign_cores`,
    `wall_seconds` (of the whole call, with what is not measured), and for decoding by rsllm `read_bytes_per_second`,
    the most that plain loops read at that time.
    """

    path: Path
    data: dict[str, Any]

    @classmethod
    def new(cls, path: Path, model: Path) -> Self:
        """An empty record of the model on this machine."""
        head = {
            "machine": machine(),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit(),
            "model": {"file": model.name, "bytes": model.stat().st_size},
            "engines": {},
            "cells": {},
        }
        return cls(path, head)

    @classmethod
    def read(cls, path: Path) -> Self:
        """The record in the file."""
        return cls(path, json.loads(path.read_text()))

    def resume(self) -> str | None:
        """Notes that the comparison goes on; the commit it began with where this is another one."""
        first: str = self.data["commit"]
        if (now := commit()) == first:
            return None
        more = self.data.setdefault("later_commits", [])
        if now not in more:
            more.append(now)
        return first

    def write(self) -> None:
        """Replaces the file in one step."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".tmp")
        beside.write_text(json.dumps(self.data, indent=1) + "\n")
        os.replace(beside, self.path)

    def runs(self, cell: str, threads: int, engine: str) -> list[dict[str, Any]]:
        """The repetitions of one cell."""
        found: list[dict[str, Any]] = self.data["cells"].get(cell, {}).get(str(threads), {}).get(engine, [])
        return found

    def add(self, cell: str, threads: int, engine: str, found: Measurement) -> None:
        """Adds a repetition, and the memory the engine had after it."""
        runs = self.data["cells"].setdefault(cell, {}).setdefault(str(threads), {}).setdefault(engine, [])
        answer = found.answer
        run = {
            "seconds": round(answer["seconds"], 6),
            "tokens": answer["tokens"],
            "foreign_cores": round(found.foreign_cores, 2),
            "wall_seconds": round(found.wall_seconds, 2),
        }
        if "read_bytes_per_second" in answer:
            run["read_bytes_per_second"] = round(answer["read_bytes_per_second"])
        runs.append(run)
        peak = self._engine(engine)["memory"].setdefault(str(threads), answer["memory"])
        for kind, n_bytes in answer["memory"].items():
            peak[kind] = max(peak[kind], n_bytes)

    def add_load(self, engine: str, threads: int, loaded: dict[str, Any]) -> None:
        """Adds what a worker said when it had loaded the model."""
        entry = self._engine(engine)
        entry["load_seconds"].append(round(loaded["seconds"], 3))
        entry.setdefault("first_token_seconds", []).append(round(loaded["first_token_seconds"], 3))
        entry["version"] = loaded["version"]
        entry["system"] = loaded["system"]
        if "decode_bytes_per_token" in loaded:
            self.data["model"]["decode_bytes_per_token"] = loaded["decode_bytes_per_token"]

    def note(self, engine: str, text: str) -> None:
        """Adds a failure."""
        self._engine(engine).setdefault("failures", []).append(text)

    def _engine(self, name: str) -> dict[str, Any]:
        entry: dict[str, Any] = self.data["engines"].setdefault(name, {"load_seconds": [], "memory": {}})
        return entry


def record_path(model: Path, day: date) -> Path:
    """Where the record of that model, machine and day lies."""
    name: str = machine()["name"]
    return RECORDS / name / f"{day.isoformat()}-{model.stem.lower()}.json"


def newest_record_path(model: Path) -> Path | None:
    """The latest day's record of that model and machine: a comparison may go on past midnight."""
    folder = RECORDS / str(machine()["name"])
    return max(folder.glob(f"????-??-??-{glob.escape(model.stem.lower())}.json"), default=None)


def machine() -> dict[str, Any]:
    """What the figures depend on; `name` is a folder name."""
    cpu = Path("/proc/cpuinfo").read_text()
    model = match.group(1) if (match := re.search(r"model name\s*: (.+)", cpu)) else platform.machine()
    flags = set(match.group(1).split()) if (match := re.search(r"flags\s*: (.+)", cpu)) else set()
    memory = Path("/proc/meminfo").read_text()
    cores = len(os.sched_getaffinity(0))
    wide = next((name for name, flag in WIDEST if flag in flags), "baseline")
    slug = re.sub(r"[^a-z0-9]+", "-", model.lower().replace("(r)", "").replace("(tm)", "")).strip("-")
    return {
        "name": f"{slug}-{wide}-{cores}c",
        "cpu": model,
        "cores": cores,
        "features": sorted(flags & {flag for _, flag in WIDEST} | flags & {"avx512_vnni", "avx_vnni", "fma"}),
        "memory_bytes": int(re.findall(r"MemTotal:\s+(\d+)", memory)[0]) * 1024,
        "kernel": platform.release(),
    }


WIDEST = (("amx", "amx_tile"), ("avx512", "avx512f"), ("avx2", "avx2"), ("avx", "avx"))


def commit() -> str:
    """The commit measured, with a mark when files differ from it."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=RECORDS.parent, capture_output=True, text=True
    )
    return done.stdout.strip() or "unknown"
