"""The parsers that Ollama has built in, by the names that a model's configuration gives them (PARSER).

Each stands for one of the notations here and for tags of thoughts. A name says more than a template: where it is
known, it decides.
"""

from __future__ import annotations

from rsllm.chat.parsers.formats import FORMATS, GENERIC, ToolFormat
from rsllm.chat.parsers.thinking import ThinkingTags

__all__ = ["NAMED", "is_named", "named_traits"]

_THINK = ThinkingTags("<think>", "</think>")
_BRACKETS = ThinkingTags("[THINK]", "[/THINK]")
_CHANNEL = ThinkingTags("<|channel>thought", "<channel|>")
_COHERE = ThinkingTags("<|START_THINKING|>", "<|END_THINKING|>")

NAMED: dict[str, tuple[str, ThinkingTags | None]] = {
    "qwen3": ("hermes", _THINK),
    "qwen3-thinking": ("hermes", _THINK),
    "qwen3-vl-instruct": ("hermes", None),
    "qwen3-vl-thinking": ("hermes", _THINK),
    "qwen3-coder": ("qwen-xml", None),
    "qwen3.5": ("qwen-xml", _THINK),
    "ornith": ("qwen-xml", _THINK),
    "nemotron-3-nano": ("qwen-xml", _THINK),
    "nemotron-3.5-nano": ("qwen-xml", _THINK),
    "ministral": ("mistral", _BRACKETS),
    "harmony": ("harmony", None),
    "cogito": ("deepseek", _THINK),
    "deepseek3": ("deepseek", _THINK),
    "olmo3": ("olmo", None),
    "olmo3-think": ("generic", _THINK),
    "functiongemma": ("functiongemma", None),
    "gemma4": ("gemma4", _CHANNEL),
    "gemma4-no-thinking": ("gemma4", None),
    "glm-4.7": ("glm", _THINK),
    "glm-ocr": ("glm", _THINK),
    "lfm2": ("lfm2", None),
    "lfm2-thinking": ("lfm2", _THINK),
    "laguna": ("glm", _THINK),
    "poolside-v1": ("glm", _THINK),
    "cohere": ("command-r7b", _COHERE),
    "glimmer": ("glimmer", None),
    "passthrough": ("generic", None),
}
"""Notation and tags of each; `passthrough` has neither thoughts nor tags."""


def is_named(name: str) -> bool:
    """Whether a configuration's parser is known here."""
    return name in NAMED


def named_traits(name: str) -> tuple[ToolFormat, ThinkingTags | None]:
    """The notation and the tags of a known parser.

    >>> named_traits("qwen3-coder")[0].name
    'qwen-xml'
    """
    wanted, thinking = NAMED[name]
    return next((found for found in FORMATS if found.name == wanted), GENERIC), thinking
