"""A runner without a model: the worker with an engine in memory, for all that is not about tokens.

`python -m tests.support.fake_runner --fd N --parent PID` takes as model path `fake:` and a JSON object, the behaviour,
or a file that holds just that, or a GGUF of `fake_models` that has it in its metadata:

    pieces          how many pieces a sequence has (null: as many as max_tokens asks for, or no end)
    text            the text of a piece; each 25th has a full stop behind it
    says            the pieces of a sequence, in place of `pieces` and `text`: texts, or ids of control tokens
    says_in_schema  the same for sequences with a constraint
    delay           seconds between pieces
    step            pieces of all sequences come together, as from an engine, at times that are so many seconds apart
    load_delay      seconds that loading takes
    load_error      loading fails with this message
    load_progress   seconds between signs of life while loading
    crash_at_load   ends the process while loading: an exit code, or a signal's name
    crash_after     ends the process after so many pieces of a sequence, in the same way as `crash_how`
    crash_how       an exit code or a signal's name (default SIGKILL)
    fail_after      a sequence fails after so many pieces
    compile         seconds that a sequence with a schema takes before it begins
    hang_after      after so many pieces the process neither reads nor writes
    ignore_shutdown the process goes on when it is told to end
    flood           at the first sequence: "frames" (a frame that is too large), "noise" (random bytes), "unknown" (a
                    frame of no known type), "steps" (pieces of sequences that nobody started), "log" (a MB of log)
    log             lines written to the log while loading
    plan            members that replace those of the plan; null: no plan
    context         tokens (default 4096, or what is asked for)

Tokens are the bytes of the text. The plan is 1 MB of weights, a kB of KV a token, and 1 MB of scratch.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rsllm.errors import ContextLengthError, ModelError
from rsllm.runner import protocol, worker

ROOT = Path(__file__).parents[2]
VARIED = 25
COMMAND = (sys.executable, str(Path(__file__)))


def fake_path(**behaviour: Any) -> str:
    """The path of a model that behaves so."""
    return "fake:" + json.dumps(behaviour, sort_keys=True)


def crash(how: int | str) -> None:
    sys.stderr.flush()
    if isinstance(how, int):
        os._exit(how)
    os.kill(os.getpid(), signal.Signals[how])
    time.sleep(10)


class FakeCore:
    __version__ = "0.0.fake"

    def plan(self, path: str, options: Mapping[str, Any]) -> dict[str, Any] | None:
        behaviour = read(path)
        changed = behaviour.get("plan", {})
        if changed is None:
            return None
        context = options.get("context") or behaviour.get("context", 4096)
        return {
            "context": context,
            "context_reason": "as requested" if options.get("context") else "the model's limit",
            "training_context": 4096,
            "weight_bytes": 1_000_000,
            "kv_bytes": 1_000 * context,
            "scratch_bytes": 1_000_000,
            **changed,
        }

    def watch(self, fd: int) -> None:
        pass

    def load(self, path: str, options: Mapping[str, Any]) -> FakeEngine:
        behaviour = read(path)
        for line in behaviour.get("log", ()):
            print(line, file=sys.stderr, flush=True)
        due = time.monotonic() + behaviour.get("load_delay", 0)
        while (left := due - time.monotonic()) > 0:
            time.sleep(min(left, behaviour.get("load_progress", left)))
            if "load_progress" in behaviour:
                connection().sendall(protocol.encode(protocol.Progress("loading")))
        if "crash_at_load" in behaviour:
            crash(behaviour["crash_at_load"])
        if "load_error" in behaviour:
            raise ModelError(behaviour["load_error"], hint="take another one")
        return FakeEngine(behaviour, options, self.plan(path, options) or {})


class FakeEngine:
    def __init__(self, behaviour: dict[str, Any], options: Mapping[str, Any], plan: dict[str, Any]) -> None:
        self.behaviour = behaviour
        self.options = options
        self.context = plan.get("context", 4096)
        self.plan = plan

    def info(self) -> dict[str, Any]:
        return {**self.plan, "context": self.context, "vocab_size": 256, "options": dict(self.options)}

    def special_tokens(self) -> dict[str, Any]:
        return {"bos": None, "eos": 0, "eot": None, "add_bos": False, "add_eos": False, "end_of_generation": [0]}

    def tokenize_parts(self, parts: list[tuple[str, bool]], *, add_special: bool = False) -> list[int]:
        return [byte for text, _ in parts for byte in text.encode()]

    def detokenize(self, ids: list[int], *, render_special: bool = True) -> str:
        return bytes(ids).decode(errors="replace")

    def logits(self, ids: list[int]) -> bytearray:
        return bytearray(b"".join(bytes([id % 256]) * 4 * 256 for id in ids))

    def embed(self, inputs: list[list[int]], **options: Any) -> bytearray:
        return bytearray(16 * len(inputs))

    def metrics(self) -> dict[str, Any]:
        used = FakeGeneration.running
        pages = {"pages": self.context, "page_len": 1, "pages_free": self.context - 1 - used, "pages_cached": 1}
        return {"running": used, "batch_sizes": [(1, 3), (None, 2)], **pages}

    def generate(self, ids: list[int], options: dict[str, Any]) -> FakeGeneration:
        if len(ids) >= self.context:
            raise ContextLengthError("the prompt is too long", prompt_tokens=len(ids), context=self.context)
        flood(self.behaviour.get("flood"))
        if options.get("schema"):
            time.sleep(self.behaviour.get("compile", 0))
        return FakeGeneration(self.behaviour, ids, options, self.context)

    def close(self) -> None:
        if self.behaviour.get("ignore_shutdown"):
            time.sleep(3600)


class FakeGeneration:
    running = 0

    def __init__(self, behaviour: dict[str, Any], ids: list[int], options: dict[str, Any], context: int) -> None:
        self.behaviour = behaviour
        self.options = options
        self.prompt = ids
        self.sent = 0
        constrained = any(options.get(name) is not None for name in ("schema", "regex", "grammar"))
        self.says: list[Any] | None = behaviour.get("says_in_schema" if constrained else "says")
        self.said = ""
        self.stop_text: str | None = None
        self.cancelled = threading.Event()
        self.reason: str | None = None
        self.room = context - len(ids)
        self.due = self.next_due()
        self.is_last_step = False
        FakeGeneration.running += 1

    def next_due(self) -> float:
        step = self.behaviour.get("step")
        if step is not None:
            return (time.monotonic() // step + 1) * step
        return time.monotonic() + self.behaviour.get("delay", 0)

    def next_timeout(self, milliseconds: int) -> tuple[str, list[int], list[dict[str, Any]] | None] | bool | None:
        wait = self.due - time.monotonic()
        if self.reason or self.cancelled.wait(max(0.0, min(wait, milliseconds / 1000))):
            return self.end(self.reason or "cancelled")
        if self.due > time.monotonic():
            return False
        if self.sent in (self.behaviour.get("crash_after"), self.behaviour.get("hang_after")):
            if not self.is_last_step:
                # What there is goes out first, however late this process is: who tests relies on those pieces.
                self.is_last_step = True
                return False
            hangs = self.sent == self.behaviour.get("hang_after")
            crash("SIGSTOP" if hangs else self.behaviour.get("crash_how", "SIGKILL"))
        if self.sent == self.behaviour.get("fail_after"):
            self.end("error")
            raise RuntimeError("the fake sequence failed as asked")
        if self.stop_text is not None or self.sent == (
            len(self.says) if self.says is not None else self.behaviour.get("pieces", 4)
        ):
            return self.end("stop")
        if self.sent == self.options.get("max_tokens"):
            return self.end("length")
        if self.sent == self.room and not self.options.get("shift"):
            return self.end("context")
        self.sent += 1
        self.due = self.next_due()
        if self.says is not None:
            return self.say(self.says[self.sent - 1])
        text = self.behaviour.get("text", "ab")
        is_varied = self.sent % VARIED == 0  # or the server would take the model to be stuck
        if is_varied:
            text = f"{text}."
        logprobs = None
        if self.options.get("logprobs") is not None:
            entry = {"id": 97, "text": text, "bytes": text.encode(), "logprob": -0.5}
            logprobs = [{**entry, "top": [{**entry, "logprob": float("-inf")}] * self.options["logprobs"]}]
        return text, list(text.encode())[-1:] if is_varied else list(text.encode())[:1], logprobs

    def say(self, piece: str | int) -> tuple[str, list[int], list[dict[str, Any]] | None]:
        """A piece of what the behaviour prescribes, up to a stop string; a control token has an id and no text."""
        if isinstance(piece, int):
            return "", [piece], None
        whole = self.said + piece
        for stop in self.options.get("stop", ()):
            if stop in whole:
                self.stop_text = stop
                whole = whole.partition(stop)[0]
        text, self.said = whole[len(self.said) :], whole
        logprobs = None
        if self.options.get("logprobs") is not None:
            logprobs = [{"id": 97, "text": piece, "bytes": piece.encode(), "logprob": -0.5}]
        return text, list(piece.encode()), logprobs

    def end(self, reason: str) -> None:
        if self.reason is None:
            FakeGeneration.running -= 1
        self.reason = reason

    def cancel(self) -> None:
        self.cancelled.set()

    def stats(self) -> dict[str, Any]:
        figures = dict.fromkeys(("queue_ns", "prefill_ns", "decode_ns", "first_token_ns", "total_ns"), 1)
        counts = {"prompt_tokens": len(self.prompt), "cached_tokens": 0, "generated_tokens": self.sent, "seed": 7}
        return {"finish_reason": self.reason, "stop_text": self.stop_text, **counts, **figures}


def read(path: str) -> dict[str, Any]:
    if os.path.isfile(path):
        from tests.support.fake_models import behaviour_text  # found once the process knows of this folder

        content = Path(path).read_bytes()
        path = behaviour_text(content) if content.startswith(b"GGUF") else content.decode()
    if not path.startswith("fake:"):
        raise FileNotFoundError(2, "No such file or directory", path)
    behaviour: dict[str, Any] = json.loads(path.removeprefix("fake:"))
    return behaviour


def connection() -> socket.socket:
    number = int(sys.argv[sys.argv.index("--fd") + 1])
    return socket.socket(fileno=os.dup(number))


def flood(kind: str | None) -> None:
    if kind == "log":
        for number in range(10_000):
            print(f"line {number} " + "x" * 100, file=sys.stderr)
        print("y" * 1_000_000, file=sys.stderr, flush=True)
    elif kind == "frames":
        connection().sendall(b"\xff\xff\xff\xff" + bytes(1000))
    elif kind == "noise":
        connection().sendall(b"\0\0\0\x08" + os.urandom(8))
    elif kind == "unknown":
        connection().sendall(b'\0\0\0\x10{"type":"other"}')
    elif kind == "steps":
        piece = protocol.Piece(10**9, "nobody wants this " * 100, [1])
        frame = protocol.encode(protocol.Step([piece] * 10, [protocol.Ended(10**9, stats={})]))
        connection().sendall(frame * 500)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    if (version := os.environ.get("FAKE_PROTOCOL")) is not None:
        worker.PROTOCOL_VERSION = int(version)
    worker.main(core=FakeCore)
