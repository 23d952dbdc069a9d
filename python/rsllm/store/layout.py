"""Where things lie in a store, and how a name finds its manifest whatever its case.

::

    <root>/manifests/<host>/<namespace>/<model>/<tag>    manifests
    <root>/blobs/sha256-<64 digits>                      blobs
    <root>/blobs/sha256-<64 digits>-partial[-<N>]        a download that is not finished, and the state of its parts
    <root>/blobs/sha256-<anything else>                  a blob that is being written
    <root>/.rsllm/                                       locks, and who is adding what

All but the last is Ollama's, which never looks at other entries of the root. Unfinished files lie where Ollama's own
housekeeping finds them, should this program end before it removes them.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

from rsllm.store.digest import Digest
from rsllm.store.name import ModelName

__all__ = ["Layout", "partial_digest"]

_PARTIAL = re.compile(r"sha256-([0-9a-f]{64})-partial(-\d+)?", re.ASCII)


class Layout:
    """The paths of the store under `root`. Knows nothing of what is in the files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.manifests = root / "manifests"
        self.blobs = root / "blobs"
        self.state = root / ".rsllm"
        self.lock_file = self.state / "lock"
        self.adding = self.state / "adding"
        self.downloads = self.state / "downloads"

    def blob(self, digest: Digest) -> Path:
        """Where the blob is, or would be."""
        return self.blobs / digest.file_name

    def manifest(self, name: ModelName) -> Path:
        """Where a manifest of exactly this spelling would be."""
        return self.manifests.joinpath(*name.validated().parts)

    def find(self, name: ModelName) -> Path | None:
        """The manifest that `name` means: of this spelling if there is one, else of another case."""
        return _find(self.manifests, name.validated().parts)

    def spelled(self, name: ModelName) -> ModelName:
        """The name in the spelling of what is there already: its manifest, or as many of its folders as exist."""
        found = self.find(name)
        if found is not None:
            host, namespace, model, tag = found.relative_to(self.manifests).parts
            return name.with_parts(host, namespace, model, tag)
        parts = list(name.validated().parts)
        folder = self.manifests
        for index, part in enumerate(parts):
            spellings = list(_spellings(folder, part))
            if not spellings:
                break
            parts[index] = spellings[0]
            folder = folder / spellings[0]
        return name.with_parts(*parts)

    def manifest_files(self) -> Iterator[tuple[ModelName, Path]]:
        """Every file where a manifest may be, with the name that its path spells (which need not be a valid one)."""
        for host in _folders(self.manifests):
            for namespace in _folders(host):
                for model in _folders(namespace):
                    for tag in _entries(model):
                        if _is_file(tag):
                            yield ModelName(host.name, namespace.name, model.name, tag.name), Path(tag.path)

    def remove_empty_folders(self) -> None:
        """Remove folders of manifests that have nothing in them, and the folders that this makes empty."""
        for host in _folders(self.manifests):
            for namespace in _folders(host):
                for model in _folders(namespace):
                    _remove_if_empty(model)
                _remove_if_empty(namespace)
            _remove_if_empty(host)


def partial_digest(file_name: str) -> Digest | None:
    """The blob whose unfinished download has this name."""
    match = _PARTIAL.fullmatch(file_name)
    return Digest(match[1]) if match else None


def _find(folder: Path, parts: tuple[str, ...]) -> Path | None:
    """Depth first, so that a folder of another spelling that does not lead on is left again."""
    exact = folder.joinpath(*parts)
    if exact.is_file():
        return exact
    for spelling in _spellings(folder, parts[0]):
        path = folder / spelling
        if len(parts) == 1:
            if path.is_file():
                return path
        elif (found := _find(path, parts[1:])) is not None:
            return found
    return None


def _spellings(folder: Path, part: str) -> Iterator[str]:
    """Entries of a folder that are called `part` in any case: this case first, then in order."""
    names = sorted(entry.name for entry in _entries(folder) if entry.name.lower() == part.lower())
    yield from sorted(names, key=lambda name: name != part)


def _folders(folder: Path) -> list[Path]:
    return [folder / entry.name for entry in _entries(folder) if _is_folder(entry)]


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder, in order; nothing if it went away, or never was one."""
    try:
        with os.scandir(folder) as entries:
            return sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link that leads to itself
        return False


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR):
            raise
