"""Which part of the package may import which, and what must not be imported before it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rsllm

PACKAGE = Path(rsllm.__file__).parent
MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def imports(path: Path, *, top_only: bool = False) -> set[str]:
    """Names of modules that a file imports; those of `if TYPE_CHECKING` blocks do not count."""
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse((PACKAGE / path).read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        elif top_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        waiting.extend(ast.iter_child_nodes(node))
    return found


def test_only_system_and_config_ask_which_system_it_is() -> None:
    for path in MODULES:
        if path.name not in ("system.py", "config.py"):
            assert not {"fcntl", "msvcrt", "winreg"} & imports(path), path
            assert "sys.platform" not in (PACKAGE / path).read_text(), path


@pytest.mark.parametrize(
    "module", ["rsllm", "rsllm.cli.main", "rsllm.cli.run", "rsllm.refs.pypi", "rsllm.store.store", "rsllm.store.check"]
)
def test_heavy_modules_wait_until_they_are_needed(module: str) -> None:
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", f"import {module}"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=True,
    )
    imported = {line.rsplit("|", 1)[1].strip() for line in run.stderr.splitlines() if line.startswith("import time:")}
    assert module in imported
    heavy = {"numpy", "jinja2", "rich", "importlib.metadata", "subprocess", "http.client", "zipfile"}
    heavy |= {"cryptography", "httpx2", "starlette", "uvicorn"}
    assert not heavy & imported


def test_every_module_says_what_it_is() -> None:
    for path in MODULES:
        assert ast.get_docstring(ast.parse((PACKAGE / path).read_text())), path
