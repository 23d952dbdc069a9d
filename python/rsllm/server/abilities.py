"""What a model can do, and which requests it must refuse: in Ollama's words where those exist."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rsllm.errors import TemplateError
from rsllm.server.errors import ApiError
from rsllm.server.forced import is_forced_call
from rsllm.server.models import Served
from rsllm.server.schemas import ChatRequest, GenerateRequest, Inference
from rsllm.server.templates import PromptTemplate, compiled_go

__all__ = [
    "check_chat",
    "check_generate",
    "gap_parts",
    "template_of_request",
    "template_warnings",
    "thinking",
    "tools",
    "wish_warnings",
]

_OLD_TEMPLATES = ("qwen3", "deepseek-r1")


def check_generate(served: Served, request: GenerateRequest) -> None:
    """Refuse what no prompt of this model can have; raises `ApiError`."""
    if request.images:
        raise ApiError(400, f"{served.name.full} does not support vision: images are not supported yet")
    if served.facts.is_embedding:
        raise ApiError(400, f'"{served.asked}" does not support generate')


def check_chat(served: Served, request: ChatRequest) -> None:
    """Refuse what no conversation with this model can have; raises `ApiError`."""
    for index, message in enumerate(request.messages):
        if message.get("images"):
            where = f"messages[{index}].images: not supported yet"
            raise ApiError(400, f"{served.name.full} does not support vision: {where}")
    if served.facts.is_embedding:
        raise ApiError(400, f'"{served.asked}" does not support chat')


def thinking(served: Served, request: Inference, template: PromptTemplate | None = None) -> bool | str | None:
    """`think` as it applies: true unless the request says otherwise, unset for a model that does not think. Raises
    `ApiError` where it is asked to all the same."""
    own = served.chosen.template
    if any(found is not None and found.thinks for found in (template, own)):
        return True if request.think is None else request.think
    if request.think and not request.think_is_optional:
        name = served.name.model.lower()
        old = any(part in name for part in _OLD_TEMPLATES)
        advice = ". Pull the model again to get the latest version with full thinking support" if old else ""
        text = f'"{served.asked}" does not support thinking{advice}'
        raise ApiError(400, text, hint="leave out `think`, or the effort of reasoning, or send false or none")
    return False if request.think is False else None


def wish_warnings(served: Served, request: ChatRequest) -> list[str]:
    """What became of wishes that are not met, and that are no reason to refuse the request."""
    warnings = []
    template = served.chosen.template
    if request.think and request.think_is_optional and template is not None and not template.thinks:
        warnings.append("the model does not support thinking: it was left out")
    if request.variables and template is not None and template.is_go:
        warnings.append("field 'chat_template_kwargs' has no effect: the model's template is Go's")
    if request.tools and request.schema is not None and not is_forced_call(request.schema, request.tools):
        warnings.append("the format leaves the model no room to call a tool")
    return warnings


def tools(served: Served, request: ChatRequest) -> Sequence[Mapping[str, Any]]:
    """The tools of a request; raises `ApiError` where the model knows none, or where they are none."""
    if not request.tools:
        return ()
    template = served.chosen.template
    if template is None or not template.has_tools:
        raise ApiError(400, f"{served.name.full} does not support tools")
    for index, tool in enumerate(request.tools):
        if not tool["function"].get("name"):
            raise ApiError(400, f"tools[{index}].function has no name")
    return request.tools


def gap_parts(served: Served, prompt: str, suffix: str) -> list[tuple[str, bool]]:
    """The prompt for the text between two others, by the Go template or by the model's own control tokens for it."""
    if served.chosen.suffix is not None:
        return served.chosen.suffix.render_gap(prompt, suffix)
    if served.facts.gap is None:
        raise ApiError(400, f"{served.name.full} does not support insert")
    before, between, behind = served.facts.gap
    return [(before, True), (prompt, False), (between, True), (suffix, False), (behind, True)]


def template_of_request(request: GenerateRequest) -> PromptTemplate | None:
    """The Go template that a request brings along."""
    if not request.template:
        return None
    if "{%" in request.template:
        raise TemplateError("the field template takes a Go template, and this looks like Jinja")
    return PromptTemplate(compiled_go(request.template))


def template_warnings(served: Served) -> list[str]:
    """What is not done as somebody might count on."""
    template = served.chosen.template
    warnings = list(served.chosen.warnings)
    if template is not None and template.mixes_thoughts:
        warnings.append("the notation of this model's thoughts is not known: the text may hold both")
    return warnings
