"""Every family and weight type against the reference engine, on tiny random models and every instruction set.

F32 models must agree to the last digits. Quantised ones are measured from their F32 twin, as normalised mean squared
error of the logits: prefill by a fixed bound, decode by the reference engine's own error in the same run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType

from rsllm._core import cpu_info
from tests.support import tiny_models
from tests.support.fidelity import rsllm_logits
from tests.support.reference import Reference
from tests.support.twin import write_twin

ISAS: list[str] = cpu_info()["available_isas"]
# Longer than the tiny sliding window, with bytes the vocabularies have no piece for.
TEXT = "the rain in another town and the sea, 1234; Вода! def f(x): return x"
# The reference engine's F32 runs differ by 1e-12 between batch sizes, by 1e-10 for gemma3.
EXACT = 1e-9
# The reference engine looks GELU up in a table of f16 values, which no exact engine repeats.
EXACT_WITH_GELU = 3e-7
# Activations rounded to bf16, and KV to f16.
PREFILL = 3e-4
# One text of a tiny model is a small sample of the noise.
DECODE_FACTOR = 1.3

pytestmark = [pytest.mark.reference, pytest.mark.timeout(180)]


@dataclass(frozen=True)
class Case:
    """A tiny model, its exact logits, and the reference engine's own error on it."""

    path: Path
    ids: list[int]
    exact: npt.NDArray[np.float32]
    own_error: float


@pytest.fixture(scope="module")
def measure(tmp_path_factory: pytest.TempPathFactory, reference_python: Path) -> Callable[[Path], Case]:
    folder = tmp_path_factory.mktemp("twins")

    def run(path: Path) -> Case:
        twin = folder / path.name
        write_twin(path, twin)
        with Reference(twin, kv_type="f32", context=256) as engine:
            ids = engine.tokenize(TEXT, add_special=True)
            exact = engine.logits(ids)
        with Reference(path, context=256) as engine:
            own = engine.logits(ids, prompt=1)
        return Case(path, ids, exact, error(exact, own))

    return run


@pytest.mark.parametrize("name", tiny_models.SHAPES)
def test_f32_logits_of_a_family_equal_the_reference(name: str, tmp_path: Path, measure: Callable[[Path], Case]) -> None:
    case = measure(tiny_models.write(tmp_path / f"{name}.gguf", tiny_models.SHAPES[name]))
    bound = EXACT_WITH_GELU if name == "gemma3" else EXACT
    for isa in ISAS:
        prefill = rsllm_logits(case.path, case.ids, isa=isa, phase="prefill", kv_type="f32")
        decode = rsllm_logits(case.path, case.ids, isa=isa, phase="decode", kv_type="f32")
        assert error(case.exact, prefill) < bound, (isa, "prefill")
        assert error(case.exact, decode) < bound, (isa, "decode")


@pytest.mark.parametrize("weight_type", tiny_models.WEIGHT_TYPES, ids=lambda kind: kind.name)
def test_logits_of_a_weight_type_stay_near_its_twin(
    weight_type: GGMLQuantizationType, tmp_path: Path, measure: Callable[[Path], Case]
) -> None:
    path = tiny_models.write(tmp_path / f"{weight_type.name}.gguf", tiny_models.QUANTISED, weight_type)
    check_quantised(measure(path))


@pytest.mark.parametrize(
    "weight_type", [GGMLQuantizationType.Q4_K, GGMLQuantizationType.Q8_0], ids=lambda kind: kind.name
)
def test_logits_of_quantised_experts_stay_near_their_twin(
    weight_type: GGMLQuantizationType, tmp_path: Path, measure: Callable[[Path], Case]
) -> None:
    path = tiny_models.write(tmp_path / f"moe-{weight_type.name}.gguf", tiny_models.QUANTISED_MOE, weight_type)
    check_quantised(measure(path))


def check_quantised(case: Case) -> None:
    for isa in ISAS:
        prefill = error(case.exact, rsllm_logits(case.path, case.ids, isa=isa, phase="prefill"))
        decode = error(case.exact, rsllm_logits(case.path, case.ids, isa=isa, phase="decode"))
        assert prefill < PREFILL, isa
        assert decode < DECODE_FACTOR * case.own_error, isa


def error(exact: npt.NDArray[np.float32], got: npt.NDArray[np.float32]) -> float:
    """Mean squared error over the mean square of the exact values."""
    assert exact.shape == got.shape
    return float(np.square(got - exact, dtype=np.float64).mean() / np.square(exact, dtype=np.float64).mean())
