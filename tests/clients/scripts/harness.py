"""Runs the cases of a client's script, inside the client's own environment, where there is no pytest.

A case is a function `case_<name>`, plain or asynchronous, that raises where something is wrong. `python with_x.py
NAME…` runs those cases; one line of JSON each on standard output says how it went. Only the standard library is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

HOST = os.environ["OLLAMA_HOST"]
URL = f"http://{HOST}"
REGISTRY = os.environ.get("RSLLM_TEST_REGISTRY", "")
MODEL = "smollm2"
# The same weights with other templates and parameters; `tests.clients.live` says which.
TOOLS, CALLER, TWICE, THINKER, ENDLESS = "tools", "caller", "twice", "thinker", "endless"

QUESTION = "What is the capital of France?"
ANSWER = "Paris"
TOO_LONG = "hello there " * 2000
"""Twice the context of the server."""

CASE_SECONDS = 60
IDLE_SECONDS = 10


def main(cases: dict[str, Any]) -> None:
    """Run the cases named on the command line."""
    say = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # some clients print
        for name in sys.argv[1:]:
            began = time.monotonic()
            detail = _run(cases[f"case_{name}"])
            line = {"case": name, "detail": detail, "seconds": round(time.monotonic() - began, 2)}
            print(json.dumps(line), file=say, flush=True)


def _run(case: Callable[[], Any]) -> str | None:
    """What went wrong."""

    def late(number: int, frame: Any) -> None:
        raise TimeoutError(f"the case took longer than {CASE_SECONDS} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(CASE_SECONDS)
    try:
        if asyncio.iscoroutinefunction(case):
            asyncio.run(case())
        else:
            case()
    except BaseException:
        return traceback.format_exc(limit=-12)
    finally:
        signal.alarm(0)
    return None


class raises:
    """`with raises(Error) as caught:` — the error must come; `caught.error` is it afterwards."""

    error: Any

    def __init__(self, *kinds: type[BaseException]) -> None:
        self._kinds = kinds

    def __enter__(self) -> raises:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if error is None:
            raise AssertionError(f"no {' or '.join(kind.__name__ for kind in self._kinds)} was raised")
        self.error = error
        return isinstance(error, self._kinds)


def get(path: str) -> Any:
    """What the server answers to a GET, without any client."""
    with urllib.request.urlopen(URL + path, timeout=30) as response:
        return json.load(response)


def post(path: str, **body: Any) -> Any:
    """What the server answers to a POST, without any client."""
    request = urllib.request.Request(URL + path, json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def working() -> int:
    """How many sequences the server has, running and queued."""
    return sum(model["running"] + model["queued"] for model in get("/api/ps")["models"])


def wait_until_idle() -> None:
    """Return when the server has nothing to do; fail if it goes on with what nobody waits for."""
    deadline = time.monotonic() + IDLE_SECONDS
    while working():
        if time.monotonic() > deadline:
            raise AssertionError(f"the server still works: {get('/api/ps')}")
        time.sleep(0.02)


@contextlib.contextmanager
def cancelling() -> Iterator[None]:
    """What is begun inside must be running at the end of the block, or be gone soon after it without a word."""
    wait_until_idle()
    yield
    wait_until_idle()
    reply = post("/api/generate", model=MODEL, prompt="hi", stream=False, options={"num_predict": 1})
    assert reply["done"], reply
