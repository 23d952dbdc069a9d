"""The configuration of a model, which is the layer that lists read: what its files are, in Ollama's members and order.

Whoever makes a model, from a Modelfile, a package or joined shards, makes its configuration here, so that the same
content has the same digest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rsllm.store.gojson import go_json
from rsllm.store.manifest import MediaType

__all__ = ["configuration"]

_KEPT = ("capabilities", "context_length", "embedding_length", "base_name", "draft")


def configuration(
    files: Sequence[tuple[str, Mapping[str, Any]]],
    *,
    base: Mapping[str, Any] | None = None,
    renderer: str = "",
    parser: str = "",
    requires: str = "",
) -> bytes:
    """The bytes of a configuration; members that say nothing are left out.

    `files` are the media types of its new files with what `details.described` says of each, `base` the configuration of
    the model that it was made from.
    """
    base = base or {}
    families = list(base.get("model_families") or [])
    for _, described in files:
        families += [family for family in described["families"] if family not in families]
    main = next((described for kind, described in files if kind == MediaType.MODEL), {})
    said = {
        "renderer": renderer or base.get("renderer"),
        "parser": parser or base.get("parser"),
        "requires": requires or base.get("requires"),
        **{name: base.get(name) for name in _KEPT},
    }
    return go_json(
        {
            "model_format": base.get("model_format") or main.get("format", ""),
            "model_family": base.get("model_family") or main.get("family", ""),
            "model_families": families,
            "model_type": base.get("model_type") or main.get("parameter_size", ""),
            "file_type": base.get("file_type") or main.get("quantization_level", ""),
            **{name: value for name, value in said.items() if value},
            "architecture": "amd64",
            "os": "linux",
        }
    )
