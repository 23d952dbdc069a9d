"""Requests that have ended other servers, on a real model: each is refused, and the process that runs it lives on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from tests.e2e.test_server import GREEDY, ask, place, server

__all__ = ["place", "server"]  # fixtures

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(180)]


def pids(url: str) -> set[int]:
    """Of the processes that run models."""
    return {model["pid"] for model in httpx2.get(f"{url}/api/ps").json()["models"]}


@pytest.fixture
def lives_on(server: str) -> Callable[[], None]:
    """Call it after the deed: the same process still answers."""
    ask(server, "generate", prompt="hi", options=GREEDY)
    before = pids(server)

    def check() -> None:
        assert ask(server, "generate", prompt="hi", options=GREEDY)["done"]
        assert pids(server) == before

    return check


DEEP = "(" * 60_000 + '"a"' + ")" * 60_000
CHAIN = "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(5_000)) + 'r5000 ::= "a"\n'


@pytest.mark.parametrize(
    "options",
    [
        {"grammar": f"root ::= {DEEP}"},
        {"grammar": CHAIN},
        {"regex": "(" * 100_000},
        {"regex": "(?<=x)*"},
        {"regex": "(a{1000}){1000}{1000}"},
        {"grammar": "root ::= root"},
        {"grammar": 'root ::= "\xff'},
    ],
    ids=["deep", "chain", "regex", "lookbehind", "counts", "itself", "open"],
)
def test_constraints(server: str, lives_on: Callable[[], None], options: dict[str, Any]) -> None:
    body = {"model": "smollm2", "prompt": "hi", "stream": False, "options": {**GREEDY, **options}}
    response = httpx2.post(f"{server}/api/generate", json=body, timeout=120)
    assert response.status_code in (200, 400), response.text
    if response.status_code == 400:
        assert response.json()["error"]
    lives_on()


def test_a_schema_that_is_deep(server: str, lives_on: Callable[[], None]) -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(90):  # a body may be twice as deep, and no deeper
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    body = {"model": "smollm2", "prompt": "hi", "stream": False, "format": schema, "options": GREEDY}
    response = httpx2.post(f"{server}/api/generate", json=body, timeout=120)
    assert response.status_code in (200, 400), response.text
    lives_on()


def test_a_prompt_beyond_the_limit_of_bodies(server: str, lives_on: Callable[[], None]) -> None:
    body = b'{"model": "smollm2", "prompt": "' + b"\\n" * (33 << 20) + b'"}'
    response = httpx2.post(f"{server}/api/generate", content=body, timeout=120)
    assert response.status_code == 413
    lives_on()


def test_a_prompt_of_one_letter_a_million_times(server: str, lives_on: Callable[[], None]) -> None:
    body = {"model": "smollm2", "prompt": "a" * 1_000_000, "raw": True, "truncate": False, "options": GREEDY}
    response = httpx2.post(f"{server}/api/generate", json=body, timeout=120)
    assert response.status_code == 400
    assert response.json()["prompt_tokens"] > response.json()["context"]
    lives_on()
