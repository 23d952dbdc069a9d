"""Scripts of clients, run in their own environments; what the cases in them are called, and how they went."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from pathlib import Path

from tests.clients import environments
from tests.clients.live import Live

__all__ = ["Outcomes", "cases"]

SCRIPTS = Path(__file__).parent / "scripts"
_SCRIPT_SECONDS = 240
_JAVASCRIPT_CASE = re.compile(r"^export async function case_(\w+)\(", re.MULTILINE)


def script(client: str) -> Path:
    """The script of a client. `npm-x` is JavaScript."""
    if client.startswith("npm-"):
        return SCRIPTS / f"with_{client.removeprefix('npm-')}.mjs"
    return SCRIPTS / f"with_{client.replace('-', '_')}.py"


def cases(client: str) -> list[str]:
    """The names of a client's cases, in the order of the script, which is not run for that."""
    text = script(client).read_text(encoding="utf-8")
    if client.startswith("npm-"):
        return _JAVASCRIPT_CASE.findall(text)
    functions = (node for node in ast.parse(text).body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return [function.name.removeprefix("case_") for function in functions if function.name.startswith("case_")]


class Outcomes:
    """How the cases of each client went: `None`, or what was wrong."""

    def __init__(self, live: Live, wanted: dict[str, list[str]], folder: Path) -> None:
        self._live = live
        self._wanted = wanted
        self._folder = folder
        self._found: dict[str, dict[str, str | None]] = {}

    def of(self, client: str, case: str) -> str | None:
        """What was wrong with a case; the client's script is run when it is first asked about."""
        if client not in self._found:
            self._found[client] = self._run(client)
        return self._found[client][case]

    def _run(self, client: str) -> dict[str, str | None]:
        wanted = self._wanted[client]
        command = [*self._interpreter(client), *wanted]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                env=self._live.environment,
                timeout=_SCRIPT_SECONDS,
            )
            output, said, status = done.stdout, done.stderr, str(done.returncode)
        except subprocess.TimeoutExpired as late:
            output, said = (_text(late.stdout), _text(late.stderr))
            status = f"a timeout of {_SCRIPT_SECONDS} s"
        found: dict[str, str | None] = dict.fromkeys(
            wanted, f"the case did not come to its end; its script ended with {status}:\n{said[-4000:]}"
        )
        for line in output.splitlines():
            told = json.loads(line)
            found[told["case"]] = told["detail"]
        return found

    def _interpreter(self, client: str) -> list[str]:
        if not client.startswith("npm-"):
            return [str(environments.python_of(client)), str(script(client))]
        node = environments.node()
        assert node is not None
        # Modules are looked up beside the script.
        for source in SCRIPTS.glob("*.mjs"):
            (self._folder / source.name).write_bytes(source.read_bytes())
        modules = self._folder / "node_modules"
        if not modules.exists():
            modules.symlink_to(environments.node_modules(), target_is_directory=True)
        return [node, str(self._folder / script(client).name)]


def _text(output: bytes | str | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""
