"""The fidelity bounds on SmolLM2 over 256 positions, on every instruction set of this machine; 64 for scalar code.

`tests/fidelity.py` does the same on both real models over 1,024 positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import rsllm
from rsllm._core import cpu_info
from tests.support.fidelity import PREFILL_BOUND, TWIN_BOUND, Yardstick, yardstick
from tests.support.reference import Reference

POSITIONS = 256
SCALAR_POSITIONS = 64
ISAS: list[str] = cpu_info()["available_isas"]
PROMPTS = ("The capital of France is", "def fibonacci(n):\n", "Вода кипит при температуре", "1, 2, 3, 4, 5,")

pytestmark = [pytest.mark.reference, pytest.mark.real_model, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def whole(smollm2_path: Path, reference_python: Path) -> Iterator[Yardstick]:
    with yardstick(smollm2_path, POSITIONS) as measure:
        yield measure


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def exact(whole: Yardstick, isa: str) -> Yardstick:
    return whole.head(SCALAR_POSITIONS) if isa == "scalar" else whole


def test_prefill_of_the_twin_is_exact(exact: Yardstick, isa: str) -> None:
    found = exact.measure(isa, "prefill", of="twin")
    assert not found.misses(TWIN_BOUND), found


def test_decode_of_the_twin_is_exact(exact: Yardstick, isa: str) -> None:
    found = exact.measure(isa, "decode", of="twin")
    assert not found.misses(TWIN_BOUND), found


def test_prefill_of_the_file_is_near_its_twin(exact: Yardstick, isa: str) -> None:
    found = exact.measure(isa, "prefill")
    assert not found.misses(PREFILL_BOUND), found


def test_decode_of_the_file_is_no_noisier_than_the_reference(exact: Yardstick, isa: str) -> None:
    found = exact.measure(isa, "decode")
    assert not found.misses(exact.decode_bound), (found, exact.reference)


def test_greedy_text_of_smollm2_follows_the_reference(smollm2_path: Path, reference_python: Path) -> None:
    check_greedy(smollm2_path)


def test_greedy_text_of_gemma3_follows_the_reference(gemma3_path: Path, reference_python: Path) -> None:
    check_greedy(gemma3_path)


def check_greedy(path: Path, *, max_tokens: int = 32, clear_margin: float = 0.6) -> None:
    """The same tokens as the reference up to its first near tie; both engines round, so a tie may go either way."""
    model = rsllm.load(str(path), context=512)
    with Reference(path, context=512) as reference:
        for prompt in PROMPTS:
            ids = model.tokenize(prompt, add_special=True)
            assert ids == reference.tokenize(prompt, add_special=True)
            wanted, margins = reference.greedy(ids, max_tokens)
            got = list(model.generate(prompt, max_tokens=max_tokens, temperature=0).tokens)
            near_ties = np.flatnonzero(np.asarray(margins) <= clear_margin)
            certain = int(near_ties[0]) if len(near_ties) else len(wanted)
            assert got[:certain] == wanted[:certain], prompt
