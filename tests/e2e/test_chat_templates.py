"""Published chat templates: rendered to the bytes that transformers renders, and safe from what users write."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path

import pytest

from rsllm.chat.template import ChatTemplate
from rsllm.errors import TemplateError
from tests.support.conversations import CONVERSATIONS, GOLDEN, INJECTION, NOW, OPTIONS, SPECIAL_TOKENS, render_all

CONTROL = ("<|im_start|>", "<|im_end|>", "<s>", "</s>", "<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]")


@functools.cache
def compiled(source: str) -> ChatTemplate:
    return ChatTemplate(source, special_tokens=SPECIAL_TOKENS, control_texts=CONTROL, now=lambda: NOW)


@pytest.mark.reference
@pytest.mark.timeout(120)
def test_published_templates_render_as_transformers_renders_them(templates_dir: Path) -> None:
    def render(source: str, conversation: str) -> str | None:
        messages, tools = CONVERSATIONS[conversation]
        try:
            text = compiled(source).render_text(messages, tools=tools, **OPTIONS.get(conversation, {}))
        except TemplateError:
            return None
        return hashlib.sha256(text.encode()).hexdigest()

    recorded = json.loads(GOLDEN.read_text())
    rendered = render_all(templates_dir, render)
    assert rendered.keys() == recorded.keys()
    assert [name for name in recorded if rendered[name] != recorded[name]] == []


@pytest.mark.timeout(120)
def test_no_published_template_lets_a_message_become_control(templates_dir: Path) -> None:
    messages, _ = CONVERSATIONS["injection"]
    checked = 0
    for path in sorted(templates_dir.glob("*.jinja")):
        try:
            parts = compiled(path.read_bytes().decode()).render(messages)
        except TemplateError:
            continue
        untrusted = "".join(text for text, trusted in parts if not trusted)
        for control in (token for token in CONTROL if token in INJECTION):
            assert control in untrusted, path.name
        checked += 1
    assert checked > 50
