"""What a chat template can show to its model, and which of two a model is to use: Ollama's rules, on texts alone."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rsllm.chat.parsers.go_tags import thinking_tags
from rsllm.chat.taint import ROLES

if TYPE_CHECKING:
    from rsllm.chat.go.template import GoTemplate

__all__ = ["Capabilities", "capabilities_of", "go_capabilities", "jinja_capabilities", "prefers_go"]

_TOOL_RESULT = re.compile(r"""["']tool["']|tool_response|tool_result""")


@dataclass(frozen=True)
class Capabilities:
    """What a chat template can show to its model."""

    tools: bool = False
    thinking: bool = False
    insert: bool = False
    """It has a place for a suffix."""
    returns_tools: bool = False
    """It shows the model its own calls and their results."""


def go_capabilities(source: str) -> Capabilities:
    """Of a Go template; raises `TemplateError` where it is none."""
    from rsllm.chat.go.template import GoTemplate

    return capabilities_of(GoTemplate(source))


def capabilities_of(template: GoTemplate) -> Capabilities:
    """Of a parsed Go template."""
    names = {name.lower() for name in template.fields}
    is_harmony = "<|start|>" in template.source and "<|end|>" in template.source
    shows_results = "tool" in template.strings or bool(names & {"toolname", "toolcallid"})
    # A template that walks through all roles alike shows results too.
    prints_role = "role" in names and not template.strings & ROLES
    return Capabilities(
        tools="tools" in names,
        thinking=is_harmony or thinking_tags(template.source) is not None,
        insert="suffix" in names,
        returns_tools="toolcalls" in names and (shows_results or prints_role),
    )


@functools.lru_cache(maxsize=64)
def jinja_capabilities(source: str) -> Capabilities:
    """Of a Jinja template, told from its text."""
    return Capabilities(
        tools=re.search(r"\btools\b", source) is not None,
        thinking="reasoning_content" in source or ("<think>" in source and "</think>" in source),
        returns_tools="tool_calls" in source and _TOOL_RESULT.search(source) is not None,
    )


def prefers_go(go: Capabilities | None, jinja: Capabilities | None, *, setting: bool | None = None) -> bool | None:
    """Whether the Go template makes the prompts; `None` where there is no template. `setting`: OLLAMA_GO_TEMPLATE.

    Jinja is chosen over Go, if nothing is set, where it can do all that Go can and keeps the round trip of tool calls,
    and can do more; or where both can do the same, tools too, and it alone has that round trip.

    >>> prefers_go(Capabilities(tools=True), Capabilities(tools=True, thinking=True, returns_tools=True))
    False
    """
    if go is None or jinja is None or setting is False:
        return None if go is None and jinja is None else jinja is None and setting is not False
    if setting:
        return True
    go_has, jinja_has = _abilities(go), _abilities(jinja)
    gains_round_trip = jinja.returns_tools and not go.returns_tools
    loses_round_trip = go.returns_tools and not jinja.returns_tools
    if jinja_has > go_has:
        return loses_round_trip
    return not (jinja_has == go_has and "tools" in go_has and gains_round_trip)


def _abilities(capabilities: Capabilities) -> set[str]:
    return {name for name in ("tools", "thinking") if getattr(capabilities, name)}
