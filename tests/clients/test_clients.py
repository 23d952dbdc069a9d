"""Each case of each client's script as a test: `-k ollama:chat_stream`, `-k npm-openai`."""

from __future__ import annotations

import shutil

import pytest

from tests.clients import environments
from tests.clients.scripted import Outcomes, cases
from tests.support.registry import MISSING

# A script runs within its first test: all its cases, and where it is not there yet its environment.
pytestmark = [pytest.mark.real_model, pytest.mark.timeout(600)]

NO_REGISTRY = pytest.mark.skipif(shutil.which("docker-registry") is None, reason=MISSING)
NO_NODE = pytest.mark.skipif(environments.node() is None, reason=environments.NODE_MISSING)


def parameters(client: str) -> list[object]:
    def marks(case: str) -> list[pytest.MarkDecorator]:
        return [*([NO_NODE] if client.startswith("npm-") else []), *([NO_REGISTRY] if case == "registry" else [])]

    return [pytest.param(client, case, id=f"{client}:{case}", marks=marks(case)) for case in cases(client)]


@pytest.mark.parametrize(("client", "case"), [each for client in environments.VERSIONS for each in parameters(client)])
def test_client(client: str, case: str, outcomes: Outcomes) -> None:
    wrong = outcomes.of(client, case)
    if wrong is not None:
        pytest.fail(wrong, pytrace=False)
