"""Fixtures and rules of the whole suite.

Assets come from `tests.support.assets` and are fetched on first use. Tests marked `soak` run long or in full counts
and are left out unless `--soak` is given. Nothing else may be skipped in silence: with `CI` set, a skip whose reason
does not begin with one of `EXPECTED_SKIPS` fails the run.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support import assets

# A shell without job control lets what it starts with `&` ignore Ctrl-C, and children inherit that. The tests of Ctrl-C
# need it to work in theirs: a handler here becomes the default action there.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes is the machine's affair.
settings.register_profile("rsllm", deadline=None)
settings.load_profile("rsllm")

# What a CI machine may lack: how each reason begins.
EXPECTED_SKIPS = ("soak:", "no GPU", "this machine has no ")

unexpected_skips: list[str] = []
said: list[str] = []

# No test may touch the user's own models; children inherit this.
_models = tempfile.TemporaryDirectory(prefix="rsllm-models-")
os.environ["OLLAMA_MODELS"] = _models.name


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="also run the tests marked soak: long, or in full counts")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--soak"):
        return
    for item in items:
        if item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.skip(reason="soak: run with --soak"))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome = yield
    report: pytest.TestReport = outcome.get_result()  # type: ignore[attr-defined]
    if report.skipped and isinstance(report.longrepr, tuple):
        note_skip(report.nodeid, report.longrepr[2])


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):
        note_skip(report.nodeid, report.longrepr[2])


def note_skip(nodeid: str, longrepr: str) -> None:
    reason = longrepr.removeprefix("Skipped: ")
    if not reason.startswith(EXPECTED_SKIPS):
        unexpected_skips.append(f"{nodeid}: {reason}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if os.environ.get("CI") and unexpected_skips and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for skip in unexpected_skips:
        terminalreporter.write_line(f"unexpected skip: {skip}", red=True)
    for line in said:
        terminalreporter.write_line(line)


@pytest.fixture
def say(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Prints a line at the end of the run: for tests that have several forms, which of them it was."""
    name = request.node.name
    return lambda text: said.append(f"{name}: {text}")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1."""
    return assets.smollm2_path()


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M, Q4_K_M."""
    return assets.gemma3_path()


@pytest.fixture(scope="session")
def vocab_dir() -> Path:
    """`ggml-vocab-*.gguf` with `.inp` and `.out`."""
    return assets.vocab_dir()


@pytest.fixture(scope="session")
def templates_dir() -> Path:
    """Real chat templates, `*.jinja`."""
    return assets.templates_dir()


@pytest.fixture(scope="session")
def reference_python() -> Path:
    """The interpreter that has the reference engine; asking for it builds it once."""
    return assets.reference_python()
