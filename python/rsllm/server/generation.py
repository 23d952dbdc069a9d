"""What the server does to continue a prompt or a conversation: `generate` and `chat`.

Both are generators of what happens, without a word about HTTP. The model is held for as long as the generator runs:
closing it cancels the sequence and gives the model back.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rsllm.errors import ModelNameError, ModelNotFoundError, TemplateError
from rsllm.runner.pool import Lease
from rsllm.server import abilities
from rsllm.server.answers import Answer
from rsllm.server.errors import ApiError
from rsllm.server.models import Served
from rsllm.server.options import Options
from rsllm.server.prompts import Fit, Prompt, chat_prompt, check_ids, ids_prompt, parts_prompt, raw_prompt
from rsllm.server.reading import Final, Piece, Reading
from rsllm.server.schemas import ChatRequest, GenerateRequest, Inference
from rsllm.server.service import Clock, Services, find, read_options, use
from rsllm.server.templates import PromptTemplate, known_stops

__all__ = ["CONTEXTS", "chat", "generate"]

log = logging.getLogger("rsllm.server")

Message = dict[str, Any]

CONTEXTS = 10
"""How many times its context an answer without a limit may be long, where it may go on when the context is full."""


@dataclass(frozen=True)
class _Task:
    """What is left to do once the model is there."""

    prompt: Callable[[Lease, Fit], Awaitable[Prompt]]
    template: PromptTemplate | None = None
    """The one that makes the prompt."""
    reading: Reading | None = None
    with_context: bool = False
    warnings: Sequence[str] = ()


async def generate(services: Services, request: GenerateRequest) -> AsyncIterator[Piece | Final]:
    """The answer to a prompt."""
    clock = Clock()
    try:
        served = await find(services, request.model)
    except (ModelNameError, ModelNotFoundError) as error:
        raise ApiError(404, f"model '{request.model[:200]}' not found", hint=error.hint) from None
    task = None if request.is_empty else _generate_task(served, request)
    async for event in _run(services, served, request, task, clock):
        yield event


async def chat(services: Services, request: ChatRequest) -> AsyncIterator[Piece | Final]:
    """The next message of a conversation."""
    clock = Clock()
    if not request.model:
        raise ApiError(400, "model is required")
    served = await find(services, request.model)
    task = None if request.is_empty else _chat_task(served, request)
    async for event in _run(services, served, request, task, clock):
        yield event


async def _run(
    services: Services, served: Served, request: Inference, task: _Task | None, clock: Clock
) -> AsyncIterator[Piece | Final]:
    """Hold the model and do the task; without one, only load or unload it."""
    if task is None and request.keep_alive == 0:
        services.pool.unload(served.path)
        yield Final("unload")
        return
    asked = read_options(services, served, request)
    async with use(services, served, asked, request.keep_alive) as lease:
        clock.loaded()
        if task is None:
            about_model = [str(warning) for warning in lease.info.get("warnings") or ()]
            yield Final("load", clock.metrics(), [*asked.warnings, *about_model])
            return
        asked = _with_stops(asked, served, request, task)
        shift = served.facts.can_shift if request.shift is None else request.shift
        most = asked.sampling["max_tokens"]
        fit = Fit(request.truncate, shift, asked.num_keep, most, is_free=request.count_only)
        prompt = await task.prompt(lease, fit)
        warnings = [*asked.warnings, *_longer_context(request, lease), *task.warnings, *prompt.warnings]
        for warning in (*task.warnings, *prompt.warnings):
            log.warning("%s", warning)
        if request.render_only or request.count_only:
            yield Final("", {"prompt_eval_count": len(prompt.ids)}, warnings, rendered=prompt.text)
            return
        full = _when_full(asked, request, shift, len(prompt.ids), int(lease.info["context"]))
        sampling = {**asked.sampling, **full}
        answer = Answer(lease, prompt, sampling, task.reading)
        async for piece in answer.pieces():
            yield piece
        context = [*prompt.ids, *answer.ids] if task.with_context else None
        metrics = {**clock.metrics(), **answer.metrics}
        if (known := metrics["cached_tokens"]) < metrics["prompt_eval_count"] - 1:
            # Who edits an earlier message without knowing finds out here where.
            log.debug("the prompt diverged from what is cached at token %d of %d", known, len(prompt.ids))
        if asked.sampling["max_tokens"] is None and metrics["eval_count"] >= full.get("max_tokens", math.inf):
            count = metrics["eval_count"]
            warnings.append(f"stopped after {count} tokens, since no num_predict says how many there may be")
        yield Final(answer.reason, metrics, [*warnings, *answer.warnings], context)


def _when_full(asked: Options, request: Inference, can_shift: bool, prompt: int, context: int) -> dict[str, Any]:
    """What the engine is to do when the context is full: forget the older half and go on, or end.

    An answer without a limit ends there, or a model that goes round in circles would do so for ever. Where the prompt
    has left it less than a quarter of the context it may go on, up to the length of one; where the request asks for a
    shift in so many words, up to Ollama's limit. With `num_predict` -2 it fills the context, and that is all.
    """
    limit = asked.sampling["max_tokens"]
    if limit is None:
        is_asked = request.shift is True and not asked.fills_context
        has_room = context - prompt >= context // 4
        if asked.fills_context or (has_room and not is_asked):
            return {"shift": False}
        limit = (CONTEXTS if is_asked else 1) * context
    return {"shift": can_shift, "num_keep": max(0, asked.num_keep), "max_tokens": limit}


def _longer_context(request: Inference, lease: Lease) -> list[str]:
    """A model that is loaded with more than a request asks for is not loaded anew for it, and that is said."""
    wanted, there = request.options.get("num_ctx"), int(lease.info.get("context") or 0)
    if not isinstance(wanted, (int, float)) or not 0 < wanted < there:
        return []
    return [f"num_ctx {wanted:g}: the model is loaded with a context of {there} tokens, which is used"]


# Prompts of /api/generate.


def _generate_task(served: Served, request: GenerateRequest) -> _Task:
    """How a prompt is answered; raises `ApiError` where the model cannot do what is asked."""
    abilities.check_generate(served, request)
    if request.prompt_ids:
        return _Task(lambda lease, fit: ids_prompt(lease, request.prompt_ids, fit))
    if request.raw:
        think = abilities.thinking(served, request) if request.think else None
        reading = _reading(served, served.chosen.template, think) if think else None
        return _Task(lambda lease, fit: raw_prompt(lease, request.prompt, fit), reading=reading)
    if request.suffix:
        abilities.thinking(served, request)
        parts = abilities.gap_parts(served, request.prompt, request.suffix)
        return _Task(lambda lease, fit: parts_prompt(lease, parts, fit), with_context=True)
    template = abilities.template_of_request(request) or served.chosen.template
    if template is None:
        if served.chosen.error is not None:
            raise served.chosen.error
        return _Task(lambda lease, fit: _untemplated(lease, request, fit), with_context=True)
    think = abilities.thinking(served, request, template)
    messages = _generate_messages(served, request)

    async def prompt(lease: Lease, fit: Fit) -> Prompt:
        check_ids(lease, request.context, "context")
        return await chat_prompt(
            lease, lambda kept: template.render(kept, think=think), messages, fit=fit, before=request.context
        )

    reader = template if template.thinks else served.chosen.template or template
    warnings = [] if request.template else abilities.template_warnings(served)
    return _Task(prompt, template, _reading(served, reader, think), with_context=True, warnings=warnings)


def _generate_messages(served: Served, request: GenerateRequest) -> list[Message]:
    system = request.system or served.system
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    if not request.context:
        messages += served.messages
    return [*messages, {"role": "user", "content": request.prompt}]


async def _untemplated(lease: Lease, request: GenerateRequest, fit: Fit) -> Prompt:
    """The prompt of a model without any template: itself, as in Ollama."""
    if request.system:
        raise TemplateError(f"model {request.model!r} has no chat template, so a system message has no place")
    check_ids(lease, request.context, "context")
    prompt = await raw_prompt(lease, request.prompt, fit)
    if request.context:
        prompt = replace(prompt, ids=[*request.context, *prompt.ids])
    prompt.warnings.append("the model has no chat template: the prompt was sent as it is")
    return prompt


# Prompts of /api/chat.


def _chat_task(served: Served, request: ChatRequest) -> _Task:
    """How a conversation goes on; raises `ApiError` where the model cannot do what is asked."""
    abilities.check_chat(served, request)
    template = served.chosen.template
    if template is None:
        raise served.chosen.error or TemplateError(
            f"model {served.asked!r} has no chat template",
            hint="use /api/generate with raw, and a prompt in its own form",
        )
    think = abilities.thinking(served, request, template)
    tools = abilities.tools(served, request)
    messages = _conversation(served, request)

    async def prompt(lease: Lease, fit: Fit) -> Prompt:
        def render(kept: Sequence[Message]) -> list[tuple[str, bool]]:
            return template.render(kept, tools=tools, think=think, variables=request.variables)

        return await chat_prompt(lease, render, messages, fit=fit)

    warnings = [*abilities.template_warnings(served), *abilities.wish_warnings(served, request)]
    reading = _reading(served, template, think, tools, one_call=not request.parallel_tool_calls)
    return _Task(prompt, template, reading, warnings=warnings)


def _conversation(served: Served, request: ChatRequest) -> list[Message]:
    messages = [*served.messages, *request.messages]
    if served.system and request.messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": served.system})
    return messages


# What both need.


def _reading(
    served: Served,
    template: PromptTemplate | None,
    think: bool | str | None,
    tools: Sequence[Mapping[str, Any]] = (),
    *,
    one_call: bool = False,
) -> Reading | None:
    """How replies are read; `None` where they are text and nothing else."""
    if template is None:
        return None
    choice = template.parser(tools)
    if not choice.thinks and not choice.tools:
        return None
    texts = choice.special_texts
    control = {id: text for text, id in served.facts.control.items() if any(text in tag for tag in texts)}
    return Reading(choice, think, control, one_call)


def _with_stops(asked: Options, served: Served, request: Inference, task: _Task) -> Options:
    """The stop strings of a known shape of conversation, where a Go template has that shape and nobody names any."""
    if task.template is None or not task.template.is_go or "stop" in {*request.options, *served.parameters}:
        return asked
    # What is a control token is none of a text's business, and ends the answer by itself.
    stops = [text for text in known_stops(task.template.source) if text not in served.facts.control]
    if not stops:
        return asked
    said = ", ".join(map(repr, stops))
    warning = f"the model names no stop strings: those of its kind of template were used, {said}"
    return replace(asked, sampling={**asked.sampling, "stop": stops}, warnings=[*asked.warnings, warning])
