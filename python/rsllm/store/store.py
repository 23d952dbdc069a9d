"""The store: a folder of manifests and blobs that this program, other processes of it, and Ollama use together.

Rules that everything here keeps:

- A file appears under its name complete, by a rename, after it was synced; a manifest after the blobs it needs.
- Manifests are written, copied and removed, and blobs deleted, by whoever holds the store's lock, which nobody holds
  for long. Readers need no lock: what they open is complete, and stays theirs when it is deleted.
- A blob is deleted only if no manifest mentions it and nobody is adding it (`rsllm.store.adding`).
- A name finds its manifest in any case and is written in the case of what is there.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rsllm.config import config
from rsllm.errors import (
    DigestMismatchError,
    ManifestError,
    ModelNameError,
    ModelNotFoundError,
    ReadOnlyStoreError,
    StoreError,
)
from rsllm.store.adding import Adding, held_digests
from rsllm.store.digest import Digest
from rsllm.store.files import NewFile, explained, read_limited, require_space
from rsllm.store.layout import Layout
from rsllm.store.manifest import MANIFEST_LIMIT, Manifest, mentioned_digests
from rsllm.store.model import StoredModel
from rsllm.store.name import ModelName
from rsllm.system import FileLock

if TYPE_CHECKING:
    from rsllm.store.housekeeping import Pruned

__all__ = ["KEPT_SECONDS", "Store", "StoredName"]

KEPT_SECONDS = 3600.0
"""How long a file that no model needs is kept, as Ollama does: another program may be about to need it."""

_COPY_BYTES = 2**20
_MAKE_FOLDER_TRIES = 5
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredName:
    """An entry of the list of models. A damaged one has an `error`, and no more than could be found out."""

    name: ModelName
    manifest_path: Path
    modified_at: datetime
    digest: Digest | None = None
    size: int = 0
    error: str | None = None
    manifest: Manifest | None = field(default=None, repr=False)


class Store:
    """The store under `root`, which need not exist yet. May be used by several threads."""

    def __init__(self, root: Path, *, read_only: bool = False) -> None:
        self.root = root
        self.read_only = read_only
        self.layout = Layout(root)

    @classmethod
    def default(cls, *, read_only: bool = False) -> Store:
        """The store of this user: `OLLAMA_MODELS`."""
        return cls(config().models_dir, read_only=read_only)

    # Reading

    def names(self) -> list[StoredName]:
        """Every model, in the order of their names, damaged ones too; one bad entry hides no other."""
        with explained(self.layout.manifests, "list the models"):
            files = list(self.layout.manifest_files())
        entries = [entry for name, path in files if (entry := self._entry(name, path)) is not None]
        return sorted(entries, key=lambda entry: (entry.name.key, entry.name.full))

    def find(self, name: ModelName) -> StoredModel:
        """The model of this name in any case; raises `ModelNotFoundError`, `ManifestError`."""
        path = self._find(name)
        try:
            raw, modified_at = _read_manifest(path)
        except FileNotFoundError:
            raise _not_found(name) from None
        host, namespace, model, tag = path.relative_to(self.layout.manifests).parts
        return StoredModel(
            name=name.with_parts(host, namespace, model, tag),
            manifest=_parse(raw, path),
            modified_at=modified_at,
            blob_path=self.blob_path,
        )

    def blob_path(self, digest: Digest) -> Path:
        """Where the blob is, or would be."""
        return self.layout.blob(digest)

    def has_blob(self, digest: Digest, size: int | None = None) -> bool:
        """Whether the blob is there, with this size. Says so to housekeeping, which spares what was used lately."""
        path = self.blob_path(digest)
        try:
            found = path.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return False
        if not path.is_file() or (size is not None and found != size):
            return False
        if not self.read_only:
            with contextlib.suppress(OSError):  # another user's file: it can be used all the same
                os.utime(path)
        return True

    # Locks

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """The lock of whoever changes manifests or deletes blobs. Hold it briefly, and never twice."""
        self._require_writable()
        lock = FileLock(self.layout.lock_file)
        with explained(self.layout.lock_file, "lock the store"):
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def blob_lock(self, digest: Digest) -> FileLock:
        """The lock of whoever writes the unfinished files of this blob; `acquire` it for as long as needed."""
        self._require_writable()
        return FileLock(self.layout.downloads / digest.file_name)

    # Writing

    def adding(self) -> Adding:
        """For adding a model: holds the blobs that are there or come until its manifest is written."""
        self._require_writable()
        return Adding(self, self.layout.adding)

    def add_blob(
        self,
        source: Iterable[bytes] | Path,
        expected: Digest | None = None,
        *,
        progress: Callable[[int], None] | None = None,
        placing: Callable[[Digest], None] | None = None,
    ) -> tuple[Digest, int]:
        """Add a blob, from pieces or from a file; its digest and size.

        A blob of the digest `expected` that is there already is not read again. `progress` is told of the bytes so far,
        `placing` of the digest before the blob appears. Raises `DigestMismatchError`, `StoreFullError`,
        `ReadOnlyStoreError`.
        """
        self._require_writable()
        if expected is not None and self.has_blob(expected):
            return expected, self.blob_path(expected).stat().st_size
        if isinstance(source, Path):
            with source.open("rb") as file:
                require_space(self.layout.blobs, os.fstat(file.fileno()).st_size, f"add {source.name} to the store")
                return self._add(iter(partial(file.read, _COPY_BYTES), b""), expected, progress, placing)
        return self._add(source, expected, progress, placing)

    def _add(
        self,
        source: Iterable[bytes],
        expected: Digest | None,
        progress: Callable[[int], None] | None,
        placing: Callable[[Digest], None] | None,
    ) -> tuple[Digest, int]:
        hasher = hashlib.sha256()
        written = 0
        with contextlib.ExitStack() as stack:
            stack.enter_context(explained(self.layout.blobs, "add a blob"))
            new = stack.enter_context(NewFile(self.layout.blobs, prefix="sha256-new-"))
            for piece in source:
                hasher.update(piece)
                new.write(piece)
                written += len(piece)
                if progress is not None:
                    progress(written)
            digest = Digest(hasher.hexdigest())
            if expected is not None and digest != expected:
                raise DigestMismatchError(
                    f'digest mismatch, expected "{expected}", got "{digest}"', expected=str(expected), found=str(digest)
                )
            if placing is not None:
                placing(digest)
            if not self.has_blob(digest, written):
                new.place(self.blob_path(digest))
        return digest, written

    def write_manifest(self, name: ModelName, raw: bytes, *, check_blobs: bool = True) -> Manifest | None:
        """Make `name` mean this manifest, byte for byte; what it meant before, if it did.

        Raises `ManifestError` for bytes that are no manifest, `StoreError` where a blob it needs is missing.
        """
        manifest = Manifest.parse(raw)
        with self.lock():
            if check_blobs:
                self._require_blobs(manifest)
            path = self.layout.manifest(self.layout.spelled(name))
            before = None
            with contextlib.suppress(OSError, ManifestError):
                before = _parse(_read_manifest(path)[0], path)
            self._place_manifest(path, raw)
        return before

    def copy(self, source: ModelName, destination: ModelName) -> None:
        """Make `destination` mean what `source` means. Raises `ModelNotFoundError`, `ManifestError`."""
        with self.lock():
            path = self._find(source)
            raw, _ = _read_manifest(path)
            _parse(raw, path)
            target = self.layout.manifest(self.layout.spelled(destination))
            if target != path:
                self._place_manifest(target, raw)

    def delete(self, name: ModelName) -> list[Digest]:
        """Remove a model, damaged or not, and the blobs that only it needed; their digests.

        Raises `ModelNotFoundError`.
        """
        with self.lock():
            path = self._find(name)
            with explained(path, f"remove {name.short}"):
                try:
                    raw, _ = _read_manifest(path)
                    needed = self._needed(raw)
                except (OSError, StoreError):
                    needed = set()
                path.unlink()
                self.layout.remove_empty_folders()
            return self._remove_unneeded(needed)

    def remove_unused(self, digests: Iterable[Digest]) -> list[Digest]:
        """Delete those of the blobs that no manifest mentions and nobody is adding; their digests."""
        with self.lock():
            return self._remove_unneeded(digests)

    def prune(self, dry_run: bool, *, older_than_seconds: float = KEPT_SECONDS) -> Pruned:
        """Remove what no model needs and nobody has used for that long: `rsllm.store.housekeeping.prune`."""
        from rsllm.store.housekeeping import prune

        return prune(self, dry_run=dry_run, older_than_seconds=older_than_seconds)

    def start(self, *, no_prune: bool | None = None) -> Pruned:
        """What a server does first: bring old blob names up to date, then prune unless `OLLAMA_NOPRUNE` is set."""
        from rsllm.store.housekeeping import start

        return start(self, no_prune=config().no_prune if no_prune is None else no_prune)

    # Helpers, for holders of the lock

    def needed_digests(self) -> tuple[set[Digest], list[StoredName]]:
        """The blobs that manifests mention, and the manifests that are damaged.

        What a damaged one mentions counts as well. Raises `OSError` where a manifest cannot be read, so that nobody
        takes its blobs for unneeded.
        """
        needed: set[Digest] = set()
        damaged: list[StoredName] = []
        for name, path in self.layout.manifest_files():
            try:
                raw, _ = _read_manifest(path)
            except FileNotFoundError:
                continue
            except ManifestError:  # too large to be one
                raw = b""
            needed |= self._needed(raw)
            entry = self._entry(name, path)
            if entry is not None and entry.manifest is None:
                damaged.append(entry)
        return needed, damaged

    def _needed(self, raw: bytes) -> set[Digest]:
        """What a manifest mentions, itself (it may be a link to a blob), and what the manifests it lists mention."""
        needed = set(mentioned_digests(raw)) | {Digest.of(raw)}
        with contextlib.suppress(ManifestError):
            needed |= Manifest.parse(raw).digests  # JSON can spell a digest so that no search finds it
        if b'"manifests"' in raw:
            for digest in tuple(needed):
                with contextlib.suppress(OSError, StoreError):
                    needed |= mentioned_digests(read_limited(self.blob_path(digest), MANIFEST_LIMIT))
        return needed

    def _remove_unneeded(self, digests: Iterable[Digest]) -> list[Digest]:
        try:
            needed, _ = self.needed_digests()
        except OSError as error:
            _log.warning("no blob was removed: a manifest cannot be read: %s", error)
            return []
        kept = needed | held_digests(self.layout.adding)
        removed = []
        for digest in sorted(set(digests) - kept):
            path = self.blob_path(digest)
            with explained(path, "remove a blob"), contextlib.suppress(FileNotFoundError):
                path.unlink()
                removed.append(digest)
        return removed

    def _require_blobs(self, manifest: Manifest) -> None:
        for layer in manifest.all_layers:
            if layer.size > 0 and not self.has_blob(layer.digest, layer.size):
                path = self.blob_path(layer.digest)
                raise StoreError(
                    f"the manifest needs {layer.digest.file_name} of {layer.size:,} bytes, which is not in the store",
                    path=str(path),
                )

    def _place_manifest(self, path: Path, raw: bytes) -> None:
        with explained(path, "write a manifest"):
            for attempt in range(_MAKE_FOLDER_TRIES):
                path.parent.mkdir(parents=True, exist_ok=True)
                try:
                    return _place(path, raw, self.layout.manifests)
                except FileNotFoundError:  # Ollama, which knows no lock, just removed the empty folder
                    if attempt == _MAKE_FOLDER_TRIES - 1:
                        raise

    # Helpers

    def _find(self, name: ModelName) -> Path:
        with explained(self.layout.manifests, f"look for {name.short}"):
            path = self.layout.find(name)
        if path is None:
            raise _not_found(name)
        return path

    def _entry(self, name: ModelName, path: Path) -> StoredName | None:
        """The entry of a file, whatever is in it; nothing if it is gone."""
        modified_at = datetime.fromtimestamp(0).astimezone()
        raw = None
        try:
            raw, modified_at = _read_manifest(path)
            name.validated()
            manifest = _parse(raw, path)
        except FileNotFoundError:
            return None
        except (OSError, StoreError, ModelNameError) as error:
            digest = Digest.of(raw) if raw is not None else None
            return StoredName(name, path, modified_at, digest, error=str(error))
        return StoredName(name, path, modified_at, manifest.digest, manifest.size, manifest=manifest)

    def _require_writable(self) -> None:
        if self.read_only:
            raise ReadOnlyStoreError(f"the store was opened for reading only: {self.root}", path=str(self.root))


def _read_manifest(path: Path) -> tuple[bytes, datetime]:
    """The bytes of a manifest, and when it was written. Raises `ManifestError` if there are too many, `OSError`."""
    try:
        raw = read_limited(path, MANIFEST_LIMIT)
    except StoreError as error:
        raise ManifestError(str(error), path=str(path)) from None
    return raw, datetime.fromtimestamp(path.stat().st_mtime).astimezone()


def _parse(raw: bytes, path: Path) -> Manifest:
    try:
        return Manifest.parse(raw)
    except ManifestError as error:
        raise ManifestError(
            f"{error}: {path}", path=str(path), field=error.field, hint="remove the model, and pull or create it again"
        ) from None


def _place(path: Path, raw: bytes, folder: Path) -> None:
    """Write a manifest in the folder of all of them, where nobody takes it for one, and rename it."""
    for beside in (folder, path.parent):
        with NewFile(beside, prefix=".rsllm-") as new:
            new.write(raw)
            try:
                return new.place(path)
            except OSError as error:
                # The folder of a host or namespace may be a link to another disk.
                if error.errno != errno.EXDEV or beside == path.parent:
                    raise


def _not_found(name: ModelName) -> ModelNotFoundError:
    return ModelNotFoundError(f"model {name.short!r} not found", hint=f"get it with `rsllm pull {name.short}`")
