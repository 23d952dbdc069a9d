"""Weights files for runners without a model: a real GGUF of a few hundred bytes that tells a fake runner how to behave.

So a store with such models is as in earnest to all that reads it: lists, `show`, copies, templates, new models made
from them. The behaviour is one more text of the metadata.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

__all__ = ["BEHAVIOUR_KEY", "behaviour_text", "fake_gguf"]

BEHAVIOUR_KEY = "fake.behaviour"
ALIGNMENT = 32
# Types of metadata values, as the format numbers them.
UINT32, FLOAT32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
TENSOR_NAME, TENSOR_SHAPE, F32 = "token_embd.weight", (32, 3), 0


def fake_gguf(behaviour: str, metadata: Mapping[str, Any]) -> bytes:
    """A file with this metadata, one small tensor, and the text of `fake_path` for the runner."""
    entries = {**metadata, BEHAVIOUR_KEY: behaviour}
    made = struct.pack("<4sIQQ", b"GGUF", 3, 1, len(entries))
    for key, value in entries.items():
        kind, content = _value(value)
        made += _text(key) + struct.pack("<I", kind) + content
    made += _text(TENSOR_NAME) + struct.pack("<I2QIQ", len(TENSOR_SHAPE), *TENSOR_SHAPE, F32, 0)
    made += bytes(-len(made) % ALIGNMENT)
    return made + bytes(4 * TENSOR_SHAPE[0] * TENSOR_SHAPE[1])


def behaviour_text(content: bytes) -> str:
    """What a file of `fake_gguf` has for the runner, found without a reader of GGUF; any other file is an error."""
    before, found, after = content.partition(_text(BEHAVIOUR_KEY) + struct.pack("<I", STRING))
    if not found or not before.startswith(b"GGUF"):
        raise ValueError("the file has no behaviour for a fake runner")
    (length,) = struct.unpack_from("<Q", after)
    return after[8 : 8 + length].decode()


def _value(value: Any) -> tuple[int, bytes]:
    """The number of its type, and its bytes."""
    if isinstance(value, list):
        kinds = [_value(item) for item in value]
        kind = kinds[0][0] if kinds else UINT32
        return ARRAY, struct.pack("<IQ", kind, len(value)) + b"".join(content for _, content in kinds)
    if isinstance(value, bool):
        return BOOL, struct.pack("<?", value)
    if isinstance(value, int):
        return UINT32, struct.pack("<I", value)
    if isinstance(value, float):
        return FLOAT32, struct.pack("<f", value)
    return STRING, _text(value)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()
