"""The F32 twin of a GGUF: the same model with every tensor dequantised, the exact model that fidelity is measured from.

Quantised weights are numbers; only the arithmetic on them differs between engines. Written out as F32 and run with F32
KV, no engine rounds them again, so the twin's logits are what the file means. `gguf` does the dequantising, so this
project's own code is no part of the oracle. Twins are several times the file's size and are cached with the assets.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, dequantize

from tests.support import assets


def f32_twin(model: Path) -> Path:
    """The cached twin of `model`, made if it is not there yet. The file's hash names it."""
    name = f"{model.stem}-{assets.file_sha256(model)[:12]}-f32.gguf"
    return assets.scratch(name, lambda target: write_twin(model, target))


def write_twin(model: Path, target: Path) -> None:
    """Writes the F32 twin of `model` to `target`: all metadata in order, `general.file_type` 0 (all F32)."""
    reader = GGUFReader(model)
    architecture = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(target, architecture, use_temp_file=False)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        value: Any = 0 if field.name == "general.file_type" else field.contents()
        sub_type = field.types[1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, value, field.types[0], sub_type=sub_type)
    # One tensor at a time, so that the twin of a large file needs little memory.
    for tensor in reader.tensors:
        shape = tuple(int(n) for n in reversed(tensor.shape))
        writer.add_tensor_info(tensor.name, shape, np.dtype(np.float32), 4 * int(tensor.n_elements))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in reader.tensors:
        writer.write_tensor_data(_as_f32(tensor.data, tensor.tensor_type))
    writer.close()


def _as_f32(data: np.ndarray[Any, Any], kind: GGMLQuantizationType) -> np.ndarray[Any, np.dtype[np.float32]]:
    if kind in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):
        return np.ascontiguousarray(data, dtype=np.float32)
    return np.ascontiguousarray(dequantize(data, kind), dtype=np.float32)
