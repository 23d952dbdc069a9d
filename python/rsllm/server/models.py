"""Names as models: what the store has, and what the weights file says that the server needs to know.

A file's metadata is read once and kept for the models used last: its chat templates (compiled), its control tokens, the
context it was trained for, and how its embeddings are pooled. The weights themselves are the runner's.
"""

# ruff: noqa: RUF001 (the bars of DeepSeek's tokens are full-width)

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rsllm.errors import ModelError, OptionError, TemplateError
from rsllm.server.errors import ApiError
from rsllm.server.templates import Chosen, Sources, choose
from rsllm.store.name import ModelName

if TYPE_CHECKING:
    from rsllm.chat.template import ChatTemplate
    from rsllm.store.model import StoredModel
    from rsllm.store.store import Store

__all__ = ["Facts", "Models", "Served", "read_metadata"]

_KEPT = 16
# The ids of llama.cpp: 0 means that none is configured.
_POOLING = {0: "last", 1: "mean", 2: "cls", 3: "last", 4: "rank"}
_TEMPLATE_KEY = "tokenizer.chat_template"
# llama.cpp's types of tokens that are not shown: unknown, control.
_HIDDEN_TYPES = frozenset({2, 3})
_GAP_KEYS = (("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle"))
_GAP_TEXTS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
)  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """What a weights file says."""

    architecture: str
    training_context: int | None
    pooling_type: int | None
    template: ChatTemplate | None
    template_error: TemplateError | None
    template_with_tools: ChatTemplate | None = None
    """The file's variant for requests with tools."""
    control: Mapping[str, int] = field(default_factory=dict, repr=False)
    """Texts and ids of the control tokens."""
    gap: tuple[str, str, str] | None = None
    """The control tokens before a prefix, before a suffix, and where the text between them is to come."""

    @property
    def is_embedding(self) -> bool:
        """It is a model that only embeds."""
        return self.pooling_type is not None

    @property
    def can_shift(self) -> bool:
        """Its positions may be moved when the context is full."""
        return self.architecture != "deepseek2"

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
    draft: str | None
    """The file of its draft model."""
    stored: StoredModel
    facts: Facts
    parameters: Mapping[str, Any]
    system: str
    messages: tuple[dict[str, Any], ...]
    chosen: Chosen
    """The template that makes its prompts."""


class Models:
    """The store's models, for requests. Its work on disk is done in threads."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._facts: OrderedDict[tuple[str, int, int], Facts] = OrderedDict()

    async def find(self, asked: str, *, go_template: bool | None = None) -> Served:
        """The model of this name; raises `ModelNameError`, `ModelNotFoundError`, `ApiError`. `go_template`: see
        `templates.choose`."""
        return await asyncio.to_thread(self._find, asked, go_template)

    async def path(self, asked: str) -> str:
        """Where its weights are."""
        return await asyncio.to_thread(lambda: weights(self.stored(asked)))

    def stored(self, asked: str) -> StoredModel:
        """As the store has it."""
        return self.store.find(ModelName.parse(asked))

    def _find(self, asked: str, go_template: bool | None) -> Served:
        stored = self.stored(asked)
        if stored.adapters:
            raise ApiError(400, f"{asked!r} has an adapter, and adapters are not supported yet")
        path, draft = weights(stored), stored.draft
        facts = self._facts_of(path)
        return Served(
            asked=asked,
            name=stored.name,
            path=path,
            draft=None if draft is None else str(draft),
            stored=stored,
            facts=facts,
            parameters=stored.parameters,
            system=stored.system or "",
            messages=tuple(dict(message) for message in stored.messages),
            chosen=choose(sources(stored, facts), setting=go_template),
        )

    def _facts_of(self, path: str) -> Facts:
        status = os.stat(path)
        key = (path, status.st_mtime_ns, status.st_size)
        facts = self._facts.get(key)
        if facts is None:
            facts = self._facts[key] = facts_from(read_metadata(path))
            while len(self._facts) > _KEPT:
                self._facts.popitem(last=False)
        return facts


def read_metadata(path: str) -> Mapping[str, Any]:
    """The metadata of a weights file."""
    from rsllm import gguf

    return gguf.open(path).metadata


def facts_from(metadata: Mapping[str, Any]) -> Facts:
    """What the server needs of a file's metadata."""
    architecture = str(metadata.get("general.architecture", ""))
    context = metadata.get(f"{architecture}.context_length")
    pooling = metadata.get(f"{architecture}.pooling_type")
    template, error = _template(metadata, None)
    control = _control(metadata)
    return Facts(
        architecture=architecture,
        training_context=context if isinstance(context, int) and context > 0 else None,
        pooling_type=pooling if isinstance(pooling, int) else None,
        template=template,
        template_error=error,
        template_with_tools=_template(metadata, "tool_use")[0],
        control=control,
        gap=_gap(metadata, control),
    )


def sources(stored: StoredModel, facts: Facts) -> Sources:
    """The templates of a stored model, and what else decides between them."""
    config = stored.config
    return Sources(
        jinja=facts.template,
        jinja_with_tools=facts.template_with_tools,
        jinja_error=facts.template_error,
        go=stored.template or "",
        renderer=str(config.get("renderer") or ""),
        parser=str(config.get("parser") or ""),
        strips_thoughts=config.get("model_family") == "qwen3" or stored.name.model.lower() == "deepseek-r1",
    )


def _template(metadata: Mapping[str, Any], name: str | None) -> tuple[ChatTemplate | None, TemplateError | None]:
    """The template of a file that is called `name`; an error is for who wants it and for nobody else."""
    from rsllm.chat.template import ChatTemplate

    if not metadata.get(_TEMPLATE_KEY + (f".{name}" if name else "")):
        return None, None
    try:
        return ChatTemplate.from_metadata(metadata, name=name), None
    except TemplateError as error:
        return None, error


def _control(metadata: Mapping[str, Any]) -> dict[str, int]:
    tokens = metadata.get("tokenizer.ggml.tokens") or ()
    types = metadata.get("tokenizer.ggml.token_type") or ()
    return {
        token: id
        for id, (token, kind) in enumerate(zip(tokens, types, strict=False))
        if kind in _HIDDEN_TYPES and isinstance(token, str) and token
    }


def _gap(metadata: Mapping[str, Any], control: Mapping[str, int]) -> tuple[str, str, str] | None:
    """The tokens of filling in, by the file's ids for them or by the names that models have given them."""
    texts = {id: text for text, id in control.items()}
    for keys in _GAP_KEYS:
        named = [texts.get(metadata.get(f"tokenizer.ggml.{key}_token_id", -1)) for key in keys]
        if all(named):
            return tuple(named)  # type: ignore[return-value]
    return next((names for names in _GAP_TEXTS if all(name in control for name in names)), None)


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
