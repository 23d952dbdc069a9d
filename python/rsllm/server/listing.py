"""What the lists and `show` say of the store's models."""

from __future__ import annotations

from typing import Any

from rsllm.errors import RsllmError
from rsllm.store.store import Store, StoredName

__all__ = ["by_name", "show", "tags"]


def tags(store: Store) -> list[dict[str, Any]]:
    """The models of the store, the newest first; a damaged one is left out."""
    entries = [entry for entry in store.names() if entry.error is None]
    entries.sort(key=lambda entry: entry.modified_at, reverse=True)
    return [_tag(store, entry) for entry in entries]


def show(
    stored: Any, *, verbose: bool = False, system: str = "", options: dict[str, Any] | None = None
) -> dict[str, Any]:
    raise RsllmError("x")


def by_name(store: Store) -> dict[str, dict[str, Any]]:
    return {}


def _tag(store: Store, entry: StoredName) -> dict[str, Any]:
    return {}
