"""The numerics contract on the real models: `python -m tests.bit_equality [--quick]`.

The same prompts are answered alone, in a batch of 16, with one thread and two, and behind prompts that are cut anyhow;
token ids, log-probabilities and logits must agree to the bit. Prints a line each; exit status 1 where one differs.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy

import rsllm
from tests.support import assets

__all__ = ["Check", "checks"]

_TOPICS = ("cats", "rain", "bread", "music", "glass", "trains", "salt", "wind")
_TEXT = "Sentence {} of a long text about {}: 東京, Москва, 😀, and f(x) = x**2."


class Check(NamedTuple):
    """One comparison: what was compared, how many numbers, and how many differ."""

    what: str
    numbers: int
    different: int


def checks(path: Path, *, quick: bool = False) -> Iterator[Check]:
    """All comparisons on one model; `quick` ones take half a minute on two cores."""
    prompts = _prompts(quick)
    options: dict[str, Any] = {"max_tokens": 12 if quick else 40, "logprobs": 8, "temperature": 0.0, "ignore_eos": True}
    with rsllm.load(path, context=4096, threads=1) as one:
        alone = [_numbers(one.generate(prompt, **options)) for prompt in prompts]
        ids = one.tokenize("\n".join(prompts))[: 200 if quick else 600]
        logits = one.logits(ids)
    for threads in (1, 2):
        with rsllm.load(path, context=4096, threads=threads) as model:
            with ThreadPoolExecutor(len(prompts)) as callers:
                together = list(callers.map(lambda prompt: _numbers(model.generate(prompt, **options)), prompts))
            most = max(most or 64 for most, steps in model.metrics()["batch_sizes"] if steps)
            yield _compare(f"{len(prompts)} at once (up to {most} a step), {threads} threads", alone, together)
            again = [_numbers(model.generate(prompt, **options)) for prompt in prompts]
            yield _compare(f"alone after company, {threads} threads", [a[0] for a in alone], [a[0] for a in again])
            yield _same(f"logits, {threads} threads", logits, model.logits(ids))
            for cut in _cuts(len(ids)):
                yield _same(f"logits of the first {cut}, {threads} threads", logits[:cut], model.logits(ids[:cut]))


def _prompts(quick: bool) -> list[str]:
    lengths = [1, 2, 3, 1] * 3 + ([1, 2, 1, 12] if quick else [1, 2, 20, 60])
    topics = _TOPICS + _TOPICS[::-1]
    return [f"{i}. " + " ".join(_TEXT.format(n, topic) for n in range(lengths[i])) for i, topic in enumerate(topics)]


def _cuts(length: int) -> list[int]:
    return sorted(random.Random(7).sample(range(1, length), 4))


def _numbers(reply: rsllm.Reply) -> list[Any]:
    assert reply.logprobs is not None
    return [(at.id, at.logprob, [rival.logprob for rival in at.top]) for at in reply.logprobs]


def _compare(what: str, expected: list[Any], found: list[Any]) -> Check:
    return Check(what, len(expected), sum(a != b for a, b in zip(expected, found, strict=True)))


def _same(what: str, expected: numpy.ndarray[Any, Any], found: numpy.ndarray[Any, Any]) -> Check:
    return Check(what, expected.size, int((expected.view(numpy.uint32) != found.view(numpy.uint32)).sum()))


def main(arguments: list[str] | None = None) -> int:
    """Compare and print; 0 if all agree."""
    parser = argparse.ArgumentParser(prog="python -m tests.bit_equality", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter texts")
    parser.add_argument("models", nargs="*", type=Path, help="GGUF files; default: both real models")
    parsed = parser.parse_args(arguments)
    failed = False
    for path in parsed.models or [assets.smollm2_path(), assets.gemma3_path()]:
        for check in checks(path, quick=parsed.quick):
            failed |= check.different > 0
            verdict = "equal" if check.different == 0 else f"{check.different} DIFFER"
            print(f"{path.name}: {check.what}: {check.numbers} compared, {verdict}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
