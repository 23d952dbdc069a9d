"""`rsllm.gguf.open` against the `gguf` package, and its errors on files broken in the ways people meet.

What is in a file is decided by `gguf.GGUFWriter` and compared with `gguf.GGUFReader`. Hostile byte strings beyond those
here are Rust tests (`crates/rsllm-gguf/tests/field_cases.rs`).
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFValueType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rsllm.gguf
from rsllm.errors import GgufError

text = st.text(st.characters(codec="utf-8"), max_size=20)
scalars: dict[GGUFValueType, st.SearchStrategy[Any]] = {
    GGUFValueType.UINT8: st.integers(0, 2**8 - 1),
    GGUFValueType.INT8: st.integers(-(2**7), 2**7 - 1),
    GGUFValueType.UINT16: st.integers(0, 2**16 - 1),
    GGUFValueType.INT16: st.integers(-(2**15), 2**15 - 1),
    GGUFValueType.UINT32: st.integers(0, 2**32 - 1),
    GGUFValueType.INT32: st.integers(-(2**31), 2**31 - 1),
    GGUFValueType.UINT64: st.integers(0, 2**64 - 1),
    GGUFValueType.INT64: st.integers(-(2**63), 2**63 - 1),
    GGUFValueType.FLOAT32: st.floats(width=32, allow_nan=False),
    GGUFValueType.FLOAT64: st.floats(allow_nan=False),
    GGUFValueType.BOOL: st.booleans(),
    GGUFValueType.STRING: text,
}
typed_scalars = st.sampled_from(list(scalars)).flatmap(lambda t: st.tuples(st.just(t), st.none(), scalars[t]))
typed_arrays = st.sampled_from(list(scalars)).flatmap(
    lambda t: st.tuples(st.just(GGUFValueType.ARRAY), st.just(t), st.lists(scalars[t], min_size=1, max_size=12))
)
keys = st.from_regex(r"[a-z][a-z0-9_]{0,8}(\.[a-zé]{1,8})?", fullmatch=True)
shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)
dtypes = st.sampled_from([np.float32, np.float16, np.float64, np.int8, np.int16, np.int32, np.int64])


def write_gguf(
    path: Path,
    metadata: dict[str, tuple[GGUFValueType, GGUFValueType | None, Any]],
    tensors: dict[str, np.ndarray[Any, Any]],
    alignment: int | None = None,
) -> Path:
    """A file by the `gguf` package."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, (value_type, sub_type, value) in metadata.items():
        writer.add_key_value(key, value, value_type, sub_type=sub_type)
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Three tensors of ten float32."""
    tensors = {f"blk.{i}.w": np.full(10, i, dtype=np.float32) for i in range(3)}
    return write_gguf(tmp_path / "small.gguf", {"general.name": (GGUFValueType.STRING, None, "tiny")}, tensors)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(metadata=st.dictionaries(keys, typed_scalars | typed_arrays, max_size=8))
def test_metadata_is_what_gguf_reads(tmp_path: Path, metadata: dict[str, Any]) -> None:
    path = write_gguf(tmp_path / "metadata.gguf", metadata, {})
    ours = dict(rsllm.gguf.open(path).metadata)
    theirs = {
        key: field.contents() for key, field in gguf.GGUFReader(path).fields.items() if not key.startswith("GGUF.")
    }
    assert ours == theirs
    assert list(ours) == list(theirs)
    assert {key: type(value) for key, value in ours.items()} == {key: type(value) for key, value in theirs.items()}


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    arrays=st.dictionaries(keys, st.tuples(shapes, dtypes, st.integers(0, 100)), max_size=5),
    alignment=st.none() | st.sampled_from([8, 16, 64, 4096]),
    mmap=st.booleans(),
)
def test_tensors_are_what_gguf_reads(
    tmp_path: Path, arrays: dict[str, tuple[tuple[int, ...], Any, int]], alignment: int | None, mmap: bool
) -> None:
    tensors = {
        name: (np.arange(np.prod(shape)) + start).astype(dtype).reshape(shape)
        for name, (shape, dtype, start) in arrays.items()
    }
    path = write_gguf(tmp_path / "tensors.gguf", {}, tensors, alignment)
    ours = rsllm.gguf.open(path, mmap=mmap)
    theirs = gguf.GGUFReader(path)
    assert ours.alignment == theirs.alignment
    assert ours.file_bytes == path.stat().st_size
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        view = ours.tensors[tensor.name]
        expected = tensors[tensor.name]
        assert view.type == tensor.tensor_type.name
        assert view.shape == expected.shape
        assert view.n_bytes == tensor.n_bytes
        assert view.packed.tobytes() == tensor.data.tobytes() == expected.tobytes()
        if view.type in ("F32", "F16"):
            np.testing.assert_array_equal(view.numpy(), expected.astype(np.float32))


@pytest.mark.real_model
@pytest.mark.timeout(120)
def test_a_real_model_is_what_gguf_reads(smollm2_path: Path) -> None:
    ours, theirs = rsllm.gguf.open(smollm2_path), gguf.GGUFReader(smollm2_path)
    for key, field in theirs.fields.items():
        if not key.startswith("GGUF."):
            assert ours.metadata[key] == field.contents(), key
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        view = ours.tensors[tensor.name]
        assert view.type == tensor.tensor_type.name
        assert view.shape == tuple(reversed([int(n) for n in tensor.shape]))
        np.testing.assert_array_equal(view.packed.reshape(-1), tensor.data.reshape(-1).view(np.uint8))
    norm = next(tensor for tensor in theirs.tensors if tensor.name == "output_norm.weight")
    np.testing.assert_array_equal(ours.tensors["output_norm.weight"].numpy(), norm.data)


def test_a_tensor_outlives_its_file(small: Path) -> None:
    packed = rsllm.gguf.open(small).tensors["blk.2.w"].packed
    small.unlink()
    assert packed.view("<f4").tolist() == [2.0] * 10
    assert not packed.flags.writeable


def test_shards_open_from_any_and_a_missing_one_is_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=1)
    for i in range(3):
        writer.add_tensor(f"blk.{i}.w", np.full(10, i, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    shards = sorted(tmp_path.glob("m-*-of-00003.gguf"))
    assert len(shards) == 3
    for shard in shards:
        file = rsllm.gguf.open(shard)
        assert file.files == [str(path) for path in shards]
        assert [view.numpy()[0] for view in file.tensors.values()] == [0.0, 1.0, 2.0]
    shards[2].unlink()
    with pytest.raises(GgufError, match=r"m-00003-of-00003\.gguf") as caught:
        rsllm.gguf.open(shards[0])
    assert caught.value.field == "split.count"
    joined = tmp_path / "joined.gguf"
    joined.write_bytes(shards[0].read_bytes() + shards[1].read_bytes())
    with pytest.raises(GgufError, match="cannot be concatenated"):
        rsllm.gguf.open(joined)


def test_a_truncated_file_says_what_is_missing(small: Path) -> None:
    size = small.stat().st_size
    os.truncate(small, size - 100)
    with pytest.raises(GgufError) as caught:
        rsllm.gguf.open(small)
    error = caught.value
    assert error.file == str(small)
    assert error.field is not None and error.field.startswith("blk.")
    # The last tensor of 40 bytes is padded to 64; the padding is not missed.
    assert error.expected == f"{size - 24} bytes"
    assert error.found == f"{size - 100} bytes"
    assert error.hint is not None and "join the parts" in error.hint
    assert "76 bytes are missing" in str(error)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"<!DOCTYPE html><html>", "HTML"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git LFS pointer"),
        (b"PK\x03\x04", "zip"),
        (b'\x20\0\0\0\0\0\0\0{"t":{}}', "safetensors"),
        (b"GGUF", "version"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 4, 0, 0), "newer"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0), "tensor count"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**63), "metadata count"),
    ],
)
def test_other_files_are_named(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(content)
    with pytest.raises(GgufError, match=said) as caught:
        rsllm.gguf.open(path)
    assert caught.value.file == str(path)
    assert caught.value.field is not None


def test_an_unknown_tensor_type_names_tensor_and_type(small: Path) -> None:
    content = small.read_bytes()
    record = b"blk.1.w" + struct.pack("<IQI", 1, 10, GGMLQuantizationType.F32)
    changed = content.replace(record, record[:-4] + struct.pack("<I", 9999))
    assert changed != content
    small.write_bytes(changed)
    with pytest.raises(GgufError, match="9999") as caught:
        rsllm.gguf.open(small)
    assert (caught.value.field, caught.value.found) == ("blk.1.w", "type id 9999")


def test_the_system_errors_are_pythons(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        rsllm.gguf.open(tmp_path / "missing.gguf")
    with pytest.raises(IsADirectoryError):
        rsllm.gguf.open(tmp_path)


@pytest.mark.real_model
@pytest.mark.timeout(120)
def test_broken_headers_and_ends_never_crash_the_loader(smollm2_path: Path, tmp_path: Path) -> None:
    break_in_child(smollm2_path, tmp_path, n_truncations=20, n_changes=40)


@pytest.mark.soak
@pytest.mark.real_model
@pytest.mark.timeout(600)
def test_a_loader_survives_200_truncations_and_2000_changes(smollm2_path: Path, tmp_path: Path) -> None:
    break_in_child(smollm2_path, tmp_path, n_truncations=200, n_changes=2000)


def break_in_child(model: Path, folder: Path, *, n_truncations: int, n_changes: int) -> None:
    """Runs `CHILD` on a copy of the model, so that a crash is an exit status and a hang a timeout."""
    copy = folder / "broken.gguf"
    copy.write_bytes(model.read_bytes())
    file = rsllm.gguf.open(model)
    header = file.file_bytes - sum(-(-view.n_bytes // 32) * 32 for view in file.tensors.values())
    arguments = [str(copy), str(header), str(n_truncations), str(n_changes)]
    child = subprocess.run([sys.executable, "-c", CHILD, *arguments], capture_output=True, text=True, timeout=500)
    assert child.returncode == 0, child.stderr[-2000:]
    n_loaded, n_refused = map(int, child.stdout.split())
    assert n_loaded + n_refused == n_truncations + n_changes
    assert n_refused >= n_truncations


#: Changes single bytes of the header, each undone, then cuts the file shorter and shorter.
CHILD = """
import os, random, sys
import rsllm.gguf

path, (header, n_truncations, n_changes) = sys.argv[1], map(int, sys.argv[2:])
rng = random.Random(1)
counts = [0, 0]

def attempt():
    try:
        file = rsllm.gguf.open(path)
        len(file.metadata), [view.packed[..., -1:].tobytes() for view in file.tensors.values()]
        counts[0] += 1
    except rsllm.errors.GgufError:
        counts[1] += 1

with open(path, "r+b", buffering=0) as file:
    for _ in range(n_changes):
        offset, mask = rng.randrange(header), rng.randrange(1, 256)
        before = os.pread(file.fileno(), 1, offset)
        os.pwrite(file.fileno(), bytes([before[0] ^ mask]), offset)
        attempt()
        os.pwrite(file.fileno(), before, offset)
size = os.path.getsize(path)
cuts = [rng.randrange(header if i % 2 else size - 32) for i in range(n_truncations)]
for cut in sorted(cuts, reverse=True):
    os.truncate(path, cut)
    attempt()
print(*counts)
"""
