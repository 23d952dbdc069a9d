"""What lists and `show` say of a model: family, size, quantization, as Ollama words them.

The configuration of a model says most of it, so that a list opens no weights; what it lacks is read from the
header of the GGUF.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rsllm.errors import RsllmError
from rsllm.store.manifest import MediaType
from rsllm.store.modelfile import Instruction

if TYPE_CHECKING:
    from rsllm.gguf import GgufFile
    from rsllm.store.model import StoredModel

__all__ = ["FILE_TYPES", "described", "details", "human_count", "modelfile_of", "quantization_of"]

# Names of `general.file_type`, llama.cpp's summary of the tensor types.
FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
}  # fmt: skip
_KEPT = 256


def details(stored: StoredModel) -> dict[str, Any]:
    """The member `details` of lists and of `show`; what nobody knows is an empty text."""
    config = stored.config
    families = config.get("model_families")
    found = {
        "format": _text(config.get("model_format")),
        "family": _text(config.get("model_family")),
        "families": families if isinstance(families, list) else None,
        "parameter_size": _text(config.get("model_type")),
        "quantization_level": _text(config.get("file_type")),
    }
    lengths = {name: config.get(name) for name in ("context_length", "embedding_length")}
    if not all(found[name] for name in ("format", "family", "parameter_size", "quantization_level")):
        try:
            seen = described_path(stored.weights)
        except (RsllmError, OSError):  # then that is all that is known
            seen = {}
        found = {name: value or seen.get(name, value) for name, value in found.items()}
        lengths = {name: value or seen.get(name) for name, value in lengths.items()}
    layers = stored.weight_layers
    lengths = {name: value for name, value in lengths.items() if isinstance(value, int)}
    return {"parent_model": (layers[-1].from_ or "") if layers else "", **found, **lengths}


def described_path(path: Path) -> dict[str, Any]:
    """`described` of a file; kept for as long as the file stays as it is. Raises `GgufError`."""
    status = os.stat(path)
    return dict(_described(str(path), status.st_mtime_ns, status.st_size))


@functools.lru_cache(maxsize=_KEPT)
def _described(path: str, _changed: int, _size: int) -> Mapping[str, Any]:
    from rsllm import gguf

    return described(gguf.open(path))


def described(file: GgufFile) -> dict[str, Any]:
    """The details of an open file."""
    metadata = file.metadata
    architecture = str(metadata.get("general.architecture", ""))
    found: dict[str, Any] = {
        "format": "gguf",
        "family": architecture,
        "families": [architecture],
        "parameter_size": human_count(sum(tensor.n_elements for tensor in file.tensors.values())),
        "quantization_level": quantization_of(file),
    }
    for name in ("context_length", "embedding_length"):
        value = metadata.get(f"{architecture}.{name}")
        if isinstance(value, int):
            found[name] = value
    return found


def quantization_of(file: GgufFile) -> str:
    """What the file calls itself, or else the type that most of its bytes have."""
    kind = file.metadata.get("general.file_type")
    if isinstance(kind, int) and kind in FILE_TYPES:
        return FILE_TYPES[kind]
    sizes: dict[str, int] = {}
    for tensor in file.tensors.values():
        sizes[tensor.type] = sizes.get(tensor.type, 0) + tensor.n_bytes
    return max(sizes, key=lambda name: sizes[name], default="unknown")


def human_count(count: int) -> str:
    """A number of parameters as Ollama writes it.

    >>> human_count(8_000_000_000), human_count(134_515_008), human_count(135_000_000), human_count(1200)
    ('8B', '134.52M', '135M', '1K')
    """
    for unit, size, decimals in (("B", 10**9, 1), ("M", 10**6, 2)):
        if count >= size:
            return f"{count / size:.{decimals if count % size else 0}f}{unit}"
    return f"{count / 1000:.0f}K" if count >= 1000 else str(count)


def modelfile_of(stored: StoredModel, *, system: str | None = None, parameters: Mapping[str, Any] | None = None) -> str:
    """A Modelfile that makes the model again, from its blobs; `system` and `parameters` take the place of its own."""
    paths = [stored.path(layer) for layer in stored.manifest.of_type(MediaType.MODEL)[-1:]]
    made = [Instruction("from", str(path)) for path in paths]
    made += [Instruction("adapter", str(path)) for path in stored.adapters]
    made += [Instruction("draft", str(path)) for path in stored.drafts]
    made += [Instruction("from", str(path)) for path in stored.projectors]
    config = stored.config
    texts = {
        "template": stored.template,
        "system": stored.system if system is None else system,
        **{name: _text(config.get(name)) for name in ("renderer", "parser", "requires")},
    }
    made += [Instruction(name, text) for name, text in texts.items() if text]
    for name, value in (stored.parameters if parameters is None else parameters).items():
        made += [Instruction("parameter", _plain(one), name) for one in (value if isinstance(value, list) else [value])]
    made += [Instruction("license", text) for text in stored.licenses]
    made += [
        Instruction("message", _text(message.get("content")), _text(message.get("role"))) for message in stored.messages
    ]
    lines = [
        '# Modelfile generated by "rsllm show"',
        "# To build a new Modelfile based on this, replace FROM with:",
        f"# FROM {stored.name.short}",
        "",
    ]
    return "".join(f"{line}\n" for line in (*lines, *made))


def _plain(value: Any) -> str:
    """As PARAMETER reads it back."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value == int(value):
        return str(int(value))
    return str(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
