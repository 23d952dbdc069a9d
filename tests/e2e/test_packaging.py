"""What pip gets: wheels alone, one for all Pythons, and a word where the compiled part is for another machine."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
# In the header of an ELF file: the machine that it is for.
_MACHINE_AT = 18
_AARCH64 = 0xB7


def test_the_installed_wheel_is_for_all_pythons_from_3_11() -> None:
    """PKG-02."""
    try:
        wheel = importlib.metadata.distribution("rsllm").read_text("WHEEL") or ""
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("this machine has no installed wheel of rsllm, but its sources on the path")
    tags = [line.removeprefix("Tag: ") for line in wheel.splitlines() if line.startswith("Tag: ")]
    assert tags and all(tag.startswith("cp311-abi3-") for tag in tags), wheel


@pytest.mark.timeout(180)
def test_all_that_is_needed_comes_as_wheels(tmp_path: Path) -> None:
    """PKG-02: nothing is compiled on anybody's machine, on any Python that is supported."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11"
    for python in ("3.11", "3.14"):
        wanted = [Requirement(text) for text in project["dependencies"]]
        needed = [one for one in wanted if one.marker is None or one.marker.evaluate({"python_version": python})]
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-input", "--quiet"]
        command += ["--disable-pip-version-check", "--only-binary", ":all:", "--target", str(tmp_path / "nothing")]
        command += ["--python-version", python, "--platform", "manylinux_2_17_x86_64"]
        command += ["--platform", "manylinux_2_28_x86_64"]
        command += [f"{one.name}{one.specifier}" for one in needed]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, f"Python {python}: {done.stderr[-1000:]}"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """The package, with a compiled part for another machine."""
    package = tmp_path / "rsllm"
    shutil.copytree(ROOT / "python" / "rsllm", package, ignore=shutil.ignore_patterns("_core*.so", "__pycache__"))
    from rsllm import _core

    compiled = Path(_core.__file__)
    content = bytearray(compiled.read_bytes())
    content[_MACHINE_AT : _MACHINE_AT + 2] = _AARCH64.to_bytes(2, "little")
    (package / compiled.name).write_bytes(content)
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ["-c", "import rsllm; rsllm.load('m.gguf')"],
        ["-c", "import rsllm; rsllm.gguf"],
        ["-m", "rsllm", "doctor"],
        ["-m", "rsllm", "show", "m.gguf"],
    ],
    ids=["load", "gguf", "doctor", "show"],
)
def test_a_compiled_part_for_another_machine_is_named_with_what_to_do(elsewhere: Path, arguments: list[str]) -> None:
    """PKG-03."""
    (elsewhere / "m.gguf").write_bytes(b"GGUF")
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=elsewhere,
        env={**os.environ, "PYTHONPATH": str(elsewhere)},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 1
    assert "the compiled part of rsllm cannot be loaded by this Python" in done.stderr
    assert "pip install --force-reinstall" in done.stderr
    if arguments[0] == "-m":
        assert "Traceback" not in done.stderr
