"""What a transfer may do and how patient it is: one frozen dataclass, made from the configuration.

Everything a test wants to turn is a field: the resolver, the clock, the sleep, the size of the parts. Nothing in this
package reads the environment, but for the proxies and certificates that the HTTP library reads itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rsllm.config import Config

__all__ = ["RegistrySettings", "Resolver"]

Resolver = Callable[[str, int], Awaitable[list[str]]]
"""Host and port to addresses as text, in the order they are to be tried; raises `OSError` where there are none."""

_MEGABYTE = 10**6  # Ollama counts parts in powers of ten


@dataclass(frozen=True)
class RegistrySettings:
    """How to talk to registries.

    `mirrors` are asked before the default registry, in order; an entry `host=url` stands before another host's.
    `hf_endpoint` stands before hf.co. `private_allowed` lists hosts, `host:port`, addresses and networks that may be
    private. `user_typed` says that a person at this machine typed the name, which may then lead to a private address;
    a request over the API is not that. `key_path` is where the ed25519 key is, or is made when one is asked for.
    """

    mirrors: tuple[str, ...] = ()
    hf_endpoint: str | None = None
    private_allowed: tuple[str, ...] = ()
    user_typed: bool = False
    key_path: Path = field(default_factory=lambda: Path.home() / ".ollama" / "id_ed25519")
    prune_after_pull: bool = True

    parallel: int = 16
    part_min_bytes: int = 100 * _MEGABYTE
    part_max_bytes: int = 1000 * _MEGABYTE
    attempts: int = 6
    ask_attempts: int = 3
    """Of small requests, such as that for a manifest."""
    stall_seconds: float = 30.0
    connect_seconds: float = 30.0
    progress_seconds: float = 0.06

    resolver: Resolver | None = None
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def from_config(cls, config: Config, *, user_typed: bool = False) -> RegistrySettings:
        """As the environment says; `user_typed` is the caller's knowledge."""
        return cls(
            mirrors=config.registry_mirrors,
            hf_endpoint=config.hf_endpoint,
            private_allowed=config.private_registries,
            user_typed=user_typed,
            key_path=config.key_path,
            prune_after_pull=not config.no_prune,
        )
