"""Block formats against the `gguf` package, through the Python API: decoders and encoders bit for bit.

Decoders are compared on random bytes, with the f16 scales of a block replaced by edge values (zeros, subnormals,
infinities, NaN) about half the time. Encoders are compared where `gguf` has one, and hold an error bound everywhere.
The Rust tests hold hashes of more: what ggml itself makes of the K-quants.
"""

from __future__ import annotations

from collections.abc import Callable

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rsllm
import rsllm.gguf

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

#: Where the f16 scales and minima of a block start, in bytes; none for the float types.
SCALE_OFFSETS: dict[str, tuple[int, ...]] = {
    "F32": (),
    "F16": (),
    "BF16": (),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
TYPES = list(SCALE_OFFSETS)
#: Types that `gguf` can encode.
ENCODED_BY_GGUF = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]

#: Largest error of one value after a round trip, as a part of its block's range (largest magnitude, or largest minus
#: smallest value). Formats without a minimum cut off one end of the range: a whole step. K-quants round their scales
#: too, and let outliers be worse where that helps the rest.
MAX_ERROR = {
    "F32": 0.0,
    "F16": 0.5 / 1024,
    "BF16": 0.5 / 128,
    "Q4_0": 1 / 8,
    "Q4_1": 0.5 / 15,
    "Q5_0": 1 / 16,
    "Q5_1": 0.5 / 31,
    "Q8_0": 0.5 / 127,
    "Q2_K": 0.75,
    "Q3_K": 0.28,
    "Q4_K": 0.12,
    "Q5_K": 0.06,
    "Q6_K": 0.04,
}
#: Root mean square error on normally distributed values, as a part of theirs; measured, and rounded up.
MAX_RELATIVE_RMSE = {
    "F32": 0.0,
    "F16": 0.0003,
    "BF16": 0.0025,
    "Q4_0": 0.088,
    "Q4_1": 0.080,
    "Q5_0": 0.044,
    "Q5_1": 0.039,
    "Q8_0": 0.0055,
    "Q2_K": 0.305,
    "Q3_K": 0.155,
    "Q4_K": 0.074,
    "Q5_K": 0.038,
    "Q6_K": 0.019,
}
#: What rounding a scale to f16 adds, as a part of the range.
F16_ROUNDING = 2.0**-10
#: Half the smallest f16: what a scale is off by where it is subnormal.
SUBNORMAL_ROUNDING = 2.0**-25
#: What a block's f16 scales are multiplied by at most: codes, scales of sub-blocks, and one for a minimum.
MAX_MULTIPLE = {
    **dict.fromkeys(["F32", "F16", "BF16"], 1),
    **{"Q4_0": 8, "Q4_1": 15 + 1, "Q5_0": 16, "Q5_1": 31 + 1, "Q8_0": 127},
    **{"Q2_K": 15 * (3 + 1), "Q3_K": 32 * 4, "Q4_K": 63 * (15 + 1), "Q5_K": 63 * (31 + 1), "Q6_K": 128 * 32},
}

#: 0, -0, smallest and largest subnormal, smallest normal, 1, largest, infinities, quiet and signalling NaN.
EDGE_HALVES = [
    *(0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x83FF, 0x0400, 0x3C00),
    *(0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0xFE00, 0x7C01, 0xFDFF),
]

#: Other work may share the cores: how long an example takes says nothing.
SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def sizes(name: str) -> tuple[int, int]:
    """Elements and bytes of a block."""
    return gguf.GGML_QUANT_SIZES[GGMLQuantizationType[name]]


@st.composite
def packed_blocks(draw: st.DrawFn, name: str) -> Bytes:
    """One to four blocks of random bytes, with edge values among the scales."""
    block_bytes = sizes(name)[1]
    data = np.frombuffer(draw(st.binary(min_size=block_bytes, max_size=block_bytes)), np.uint8)
    blocks = np.tile(data, (draw(st.integers(1, 4)), 1))
    for block in blocks:
        for offset in SCALE_OFFSETS[name]:
            half = draw(st.none() | st.sampled_from(EDGE_HALVES))
            if half is not None:
                block[offset : offset + 2] = [half & 0xFF, half >> 8]
    return blocks.ravel()


def weights(n: int) -> st.SearchStrategy[Floats]:
    """`n` values within ±1024. None is -0: of several zeros `numpy` may call any the least."""
    words = st.binary(min_size=2 * n, max_size=2 * n)
    scales = st.sampled_from([2.0**-5, 1e-3, 1e-5, 1e-7])
    return st.builds(
        lambda data, scale: np.frombuffer(data, "<i2").astype(np.float32) * np.float32(scale), words, scales
    )


def decoded_by_gguf(data: Bytes, name: str) -> Floats:
    with np.errstate(all="ignore"):
        values = gguf.quants.dequantize(data.reshape(1, -1), GGMLQuantizationType[name])
    return np.asarray(values, np.float32).ravel()


def assert_same_bits(actual: Floats, expected: Floats) -> None:
    """Equality that tells 0 from -0 and takes any NaN for any other."""
    assert actual.dtype == np.float32
    assert actual.shape == expected.shape
    differ = (actual.view(np.uint32) != expected.view(np.uint32)) & ~(np.isnan(actual) & np.isnan(expected))
    where = np.flatnonzero(differ)
    assert not where.size, f"first at {where[0]}: {actual[where[0]]!r} is not {expected[where[0]]!r}"


@pytest.mark.parametrize("name", TYPES)
def test_decoding_random_bytes_equals_gguf(name: str) -> None:
    @SETTINGS
    @given(packed_blocks(name))
    def check(data: Bytes) -> None:
        assert_same_bits(rsllm.gguf.dequantize(data, name), decoded_by_gguf(data, name))

    check()


@pytest.mark.parametrize("name", TYPES)
def test_decoding_many_blocks_equals_gguf(name: str) -> None:
    rng = np.random.default_rng(0)
    block_bytes = sizes(name)[1]
    blocks = rng.integers(0, 256, (500, block_bytes), np.uint8)
    for offset in SCALE_OFFSETS[name]:
        halves = rng.choice(np.array(EDGE_HALVES, "<u2"), 250)
        blocks[:250, offset : offset + 2] = halves.view(np.uint8).reshape(-1, 2)
    data = blocks.ravel()
    assert_same_bits(rsllm.gguf.dequantize(data, name), decoded_by_gguf(data, name))


@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_decoding_every_16_bit_float_equals_gguf(name: str) -> None:
    data = np.arange(2**16, dtype="<u2").view(np.uint8)
    assert_same_bits(rsllm.gguf.dequantize(data, name), decoded_by_gguf(data, name))


@pytest.mark.parametrize("name", ENCODED_BY_GGUF)
def test_encoding_equals_gguf(name: str) -> None:
    @SETTINGS
    @given(weights(64))
    def check(values: Floats) -> None:
        expected = np.ascontiguousarray(gguf.quants.quantize(values, GGMLQuantizationType[name])).view(np.uint8)
        assert bytes(rsllm.gguf.quantize(values, name)) == expected.tobytes()

    check()


@pytest.mark.parametrize("name", TYPES)
def test_round_trip_keeps_the_error_bound(name: str) -> None:
    block_len, block_bytes = sizes(name)

    @SETTINGS
    @given(weights(max(block_len, 32)))
    def check(values: Floats) -> None:
        packed = rsllm.gguf.quantize(values, name)
        assert packed.dtype == np.uint8
        assert packed.size == values.size // block_len * block_bytes
        error = np.abs(rsllm.gguf.dequantize(packed, name).astype(np.float64) - values)
        extent = max(np.abs(values).max(), np.ptp(values))
        rounding = extent * F16_ROUNDING + SUBNORMAL_ROUNDING * MAX_MULTIPLE[name] if name != "F32" else 0
        assert error.max() <= extent * MAX_ERROR[name] + rounding

    check()


@pytest.mark.parametrize("name", TYPES)
def test_mean_error_on_normal_values(name: str) -> None:
    values = np.random.default_rng(0).standard_normal((64, 512)).astype(np.float32) * np.float32(0.02)
    back = rsllm.gguf.dequantize(rsllm.gguf.quantize(values, name), name)
    rmse = float(np.sqrt(np.mean((back.astype(np.float64) - values) ** 2) / np.mean(values.astype(np.float64) ** 2)))
    assert rmse <= MAX_RELATIVE_RMSE[name]


@pytest.mark.parametrize("name", TYPES)
def test_zeros_stay_zeros(name: str) -> None:
    zeros = np.zeros(512, np.float32)
    assert not rsllm.gguf.dequantize(rsllm.gguf.quantize(zeros, name), name).any()


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("fault", [np.nan, np.inf, -np.inf])
def test_encoding_refuses_what_is_not_finite_and_says_where(name: str, fault: float) -> None:
    values = np.ones(512, np.float32)
    values[300] = fault
    with pytest.raises(rsllm.RsllmError, match="300"):
        rsllm.gguf.quantize(values, name)


@pytest.mark.parametrize("name", [name for name in TYPES if name not in ("F32", "BF16")])
def test_encoding_refuses_values_beyond_the_scale(name: str) -> None:
    with pytest.raises(rsllm.RsllmError, match="range"):
        rsllm.gguf.quantize(np.full(512, 1e30, np.float32), name)


@pytest.mark.parametrize("convert", [rsllm.gguf.dequantize, rsllm.gguf.quantize])
def test_types_without_code_are_refused_by_name(convert: Callable[[Bytes, str], object]) -> None:
    with pytest.raises(rsllm.RsllmError, match="IQ2_XS"):
        convert(np.zeros(0, np.uint8), "IQ2_XS")


@pytest.mark.parametrize("name", TYPES)
def test_partial_blocks_are_refused(name: str) -> None:
    block_len, block_bytes = sizes(name)
    with pytest.raises(rsllm.RsllmError, match=str(block_bytes + 1)):
        rsllm.gguf.dequantize(bytes(block_bytes + 1), name)
    if block_len > 1:
        with pytest.raises(rsllm.RsllmError, match=str(block_len + 1)):
            rsllm.gguf.quantize(np.zeros(block_len + 1, np.float32), name)
