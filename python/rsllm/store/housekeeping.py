"""Housekeeping: old blob names, and files that no model needs.

The rules are Ollama's. Pruning removes blobs that no manifest mentions, and files that are no blobs (downloads that
were given up, blobs that were never finished), once nobody has touched them for an hour. If a manifest is damaged,
nothing is removed, since nobody knows what it needs. Beyond that, what a living process is writing, or holds for a
model that it is adding, stays whatever its age.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rsllm.errors import DigestError, StoreError
from rsllm.store.adding import held_digests
from rsllm.store.digest import Digest
from rsllm.store.files import explained
from rsllm.store.layout import partial_digest
from rsllm.system import FileLock

if TYPE_CHECKING:
    from rsllm.store.store import Store

__all__ = ["Pruned", "prune", "start"]

_OLD_NAME = re.compile(r"sha256:[0-9a-f]{64}(-partial(-\d+)?)?", re.ASCII)
_BLOCK_BYTES = 512  # the unit of st_blocks
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pruned:
    """What was removed, or would be: blobs, files that are no blobs, and the bytes they take on the disk.

    `skipped` says why nothing was, where something kept housekeeping from its work.
    """

    blobs: tuple[Digest, ...] = ()
    partials: tuple[str, ...] = ()
    bytes: int = 0
    renamed: int = 0
    skipped: str | None = None


def start(store: Store, *, no_prune: bool) -> Pruned:
    """Bring old names up to date, then prune. Never raises: what keeps it from its work is logged, and told."""
    if not store.root.is_dir():
        return Pruned()
    try:
        renamed = _rename_old(store)
        if no_prune:
            return Pruned(renamed=renamed, skipped="OLLAMA_NOPRUNE is set")
        pruned = replace(store.prune(dry_run=False), renamed=renamed)
    except (StoreError, OSError) as error:  # models can be run all the same
        pruned = Pruned(skipped=str(error))
    if pruned.skipped:
        _log.warning("the store was not tidied: %s", pruned.skipped)
    return pruned


def prune(store: Store, *, dry_run: bool, older_than_seconds: float) -> Pruned:
    """Remove what no model needs and nobody has touched for so long; with `dry_run`, only say what that is."""
    if dry_run:
        return _prune(store, older_than_seconds, remove=False)
    with store.lock(), explained(store.layout.blobs, "prune the store"):
        return _prune(store, older_than_seconds, remove=True)


def _prune(store: Store, older_than_seconds: float, *, remove: bool) -> Pruned:
    try:
        needed, damaged = store.needed_digests()
    except OSError as error:
        return Pruned(skipped=f"a manifest cannot be read: {error}")
    if damaged:
        names = ", ".join(str(entry.manifest_path) for entry in damaged)
        return Pruned(skipped=f"nobody knows which blobs a damaged manifest needs: {names}")
    # Only under the lock is it certain who holds what; without it nothing is removed, and less is said.
    kept = needed | (held_digests(store.layout.adding) if remove else set())
    blobs, others, freed = [], [], 0
    before = time.time() - older_than_seconds
    for path, status in _old_files(store.layout.blobs, before):
        digest = _digest(path.name)
        if digest in kept:
            continue
        if digest is None and _in_use(store, path):
            continue
        if remove:
            try:
                path.unlink()
            except FileNotFoundError:
                continue
        freed += _disk_bytes(status)
        if digest is not None:
            blobs.append(digest)
        else:
            others.append(path.name)
    if remove:
        store.layout.remove_empty_folders()
        _remove_leftovers(store)
    return Pruned(tuple(blobs), tuple(others), freed)


def _old_files(folder: Path, before: float) -> list[tuple[Path, os.stat_result]]:
    """Files, and links that lead nowhere, last touched before that time.

    The files of one download are as old as the youngest of them: without one, the others would lie about what is there.
    """
    found: list[tuple[Path, os.stat_result]] = []
    touched: dict[str, float] = {}
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return found
    for name in names:
        path = folder / name
        try:
            status = path.lstat() if path.is_symlink() else path.stat()
        except FileNotFoundError:
            continue
        if not path.is_dir():
            found.append((path, status))
            group = _group(name)
            touched[group] = max(touched.get(group, 0.0), status.st_mtime)
    return [(path, status) for path, status in found if touched[_group(path.name)] <= before]


def _group(name: str) -> str:
    digest = partial_digest(name)
    return name if digest is None else f"{digest.file_name}-partial"


def _digest(file_name: str) -> Digest | None:
    """The digest of a blob; nothing for any other file, blobs under their old names among them."""
    try:
        digest = Digest.parse(file_name)
    except DigestError:
        return None
    return digest if file_name == digest.file_name else None


def _in_use(store: Store, path: Path) -> bool:
    """Whether a living process is writing this file."""
    digest = partial_digest(path.name)
    if digest is None:
        return _is_locked(path)
    lock = store.layout.downloads / digest.file_name
    return lock.exists() and _is_locked(lock)


def _is_locked(path: Path) -> bool:
    lock = FileLock(path)
    try:
        if not lock.acquire(wait=False):
            return True
    except OSError:  # not ours to open
        return False
    lock.release()
    return False


def _remove_leftovers(store: Store) -> None:
    """What killed processes left of manifests they wrote, and locks of downloads that nobody runs."""
    # Manifests are written by holders of the store's lock alone, which this process is: their writers are dead.
    for path in store.layout.manifests.glob(".rsllm-*"):
        with contextlib.suppress(OSError):
            path.unlink()
    for path in store.layout.downloads.glob("sha256-*"):
        lock = FileLock(path)
        with contextlib.suppress(OSError):
            if lock.acquire(wait=False):
                lock.release(remove=True)


def _rename_old(store: Store) -> int:
    """`sha256:…`, which some file systems do not allow, becomes `sha256-…`; how many did."""
    blobs = store.layout.blobs
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        old = [name for name in os.listdir(blobs) if _OLD_NAME.fullmatch(name)]
        if not old:
            return 0
        with store.lock(), explained(blobs, "rename blobs"):
            for name in old:
                with contextlib.suppress(FileNotFoundError):  # another process did it
                    os.replace(blobs / name, blobs / name.replace(":", "-", 1))
        return len(old)
    return 0


def _disk_bytes(status: os.stat_result) -> int:
    """What a file takes on the disk: a download has holes."""
    blocks = getattr(status, "st_blocks", None)
    return status.st_size if blocks is None else min(status.st_size, int(blocks) * _BLOCK_BYTES)
