"""Models made of blobs that have come: what `rsllm create` does, as steps of a pull."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Any

from rsllm.store.digest import Digest
from rsllm.store.name import ModelName
from rsllm.store.progress import Progress
from rsllm.store.store import Store

__all__ = ["create_from"]


async def create_from(
    store: Store, name: ModelName, blobs: Mapping[str, Digest], members: Mapping[str, Any]
) -> AsyncGenerator[Progress, None]:
    """Make a model of GGUF blobs that are in the store, by the names of their files."""
    from rsllm.store.create import CreateRequest, create

    files = {file: str(digest) for file, digest in blobs.items()}
    request = CreateRequest.from_dict({"files": files, **members})
    async with aclosing(_stepwise(create(store, name, request))) as steps:
        async for step in steps:
            yield step


async def _stepwise(steps: Iterator[Progress]) -> AsyncGenerator[Progress, None]:
    """Steps of work that blocks, one after another in a thread."""
    while (step := await asyncio.to_thread(next, steps, None)) is not None:
        yield step
