"""The clients of other projects: a virtual environment each, and a folder of npm packages, in the cache of the tests.

`requirements/<client>.txt` lists exact versions of the client (the first line) and of what it imports; pip is told to
install nothing else, since some of these packages bring along hundreds of megabytes that a chat does not need. npm
packages have no dependencies worth pinning, and no lock file: it would hold the address of somebody's registry.

`python -m tests.clients.environments` makes what is missing, some at a time; `--measure` prints sizes.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import time
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support import assets

__all__ = ["CLIENTS", "NODE_MISSING", "NPM_PACKAGES", "VERSIONS", "node", "node_modules", "python_of", "version"]

REQUIREMENTS = Path(__file__).parent / "requirements"
CLIENTS = tuple(sorted(path.stem for path in REQUIREMENTS.glob("*.txt")))
NPM_PACKAGES = {"ollama": "0.6.4", "openai": "7.59.0"}
NODE_MISSING = "this machine has no node (20 or newer) with npm"
_NODE_VERSION = 20
_AT_ONCE = 3


def version(client: str) -> str:
    """The pinned version of a Python client."""
    return (REQUIREMENTS / f"{client}.txt").read_text().splitlines()[0].partition("==")[2]


VERSIONS = {
    **{client: version(client) for client in CLIENTS},
    **{f"npm-{package}": pinned for package, pinned in NPM_PACKAGES.items()},
}
"""Every client, and its pinned version."""


def python_of(client: str) -> Path:
    """The interpreter of the environment that has a client; made if it is not there yet."""
    pins = (REQUIREMENTS / f"{client}.txt").read_bytes()
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    name = f"client-{client}-{version(client)}-{python}-{hashlib.sha256(pins).hexdigest()[:8]}"
    found = assets.cache_dir() / "derived" / name
    if found.exists() and not (found / "bin" / "python").exists():
        shutil.rmtree(found)  # the interpreter that made it is gone
    return assets.scratch(name, lambda target: _make_environment(client, target)) / "bin" / "python"


def node() -> str | None:
    """The node that runs the npm clients, where there is one that can."""
    program = shutil.which("node")
    if program is None or shutil.which("npm") is None:
        return None
    said = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    major = said.removeprefix("v").partition(".")[0]
    return program if major.isdecimal() and int(major) >= _NODE_VERSION else None


def node_modules() -> Path:
    """The folder with the npm clients; made if it is not there yet."""
    pins = [f"{package}@{pinned}" for package, pinned in NPM_PACKAGES.items()]
    name = "client-npm-" + "-".join(pin.replace("@", "-") for pin in pins)
    return assets.scratch(name, lambda target: _npm_install(pins, target)) / "node_modules"


def _make_environment(client: str, target: Path) -> None:
    # Without a pip of its own: that of this interpreter can install elsewhere.
    venv.create(target, with_pip=False, symlinks=True)
    wanted = ["--only-binary", ":all:", "--no-deps", "--no-compile", "-r", str(REQUIREMENTS / f"{client}.txt")]
    pip = [sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check", "--python", str(target)]
    _checked([*pip, "install", "--quiet", *wanted])


def _npm_install(pins: list[str], target: Path) -> None:
    target.mkdir()
    quiet = ["--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
    _checked(["npm", "install", "--prefix", str(target), *quiet, *pins])


def _checked(command: list[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-25:])
        raise assets.AssetError(f"`{' '.join(command)}` failed with exit code {done.returncode}:\n{tail}")


def main() -> int:
    """Make what is missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients.environments", description=__doc__.split("\n\n")[0])
    parser.add_argument("--measure", action="store_true", help="print how large each is")
    arguments = parser.parse_args()

    def make(client: str) -> tuple[str, Path, float]:
        began = time.monotonic()
        folder = node_modules() if client == "npm" else python_of(client).parents[1]
        return client, folder, time.monotonic() - began

    wanted = [*CLIENTS, *(["npm"] if node() else [])]
    try:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for client, folder, seconds in pool.map(make, wanted):
                size = f"  {_megabytes(folder)} MB" if arguments.measure else ""
                print(f"{client:24} {seconds:5.1f} s{size}", flush=True)
    except assets.AssetError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if "npm" not in wanted:
        print(f"npm: {NODE_MISSING}")
    return 0


def _megabytes(folder: Path) -> int:
    return round(sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6)


if __name__ == "__main__":
    raise SystemExit(main())
