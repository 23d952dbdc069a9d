"""Throws mutated input at the readers of the store: names, digests, Modelfiles, manifests, requests to create.

    python -m tests.fuzz_store                          every target, ten seconds each
    python -m tests.fuzz_store --target modelfile --seconds 600 --seed 7

Inputs are mutations of a few good ones; one that reaches new lines of the store's code is kept and mutated further. A
reader may refuse what it does not like, with an error of its own kind; any other exception, a reading that takes longer
than a second, or a value that does not read back as itself, ends the run with the input printed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import rsllm.store
from rsllm.errors import DigestError, ManifestError, ModelfileError, ModelNameError, RsllmError
from rsllm.store.digest import Digest
from rsllm.store.manifest import Manifest, MediaType
from rsllm.store.modelfile import parse
from rsllm.store.name import ModelName
from rsllm.store.request import CreateRequest

__all__ = ["TARGETS", "fuzz"]

LONGEST = 4096
SLOW_SECONDS = 1.0
_PACKAGE = str(Path(rsllm.store.__file__).parent)
_DIGEST = "sha256:" + "0123456789abcdef" * 4
_WORDS = [
    *(b"FROM ", b"PARAMETER ", b"MESSAGE ", b"SYSTEM ", b"TEMPLATE ", b"LICENSE ", b"REQUIRES ", b"stop ", b"user "),
    *(b'"""', b'"', b"\n", b"\r\n", b"\0", b"# rsllm: the next value is JSON\n", "é".encode()),
    *(b"\xff\xfe", b"\xef\xbb\xbf"),
    *(b"://", b"/", b":", b"..", b"@", _DIGEST.encode(), b"registry.ollama.ai", b"latest", b"9" * 30, b"-1", b"1e999"),
    *(b"{", b"}", b"[", b"]", b"null", b'"digest"', b'"size"', b'"layers"', b'"config"', b"\\u0000", b"\\ud800"),
]  # fmt: skip


def name(data: bytes) -> None:
    """A name that is read is written as one that reads as the same."""
    read = ModelName.parse(data.decode(errors="surrogateescape"))
    for text in (read.full, read.short):
        assert ModelName.parse(text).key == read.key, text
    assert ".." not in read.parts


def digest(data: bytes) -> None:
    """A digest is 64 digits and no path."""
    read = Digest.parse(data.decode(errors="surrogateescape"))
    assert Digest.parse(str(read)) == Digest.parse(read.file_name) == read
    assert "/" not in read.file_name


def modelfile(data: bytes) -> None:
    """A Modelfile that is read is written as one with the same instructions."""
    read = parse(data)
    assert parse(str(read)).instructions == read.instructions


def manifest(data: bytes) -> None:
    """A manifest keeps its bytes, and one that is built of its layers reads as them."""
    read = Manifest.parse(data)
    assert read.raw == data
    built = Manifest.build(read.config, read.layers)
    assert (Manifest.parse(built.raw).layers, built.config) == (read.layers, read.config)


def request(data: bytes) -> None:
    """A request to create is an object with members of the right kinds."""
    try:
        members = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(members, dict):
        CreateRequest.from_dict(members).check()


TARGETS: dict[str, tuple[Callable[[bytes], None], tuple[type[RsllmError], ...], list[bytes]]] = {
    "name": (name, (ModelNameError,), [b"llama3.2", b"http://host:5000/ns/model:tag", b"hf.co/org/repo:Q4_K_M"]),
    "digest": (digest, (DigestError,), [_DIGEST.encode(), _DIGEST.replace(":", "-").encode()]),
    "modelfile": (
        modelfile,
        (ModelfileError,),
        [
            b'FROM ./m.gguf\nSYSTEM """Be\nnice."""\nPARAMETER stop "<|im_end|>"\nPARAMETER temperature 0.7\n',
            b"# a comment\nfrom llama3.2\nTEMPLATE {{ .Prompt }}\nMESSAGE user hi\nLICENSE MIT\nREQUIRES 0.14.0",
            'FROM x\nSYSTEM "é"'.encode("utf-16"),
        ],
    ),
    "manifest": (
        manifest,
        (ManifestError,),
        [
            json.dumps(
                {
                    "schemaVersion": 2,
                    "config": {"mediaType": MediaType.CONFIG, "digest": _DIGEST, "size": 1},
                    "layers": [{"mediaType": MediaType.MODEL, "digest": _DIGEST, "size": 2, "from": "a", "name": "t"}],
                }
            ).encode(),
            b'{"layers":[]}',
        ],
    ),
    "request": (
        request,
        (RsllmError,),
        [
            json.dumps(
                {
                    "from": "tiny", "files": {"m.gguf": _DIGEST}, "adapters": {"a": _DIGEST}, "license": ["MIT", "x"],
                    "parameters": {"stop": ["a"], "num_ctx": 1}, "messages": [{"role": "user", "content": "hi"}],
                    "template": "{{ .Prompt }}", "system": "s", "quantize": "", "requires": "1.0",
                }
            ).encode()
        ],
    ),
}  # fmt: skip


def fuzz(target: str, seconds: float, seed: int) -> tuple[int, int]:
    """Run one target; how many inputs were tried, and how many were kept. Raises `AssertionError` with the input."""
    read, refusals, corpus = TARGETS[target]
    chance, seen, tried = random.Random(seed), set[tuple[str, int]](), 0
    corpus = list(corpus)
    for data in corpus:
        seen |= reached(read, refusals, data)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        data = mutated(chance, corpus)
        lines = reached(read, refusals, data)
        tried += 1
        if not lines <= seen:
            seen |= lines
            corpus.append(data)
    return tried, len(corpus)


def reached(read: Callable[[bytes], None], refusals: tuple[type[RsllmError], ...], data: bytes) -> set[tuple[str, int]]:
    """The lines of the store that an input leads through."""
    begin = time.monotonic()
    with traced() as lines:
        try:
            read(data)
        except refusals:
            pass
        except BaseException as error:
            raise AssertionError(f"{type(error).__name__}: {error}: for {data!r}") from error
    taken = time.monotonic() - begin
    assert taken < SLOW_SECONDS, f"it took {taken:.1f} s to read {data!r}"
    return lines


@contextmanager
def traced() -> Iterator[set[tuple[str, int]]]:
    """Collect the lines of the store that run."""
    lines: set[tuple[str, int]] = set()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(_PACKAGE):
            return None
        if event == "line":
            lines.add((file, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(before)


def mutated(chance: random.Random, corpus: list[bytes]) -> bytes:
    """One of the corpus with a few changes: bytes, words of the formats, pieces doubled, cut, or of another one."""
    data = bytearray(chance.choice(corpus))
    for _ in range(chance.randint(1, 5)):
        at = chance.randint(0, len(data))
        to = min(len(data), at + chance.randint(0, 16))
        kind = chance.randrange(6)
        if kind == 0:
            data[at:at] = chance.choice(_WORDS)
        elif kind == 1:
            data[at:to] = b""
        elif kind == 2 and at < len(data):
            data[at] = chance.randrange(256)
        elif kind == 3:
            data[at:at] = data[at:to] * chance.randint(1, 20)
        elif kind == 4:
            other = chance.choice(corpus)
            data[at:to] = other[chance.randint(0, len(other)) :][:64]
        else:
            data[at:to] = chance.choice(_WORDS)
    return bytes(data[:LONGEST])


def main() -> int:
    """Run the targets."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz_store", description=__doc__.split("\n\n")[0])
    parser.add_argument("--target", choices=sorted(TARGETS), action="append")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    for target in arguments.target or TARGETS:
        tried, kept = fuzz(target, arguments.seconds, arguments.seed)
        print(f"{target}: {tried:,} inputs, {kept} of them kept", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
