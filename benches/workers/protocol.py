"""What every benchmark worker speaks: JSON lines, one request and one reply at a time.

A worker is a process of one engine in that engine's own environment, so this module needs the standard library alone.
An engine is a class with `load`, `prefill` and `decode`, each of which times itself: pipes and JSON are never in a
figure. One that batches requests may have `streams` too.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from typing import Any, Protocol


class Engine(Protocol):
    """What `compare.py` asks of an engine. Times are wall-clock seconds."""

    def load(self, model: str, threads: int, context: int) -> dict[str, Any]:
        """Loads the model until it could answer. Returns `version` and what else is worth a note.

        A token is generated behind it, and the time to its end noted too: what is only mapped must be read by then.
        """

    def prefill(self, tokens: int) -> dict[str, Any]:
        """Computes a prompt of about `tokens` tokens from nothing. Returns `seconds` and the true `tokens`."""

    def decode(self, tokens: int, depth: int) -> dict[str, Any]:
        """Generates `tokens` one by one after `depth` others. Returns `seconds` of the generation, and `tokens`."""


def serve(engine: Engine) -> None:
    """Answers requests until the input ends. Whatever the engine prints goes to standard error."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        call = request.pop("call")
        try:
            if call == "load":
                start = time.perf_counter()
                answer = engine.load(**request)
                answer["seconds"] = time.perf_counter() - start
                engine.decode(tokens=1, depth=0)
                answer["first_token_seconds"] = time.perf_counter() - start
            else:
                answer = getattr(engine, call)(**request)
            reply = {"ok": answer | {"memory": memory()}}
        except Exception:
            reply = {"error": traceback.format_exc()}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def memory() -> dict[str, int]:
    """Resident bytes of this process: its own, and those of mapped files."""
    with open("/proc/self/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    return {
        "anonymous": int(fields["RssAnon"].split()[0]) * 1024,
        "mapped": int(fields["RssFile"].split()[0]) * 1024,
    }


def token_ids(n: int, vocab_size: int) -> list[int]:
    """The same `n` ids for every engine: spread over the vocabulary, so that no cache of rows helps."""
    low = min(1000, vocab_size // 4)
    return [low + (i * 7919 + 17) % (vocab_size - 2 * low) for i in range(n)]
