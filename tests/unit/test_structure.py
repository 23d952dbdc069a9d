"""The arrows between crates and between parts of the Python package, as ARCHITECTURE.md draws them.

A new arrow fails here until it is added to a table below, so that it is a decision and not an accident.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "python" / "rsllm"

CRATES: dict[str, set[str]] = {
    "rsllm-quant": set(),
    "rsllm-gguf": {"rsllm-quant"},
    "rsllm-tokenizer": {"rsllm-gguf"},
    "rsllm-tensor": {"rsllm-quant"},
    "rsllm-cpu": {"rsllm-tensor", "rsllm-quant"},
    "rsllm-model": {"rsllm-gguf", "rsllm-tensor", "rsllm-quant"},
    "rsllm-engine": {"rsllm-gguf", "rsllm-tokenizer", "rsllm-tensor", "rsllm-model", "rsllm-cpu", "rsllm-quant"},
    "rsllm-py": {"rsllm-engine", "rsllm-tokenizer", "rsllm-gguf", "rsllm-quant"},
}
# Measures the crates, and nothing depends on it.
MEASURING_CRATES = {"rsllm-benches"}
PYTHON_CRATE = "rsllm-py"

# Part of the package -> the parts it may import when it runs. Imports for type checking alone are free.
PARTS: dict[str, set[str]] = {
    "errors": set(),
    "system": {"errors"},
    "pages": {"system"},
    "durations": set(),
    "config": {"durations", "errors"},
    "options": {"errors"},
    "ranking": set(),
    "streams": {"errors"},
    "control": set(),
    "gguf": {"_core", "errors"},
    "shards": {"errors", "gguf"},
    "chat": {"control", "errors", "options", "streams"},
    "store": {"_core", "config", "errors", "gguf", "pages", "shards", "system"},
    "registry": {"config", "errors", "gguf", "pages", "refs", "shards", "store", "system"},
    "refs": {"config", "errors", "gguf", "pages", "store", "system"},
    "runner": {"_core", "config", "control", "durations", "errors", "streams", "system"},
    "machine": {"_core", "errors", "system"},
    "model": {"_core", "chat", "config", "errors", "options", "ranking", "refs", "streams", "system"},
    "__init__": {"_core", "errors", "gguf", "model", "streams"},
    "__main__": {"cli"},
    # What the server and the commands share is the protocol between them: HTTP.
    "address": {"errors"},
    "typed": {"config"},
    "client": {"address", "config", "durations", "errors", "store", "typed"},
    "server": {
        "__init__", "_core", "address", "chat", "config", "control", "durations", "errors", "gguf", "machine",
        "options", "refs", "registry", "runner", "store", "streams", "system", "typed",
    },
    "cli": {
        "__init__", "address", "client", "config", "durations", "errors", "gguf", "machine", "model", "options", "refs",
        "registry", "server", "shards", "store", "streams", "system",
    },
}  # fmt: skip
# What the package may import from outside itself; the standard library is free.
DEPENDENCIES = {
    "backports", "click", "compression", "cryptography", "httpx2", "jinja2", "numpy", "opentelemetry",
    "prometheus_client", "rich", "starlette", "uvicorn",
}  # fmt: skip
ONLY_IN = {
    "backports": {"server"},
    "click": {"cli"},
    "cryptography": {"registry"},
    "httpx2": {"client", "registry"},
    "jinja2": {"chat"},
    "opentelemetry": {"server"},
    "prometheus_client": {"server"},
    "rich": {"cli"},
    "starlette": {"server"},
    "uvicorn": {"server"},
}

# Within the runner: what decides is pure, what talks knows no decisions, and the core is the child's alone.
RUNNER: dict[str, set[str]] = {
    "protocol": set(),
    "faults": {"protocol"},
    "pieces": set(),
    "plan": set(),
    "deadline": set(),
    "policy": {"plan"},
    "watch": set(),
    "child": {"faults", "pieces", "plan", "protocol", "watch"},
    "process": {"child", "pieces", "plan", "protocol", "watch"},
    "worker": {"faults", "pieces", "protocol"},
    "scheduler": {"plan", "policy"},
    "effects": {"child", "plan", "process", "scheduler"},
    "pool": {"child", "deadline", "effects", "policy", "process", "scheduler", "watch"},
    "__init__": set(),
}
RUNNER_CORE = {"worker"}
PURE = {"policy", "scheduler", "plan", "watch"}


def test_crates_depend_only_along_the_drawn_arrows() -> None:
    found = crate_dependencies()
    assert set(found) - MEASURING_CRATES == set(CRATES)
    new = {name: needs - CRATES[name] for name, needs in found.items() if name in CRATES and needs - CRATES[name]}
    assert not new, f"new arrows: {new}"


def test_only_one_crate_knows_python() -> None:
    users = {package["name"] for package in packages() if "pyo3" in names(package)}
    assert users == {PYTHON_CRATE}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_python_parts_import_only_along_the_drawn_arrows(path: Path) -> None:
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    allowed = PARTS[part]
    inside, outside = imports(path)
    assert inside - {part} <= allowed, f"new arrows from {part}"
    assert outside <= DEPENDENCIES, f"new dependency in {part}"
    for dependency in outside & ONLY_IN.keys():
        assert part in ONLY_IN[dependency], f"{dependency} is for {ONLY_IN[dependency]} alone"


@pytest.mark.parametrize("path", sorted((PACKAGE / "runner").glob("*.py")), ids=lambda path: path.stem)
def test_the_runner_is_layered(path: Path) -> None:
    modules = {module for module, _ in imported(ast.parse(path.read_text(encoding="utf-8")))}
    siblings = {module.removeprefix("rsllm.runner.") for module in modules if module.startswith("rsllm.runner.")}
    assert siblings <= RUNNER[path.stem]
    inside, outside = imports(path)
    assert not outside, "the runner needs the standard library alone, and no web framework"
    assert "_core" not in inside or path.stem in RUNNER_CORE
    if path.stem in PURE:
        assert not {"asyncio", "os", "subprocess", "socket", "threading", "time"} & modules


def crate_dependencies() -> dict[str, set[str]]:
    """Workspace crates and what each needs of the others, leaving out what only its tests need."""
    members = {package["name"] for package in packages()}
    return {package["name"]: names(package) & members for package in packages()}


def packages() -> list[dict]:
    done = subprocess.run(
        ["cargo", "metadata", "--no-deps", "--format-version", "1", "--offline"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    return json.loads(done.stdout)["packages"]


def names(package: dict) -> set[str]:
    return {dependency["name"] for dependency in package["dependencies"] if dependency["kind"] != "dev"}


def imports(path: Path) -> tuple[set[str], set[str]]:
    """Parts of the package, and packages beyond the standard library, that a module imports when it runs."""
    inside, outside = set(), set()
    for module, name in imported(ast.parse(path.read_text(encoding="utf-8"))):
        head, _, rest = module.partition(".")
        if head == "rsllm":
            # `from rsllm import _core` names a part; `from rsllm import load` is the package itself.
            part = rest.partition(".")[0] or (name if name in PARTS or name == "_core" else "__init__")
            inside.add(part)
        elif head not in sys.stdlib_module_names:
            outside.add(head)
    return inside, outside


def imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    """(module, name) of each import under `node`, except those for type checking."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.Import):
            yield from ((alias.name, "") for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            yield from ((child.module or "", alias.name) for alias in child.names)
        yield from imported(child)


# Tables of what is described; the others do things.
DESCRIPTIONS = {"openapi_schemas.py"}
SERVER_LINES = 42


@pytest.mark.parametrize("path", sorted((PACKAGE / "server").rglob("*.py")), ids=lambda path: path.stem)
def test_handlers_and_what_they_call_fit_a_screen(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = {node.name for node in functions if (node.end_lineno or 0) - node.lineno + 1 > SERVER_LINES}
    assert not long or path.name in DESCRIPTIONS
