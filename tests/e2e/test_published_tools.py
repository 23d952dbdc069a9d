"""Conversations with tools and thoughts, by all published templates: shown to the model, and read from what it says."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from rsllm.chat.template import ChatTemplate
from rsllm.errors import TemplateError
from rsllm.server.templates import PromptTemplate
from tests.support.conversations import SPECIAL_TOKENS

pytestmark = pytest.mark.timeout(120)

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Tells it.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "Which one."}},
                "required": ["city"],
            },
        },
    }
]
CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "", "tool_calls": [
        {"function": {"name": "get_weather", "arguments": {"city": "Paris-7"}}},
    ]},
    {"role": "tool", "content": "RAIN-8", "tool_name": "get_weather"},
]  # fmt: skip
# They change a list while they render, which transformers' sandbox refuses too.
REFUSED = {"Kimi-K2-Instruct.jinja", "Kimi-K2-Thinking.jinja", "llama-cpp-deepseek-r1.jinja"}
# They show tools and results, but never the model's own calls.
WITHOUT_CALLS = {"LFM2-8B-A1B.jinja", "LFM2.5-Instruct.jinja", "ibm-granite-granite-3.3-2B-Instruct.jinja"}
BOTH_WAYS = (
    "Qwen-Qwen3-0.6B.jinja",
    "GLM-4.6.jinja",
    "deepseek-ai-DeepSeek-V3.1.jinja",
    "google-gemma-4-31B-it.jinja",
    "ibm-granite-granite-3.3-2B-Instruct.jinja",
    "HuggingFaceTB-SmolLM3-3B.jinja",
)


@functools.cache
def templates(folder: Path) -> dict[str, PromptTemplate]:
    return {
        path.name: PromptTemplate(ChatTemplate(path.read_bytes().decode(), special_tokens=SPECIAL_TOKENS))
        for path in sorted(folder.glob("*.jinja"))
    }


def test_tools_calls_and_results_reach_the_model(templates_dir: Path) -> None:
    shown, refused, without = 0, set(), set()
    for name, template in templates(templates_dir).items():
        if not template.has_tools:
            continue
        try:
            text = "".join(part for part, _ in template.render(CONVERSATION, tools=TOOLS, think=True))
        except TemplateError:
            refused.add(name)
            continue
        assert "get_weather" in text and "RAIN-8" in text, name
        if "Paris-7" not in text:
            without.add(name)
        shown += 1
    assert refused == REFUSED
    assert without == WITHOUT_CALLS
    assert shown > 50


def test_templates_that_know_no_tools_say_so(templates_dir: Path) -> None:
    knows = {name for name, template in templates(templates_dir).items() if template.has_tools}
    for name in ("google-gemma-2-2b-it.jinja", "microsoft-Phi-3.5-mini-instruct.jinja", "llama-cpp-rwkv-world.jinja"):
        assert name not in knows
    for name in ("Qwen-Qwen3-0.6B.jinja", "meta-llama-Llama-3.1-8B-Instruct.jinja", "openai-gpt-oss-120b.jinja"):
        assert name in knows


def test_thinking_on_and_off_make_different_prompts_where_the_template_knows_both(templates_dir: Path) -> None:
    for name in BOTH_WAYS:
        template = templates(templates_dir)[name]
        assert template.thinks, name
        on, off = (template.render(CONVERSATION[:1], think=think) for think in (True, False))
        assert on != off, name


def test_levels_reach_gpt_oss(templates_dir: Path) -> None:
    template = templates(templates_dir)["openai-gpt-oss-120b.jinja"]
    for think, said in (("low", "low"), ("max", "high"), (True, "medium")):
        text = "".join(part for part, _ in template.render(CONVERSATION[:1], think=think))
        assert f"Reasoning: {said}" in text


def test_an_answer_that_has_begun_ends_every_prompt(templates_dir: Path) -> None:
    continued = 0
    begun = {"role": "assistant", "content": "It rains, I"}
    for template in templates(templates_dir).values():
        try:
            text = "".join(part for part, _ in template.render([CONVERSATION[0], begun]))
        except TemplateError:
            continue
        assert text.endswith("It rains, I")
        continued += 1
    assert continued > 50
