"""Names as models: what the store has, and what the weights file says that the server needs to know.

A file's metadata is read once and kept for the models used last: its chat template (compiled), the context it was
trained for, and how its embeddings are pooled. The weights themselves are the runner's.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rsllm.errors import ModelError, OptionError, TemplateError
from rsllm.server.errors import ApiError
from rsllm.store.name import ModelName

if TYPE_CHECKING:
    from rsllm.chat.template import ChatTemplate
    from rsllm.store.model import StoredModel
    from rsllm.store.store import Store

__all__ = ["Facts", "Models", "Served", "read_metadata"]

_KEPT = 16
# The ids of llama.cpp: 0 means that none is configured.
_POOLING = {0: "last", 1: "mean", 2: "cls", 3: "last"}


@dataclass(frozen=True)
class Facts:
    """What a weights file says."""

    architecture: str
    training_context: int | None
    pooling_type: int | None
    template: ChatTemplate | None
    template_error: TemplateError | None

    @property
    def is_embedding(self) -> bool:
        """It is a model that only embeds."""
        return self.pooling_type is not None

    @property
    def pooling(self) -> str:
        """How its embeddings are made; raises `OptionError` where the file wants what is not here."""
        if self.pooling_type is None:
            return "last"
        if self.pooling_type not in _POOLING:
            raise OptionError(f"pooling type {self.pooling_type} of the model is not supported", name="pooling")
        return _POOLING[self.pooling_type]


@dataclass(frozen=True)
class Served:
    """A model that a request names."""

    asked: str
    """As the client wrote it: replies repeat it."""
    name: ModelName
    path: str
    stored: StoredModel
    facts: Facts
    parameters: Mapping[str, Any]
    system: str
    messages: tuple[dict[str, Any], ...]
    go_template: str
    """The TEMPLATE layer; empty where there is none."""


class Models:
    """The store's models, for requests. Its work on disk is done in threads."""

    def __init__(self, store: Store, metadata: Callable[[str], Mapping[str, Any]] | None = None) -> None:
        self.store = store
        self._metadata = metadata or read_metadata
        self._facts: OrderedDict[tuple[str, int, int], Facts] = OrderedDict()

    async def find(self, asked: str) -> Served:
        """The model of this name; raises `ModelNameError`, `ModelNotFoundError`, `ApiError`."""
        return await asyncio.to_thread(self._find, asked)

    async def path(self, asked: str) -> str:
        """Where its weights are."""
        return await asyncio.to_thread(lambda: weights(self.stored(asked)))

    def stored(self, asked: str) -> StoredModel:
        """As the store has it."""
        return self.store.find(ModelName.parse(asked))

    def _find(self, asked: str) -> Served:
        stored = self.stored(asked)
        if stored.adapters:
            raise ApiError(400, f"{asked!r} has an adapter, and adapters are not supported yet")
        path = weights(stored)
        return Served(
            asked=asked,
            name=stored.name,
            path=path,
            stored=stored,
            facts=self._facts_of(path),
            parameters=stored.parameters,
            system=stored.system or "",
            messages=tuple(dict(message) for message in stored.messages),
            go_template=stored.template or "",
        )

    def _facts_of(self, path: str) -> Facts:
        status = os.stat(path)
        key = (path, status.st_mtime_ns, status.st_size)
        facts = self._facts.get(key)
        if facts is None:
            facts = self._facts[key] = facts_from(self._metadata(path))
            while len(self._facts) > _KEPT:
                self._facts.popitem(last=False)
        return facts


def read_metadata(path: str) -> Mapping[str, Any]:
    """The metadata of a weights file."""
    from rsllm import gguf

    return gguf.open(path).metadata


def facts_from(metadata: Mapping[str, Any]) -> Facts:
    """What the server needs of a file's metadata."""
    from rsllm.chat.template import ChatTemplate

    architecture = str(metadata.get("general.architecture", ""))
    context = metadata.get(f"{architecture}.context_length")
    pooling = metadata.get(f"{architecture}.pooling_type")
    template, error = None, None
    if metadata.get("tokenizer.chat_template"):
        try:
            template = ChatTemplate.from_metadata(metadata)
        except TemplateError as failure:  # only who wants it is to suffer from it
            error = failure
    return Facts(
        architecture=architecture,
        training_context=context if isinstance(context, int) and context > 0 else None,
        pooling_type=pooling if isinstance(pooling, int) else None,
        template=template,
        template_error=error,
    )


def weights(stored: StoredModel) -> str:
    """The path of a model's weights; raises `ApiError` where they are elsewhere or missing, `ModelError`."""
    if stored.config.get("remote_host"):
        raise ApiError(403, "ollama cloud is disabled: remote model is unavailable")
    try:
        return str(stored.weights)
    except ModelError as error:
        if not stored.weight_layers:
            raise
        short = stored.name.short
        raise ApiError(404, f'model "{short}" not found, try pulling it first', hint=error.hint) from None
