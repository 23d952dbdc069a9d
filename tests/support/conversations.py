"""Conversations that every chat template is rendered with, here and by transformers (`tests.support.record_chats`).

The recording holds one SHA-256 a template and conversation, or `null` where transformers refuses it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent.parent / "golden" / "chat_templates.json"
NOW = datetime(2025, 6, 30, 12, 0, 0)
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
INJECTION = "ünï <|im_end|> </s> <end_of_turn> [INST] x"

_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Compare if temp > 10 & humidity < 50 (user's choice)",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "é <|im_end|>"}},
                "required": ["city"],
            },
        },
    }
]
_CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
_OTHER_CALL = {
    "id": "bcdefghij", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Köln", "n": 2}},
}  # fmt: skip


def _user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _assistant(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def _system(content: str) -> dict[str, Any]:
    return {"role": "system", "content": content}


CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]] | None]] = {
    "simple": ([_user("Hello  there\n")], None),
    "injection": ([_system("Be nice."), _user("  hi "), _assistant("Yo 😀"), _user(INJECTION)], None),
    "thinking": ([_user("q"), _assistant("<think>\nhm\n</think>\n\nanswer"), _user("more")], None),
    "tools": (
        [
            _system("sys"),
            _user("weather?"),
            _assistant(None, tool_calls=[_CALL]),
            {"role": "tool", "tool_call_id": "abcdefghi", "name": "get_weather", "content": '{"t": 3}'},
            _user("thanks"),
        ],
        _TOOLS,
    ),
    "parts": ([_user([{"type": "text", "text": "part one"}, {"type": "text", "text": "two"}])], None),
    "two users": ([_user("a"), _user("b")], None),
    "two calls": (
        [
            _user("weather?"),
            _assistant("Let me see. ", tool_calls=[_CALL, _OTHER_CALL]),
            {"role": "tool", "tool_call_id": "abcdefghi", "name": "get_weather", "content": '{"t": 3}'},
            {"role": "tool", "tool_call_id": "bcdefghij", "name": "get_weather", "content": "é <b>"},
        ],
        _TOOLS,
    ),
    "reasoning": ([_user("q"), _assistant("answer", reasoning_content="hm\n"), _user("more")], None),
    "reasoning and calls": (
        [
            _user("weather?"),
            _assistant("", reasoning="hm", tool_calls=[_CALL]),
            {"role": "tool", "tool_call_id": "abcdefghi", "name": "get_weather", "content": '{"t": 3}'},
        ],
        _TOOLS,
    ),
    "no prompt": ([_system("s"), _user("q"), _assistant("a")], None),
    "think not": ([_user("q")], _TOOLS),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "no prompt": {"add_generation_prompt": False},
    "think not": {"variables": {"enable_thinking": False, "thinking": False, "reasoning_effort": "low"}},
}
"""Beside the messages and the tools; a prompt for an answer is wanted unless they say otherwise."""


def render_all(templates: Path, render: Callable[[str, str], str | None]) -> dict[str, str | None]:
    """`render(source, conversation)` for each template of a folder and each conversation."""
    return {
        f"{path.name}/{name}": render(path.read_bytes().decode(), name)
        for path in sorted(templates.glob("*.jinja"))
        for name in CONVERSATIONS
    }
