"""What the lists and `show` say of the store's models."""

from __future__ import annotations

import logging
from typing import Any

from rsllm.errors import RsllmError
from rsllm.store.store import Store

__all__ = ["by_name", "show", "tags"]

log = logging.getLogger("rsllm.server")


def tags(store: Store) -> list[dict[str, Any]]:
    """The models of the store, the newest first; a damaged one is left out, and the log says why."""
    entries = sorted(store.names(), key=lambda entry: entry.modified_at, reverse=True)
    listed = []
    for entry in entries:
        try:
            if entry.error is not None:
                raise RsllmError(entry.error)
            stored = store.find(entry.name)
            details = _details(stored)
        except (RsllmError, OSError) as error:
            log.warning("%s is not listed: %s", entry.name.short, error)
            continue
        listed.append(
            {
                "name": stored.name.short,
                "model": stored.name.short,
                "modified_at": stored.modified_at.isoformat(),
                "size": stored.size,
                "digest": stored.digest_hex,
                "details": details,
            }
        )
    return listed


def by_name(store: Store) -> dict[str, dict[str, Any]]:
    """The same by name."""
    return {entry["name"]: entry for entry in tags(store)}


def _details(stored: Any) -> dict[str, Any]:
    config = stored.config
    families = config.get("model_families")
    return {
        "parent_model": "",
        "format": str(config.get("model_format", "")),
        "family": str(config.get("model_family", "")),
        "families": families if isinstance(families, list) else None,
        "parameter_size": str(config.get("model_type", "")),
        "quantization_level": str(config.get("file_type", "")),
    }


def show(stored: Any, *, verbose: bool, system: str, options: dict[str, Any]) -> dict[str, Any]:
    """What `show` says of one model."""
    reply = {
        "license": "\n".join(stored.licenses),
        "parameters": "\n".join(_parameters({**stored.parameters, **options})),
        "template": stored.template or "",
        "system": system or stored.system or "",
        "details": _details(stored),
        "messages": stored.messages,
        "model_info": {},
        "tensors": [],
        "capabilities": [],
        "modified_at": stored.modified_at.isoformat(),
    }
    return reply


def _parameters(parameters: dict[str, Any]) -> list[str]:
    """Lines of name and value, one for each value of a list; texts in quotes, as Go writes them."""
    import json

    lines = []
    for name, value in parameters.items():
        for one in value if isinstance(value, list) else [value]:
            shown = json.dumps(one, ensure_ascii=False) if isinstance(one, (str, bool)) else one
            lines.append(f"{name:<30} {shown}")
    return lines
