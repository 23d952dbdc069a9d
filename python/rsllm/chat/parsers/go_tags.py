"""What a Go template shows of its model's notation: the tags around thoughts, and the tag before tool calls.

By Ollama's rules: around `{{ .Thinking }}` the first and the last text of the list that it stands in; for calls the
first text behind `{{ if .ToolCalls }}`, up to its first brace. Only the template's blocks are looked at here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["is_go_template", "thinking_tags", "tool_tag"]

_GO = re.compile(r"\{\{-?\s*(if|range|with|end|else|\$|\.[A-Z])")
_ACTION = re.compile(r"\{\{-?\s*(.*?)\s*-?\}\}", re.DOTALL)
_BLOCKS = ("if", "range", "with", "block", "define")
_NODES_LIMIT = 20_000


@dataclass
class _List:
    """Nodes between the beginning of a block and its end or `else`: texts, and what stands in actions."""

    head: str
    nodes: list[tuple[str, str]] = field(default_factory=list)


def is_go_template(template: str) -> bool:
    """Whether it is in Go's language; Jinja has no such actions."""
    return "{%" not in template and _GO.search(template) is not None


def thinking_tags(template: str) -> tuple[str, str] | None:
    """The opening and the closing tag, where the template tells.

    >>> thinking_tags("{{ range .Messages }}{{ if .Thinking }}<think>{{ .Thinking }}</think>{{ end }}{{ end }}")
    ('<think>', '</think>')
    """
    for found in _lists(template):
        if any(kind == "action" and re.fullmatch(r"(?:\$\w*)?\.Thinking", text) for kind, text in found.nodes):
            texts = [text.strip() for kind, text in found.nodes if kind == "text" and text.strip()]
            if len(texts) >= 2:
                return texts[0], texts[-1]
    return None


def tool_tag(template: str) -> str | None:
    """The tag that a call begins with, `{` where there is none; `None` where the template knows no calls.

    >>> tool_tag('{{ if .ToolCalls }}<tool_call>{"name": "{{ .Name }}"}</tool_call>{{ end }}')
    '<tool_call>'
    """
    position = None
    for match in _ACTION.finditer(template):
        if position is None:
            if re.match(r"(?:else\s+)?if\b.*\.ToolCalls\b", match[1]):
                position = match.end()
            continue
        text = template[position : match.start()].strip()
        if text:
            return text.partition("{")[0].strip() or "{"
        position = match.end()
    return None


def _lists(template: str) -> list[_List]:
    """All lists of nodes, the innermost and earliest first to end."""
    done: list[_List] = []
    waiting = [_List("")]
    position = 0
    for count, match in enumerate(_ACTION.finditer(template)):
        if count > _NODES_LIMIT:
            break
        waiting[-1].nodes.append(("text", template[position : match.start()]))
        position = match.end()
        word = match[1].split(None, 1)[0] if match[1] else ""
        if word in ("end", "else") and len(waiting) > 1:
            done.append(waiting.pop())
        if word in _BLOCKS or word == "else":
            waiting.append(_List(match[1]))
        elif word != "end":
            waiting[-1].nodes.append(("action", match[1]))
    waiting[-1].nodes.append(("text", template[position:]))
    return [*done, *reversed(waiting)]
