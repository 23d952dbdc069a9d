"""Whether a store is what it says it is: every manifest read, every blob hashed.

Other processes may work on the store meanwhile; what they take away while it is looked at is no finding.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rsllm.errors import DigestError
from rsllm.store.digest import Digest
from rsllm.store.layout import partial_digest
from rsllm.store.manifest import Layer, Manifest
from rsllm.store.store import Store, StoredName

__all__ = ["Finding", "Report", "check", "examine", "problem"]

_READ_BYTES = 2**20


@dataclass(frozen=True)
class Finding:
    """Something wrong: where, what, and what to do about it."""

    path: Path
    problem: str
    fix: str
    model: str | None = None

    def __str__(self) -> str:
        return f"{self.model or self.path.name}: {self.problem}"


@dataclass
class Report:
    """All findings, and how much was looked at; `unneeded` blobs and `unfinished` files are no faults."""

    findings: list[Finding] = field(default_factory=list)
    manifests: int = 0
    blobs: int = 0
    bytes: int = 0
    unneeded: int = 0
    unfinished: int = 0


def check(store: Store, *, progress: Callable[[int], None] | None = None) -> list[Finding]:
    """What is wrong with the store; `progress` is told of the bytes hashed so far."""
    return examine(store, progress=progress).findings


def examine(store: Store, *, progress: Callable[[int], None] | None = None) -> Report:
    """Look at everything in the store."""
    report = Report()
    needed: set[Digest] = set()
    for entry in store.names():
        report.manifests += 1
        if entry.manifest is None:
            report.findings.append(_damaged(entry))
            continue
        needed |= entry.manifest.digests | {entry.manifest.digest}
        for layer in entry.manifest.all_layers:
            finding = _layer_finding(store, entry, layer)
            if finding is not None and _still_there(entry):
                report.findings.append(finding)
    for path in _blob_files(store):
        _look_at(path, needed, report, progress)
    return report


def _damaged(entry: StoredName) -> Finding:
    return Finding(
        entry.manifest_path,
        entry.error or "the manifest is damaged",
        f"rsllm rm {entry.name.short}, then pull or create it again",
        entry.name.short,
    )


def problem(store: Store, manifest: Manifest) -> str | None:
    """What keeps a model from being whole, as far as that can be seen without reading its blobs."""
    found = (_layer_problem(store, layer) for layer in manifest.all_layers)
    return next((text for text in found if text is not None), None)


def _layer_problem(store: Store, layer: Layer) -> str | None:
    if layer.size == 0:
        return None  # registries list empty layers that nobody ever stored
    try:
        size = store.blob_path(layer.digest).stat().st_size
    except FileNotFoundError:
        return f"{layer.digest.file_name} is missing"
    if size == layer.size:
        return None
    return f"{layer.digest.file_name} has {size:,} bytes, and {layer.size:,} are expected"


def _layer_finding(store: Store, entry: StoredName, layer: Layer) -> Finding | None:
    text = _layer_problem(store, layer)
    if text is None:
        return None
    return Finding(store.blob_path(layer.digest), text, f"rsllm pull {entry.name.short}", entry.name.short)


def _still_there(entry: StoredName) -> bool:
    """Whether the manifest is what it was: if not, somebody changed the model while it was looked at."""
    try:
        return Digest.of(entry.manifest_path.read_bytes()) == entry.digest
    except FileNotFoundError:
        return False


def _blob_files(store: Store) -> list[Path]:
    try:
        return [store.layout.blobs / name for name in sorted(os.listdir(store.layout.blobs))]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _look_at(path: Path, needed: set[Digest], report: Report, progress: Callable[[int], None] | None) -> None:
    try:
        digest = Digest.parse(path.name)
    except DigestError:
        if path.name.startswith("sha256-new-") or partial_digest(path.name):
            report.unfinished += 1
        return
    hasher = hashlib.sha256()
    try:
        with path.open("rb", buffering=0) as file:
            while piece := file.read(_READ_BYTES):
                hasher.update(piece)
                report.bytes += len(piece)
                if progress is not None:
                    progress(report.bytes)
    except FileNotFoundError:
        if path.is_symlink():
            report.findings.append(Finding(path, "the link leads nowhere", f"remove {path}"))
        return
    except OSError as error:
        report.findings.append(Finding(path, f"it cannot be read: {error.strerror}", f"look at {path}"))
        return
    report.blobs += 1
    report.unneeded += digest not in needed
    if hasher.hexdigest() != digest.hex:
        found = Digest(hasher.hexdigest())
        report.findings.append(
            Finding(path, f"its content has the digest {found}", f"remove {path}, then pull the models that need it")
        )
