"""One live server for all clients, and one run of each client's script with the cases that were asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients import environments
from tests.clients.live import Live, live_server
from tests.clients.scripted import Outcomes


@pytest.fixture(scope="session")
def live(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """`rsllm serve` with its models."""
    with live_server(smollm2_path, tmp_path_factory.mktemp("clients")) as live:
        yield live


@pytest.fixture(scope="session")
def outcomes(live: Live, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """How the cases went; a script runs when its first case is asked for."""
    wanted: dict[str, list[str]] = {}
    for item in request.session.items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if "client" in parameters:
            wanted.setdefault(parameters["client"], []).append(parameters["case"])
    return Outcomes(live, wanted, tmp_path_factory.mktemp("scripts"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Which versions were there, and how many cases of each passed."""
    counts: dict[str, list[int]] = {}
    for kind in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(kind, []):
            if report.nodeid.startswith("tests/clients/") and (kind == "error" or report.when == "call"):
                client = report.nodeid.partition("[")[2].partition(":")[0]
                if client in environments.VERSIONS:
                    counts.setdefault(client, [0, 0])[kind != "passed"] += 1
    for client, (passed, failed) in counts.items():
        said = f"{passed} passed" + (f", {failed} failed" if failed else "")
        terminalreporter.write_line(f"client {client} {environments.VERSIONS[client]}: {said}")
