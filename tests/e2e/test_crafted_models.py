"""Model files that are sound as files and lie about the model: loading is a typed error, or the model works.

The crashes of others that these come from: a number of layers that is no number, or zero (CVE-2024-8063), and keys that
everybody takes for granted (CVE-2025-0312).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter

import rsllm
from rsllm.errors import RsllmError
from tests.support import tiny_models

pytestmark = pytest.mark.timeout(120)

SHAPE = tiny_models.SHAPES["llama"]
KEY = "llama.block_count"


class Crafted(GGUFWriter):
    """Writes one key in its own way, or leaves it out; `keys` are those that were to be written."""

    def __init__(self, path: Path, key: str, write: Callable[[GGUFWriter], Any] | None) -> None:
        self.keys: list[str] = []
        self._key = key
        self._write = write
        super().__init__(path, SHAPE.family)  # writes the first key

    def add_key_value(self, key: str, val: Any, vtype: Any, sub_type: Any = None) -> None:
        self.keys.append(key)
        if key != self._key:
            super().add_key_value(key, val, vtype, sub_type)
        elif self._write is not None:
            write, self._write = self._write, None
            self._key = ""
            write(self)


def crafted(path: Path, key: str, write: Callable[[GGUFWriter], Any] | None = None, *, without: str = "") -> list[str]:
    """A tiny model with one key crafted, or without one tensor; the names of all keys."""
    writer = Crafted(path, key, write)
    tiny_models.write_metadata(writer, SHAPE)
    vocab_size = tiny_models.write_bpe_vocabulary(writer)
    import numpy

    rng = numpy.random.default_rng(1)
    for name, dims, _ in tiny_models.tensors(SHAPE, vocab_size):
        if name != without:
            writer.add_tensor(name, rng.standard_normal(dims, dtype=numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return writer.keys


def loads(path: Path) -> bool:
    """Whether it loads and answers; where it does not, the error is one of ours and says what is wrong."""
    try:
        with rsllm.load(path, context=64) as model:
            model.generate("one", max_tokens=2, seed=1)
    except RsllmError as error:
        assert str(error)
        return False
    return True


@pytest.mark.parametrize(
    "write",
    [
        lambda writer: writer.add_string(KEY, "2"),
        lambda writer: writer.add_array(KEY, [2, 2]),
        lambda writer: writer.add_uint32(KEY, 0),
        lambda writer: writer.add_uint32(KEY, 2**32 - 1),
        lambda writer: writer.add_int32(KEY, -2),
        lambda writer: writer.add_float32(KEY, float("nan")),
        lambda writer: writer.add_bool(KEY, True),
    ],
    ids=["text", "list", "zero", "huge", "negative", "nan", "boolean"],
)
def test_a_number_of_layers_that_is_none_is_refused(write: Callable[[GGUFWriter], Any], tmp_path: Path) -> None:
    """CVE-2024-8063."""
    crafted(tmp_path / "m.gguf", KEY, write)
    assert not loads(tmp_path / "m.gguf")


def test_each_key_may_be_missing(tmp_path: Path) -> None:
    """CVE-2025-0312."""
    keys = crafted(tmp_path / "whole.gguf", "")
    assert loads(tmp_path / "whole.gguf") and len(keys) > 15
    outcomes = {}
    for key in keys:
        path = tmp_path / f"without-{key}.gguf"
        crafted(path, key)
        outcomes[key] = loads(path)
    assert not any(
        outcomes[key] for key in ("general.architecture", KEY, "tokenizer.ggml.tokens", "tokenizer.ggml.model")
    )


def test_each_tensor_may_be_missing(tmp_path: Path) -> None:
    """CVE-2025-0312."""
    for name, _, _ in tiny_models.tensors(SHAPE, 16):
        path = tmp_path / "m.gguf"
        crafted(path, "", without=name)
        # Without an output of its own a model uses its embeddings.
        assert loads(path) == (name == "output.weight"), name
