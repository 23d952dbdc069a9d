"""What the server does for a request about a model: generate, chat, embed, load and unload.

Each function is a generator of what happens, without a word about HTTP. The model is held for as long as the generator
runs: closing it cancels the sequence and gives the model back.
"""

from __future__ import annotations

import array
import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rsllm.config import Config
from rsllm.errors import ContextLengthError, ModelNameError, ModelNotFoundError, TemplateError
from rsllm.runner.pool import Lease, RunnerPool
from rsllm.server import options
from rsllm.server.errors import ApiError
from rsllm.server.models import Models, Served
from rsllm.server.options import Options
from rsllm.server.prompts import Fit, Prompt, chat_prompt, raw_prompt
from rsllm.server.schemas import ChatRequest, EmbedRequest, GenerateRequest, Inference
from rsllm.store.name import ModelName
from rsllm.store.progress import Progress
from rsllm.store.store import Store
from rsllm.streams import Stats, Token

__all__ = ["Embeddings", "Final", "Piece", "Services", "chat", "embed", "generate", "unload"]

log = logging.getLogger("rsllm.server")

# Inputs and tokens of one call to a runner.
_EMBED_INPUTS = 32
_EMBED_TOKENS = 32_768


# The registry is imported when it is needed: it brings cryptography along.


def _pull(store: Store, name: ModelName, *, insecure: bool) -> AsyncIterator[Progress]:
    from rsllm.registry.pull import pull

    return pull(store, name, insecure=insecure)


def _push(store: Store, name: ModelName, *, insecure: bool) -> AsyncIterator[Progress]:
    from rsllm.registry.push import push

    return push(store, name, insecure=insecure)


@dataclass
class Services:
    """What the routes use."""

    config: Config
    models: Models
    pool: RunnerPool
    pull: Callable[..., AsyncIterator[Progress]] = _pull
    push: Callable[..., AsyncIterator[Progress]] = _push
    active: int = 0
    """Requests that are being answered."""
    last_request: float = field(default_factory=time.monotonic)

    @property
    def hidden(self) -> str:
        """A folder that no answer names."""
        return str(self.models.store.root)


@dataclass(frozen=True)
class Piece:
    """A piece of an answer."""

    text: str
    logprobs: list[dict[str, Any]] | None = None


@dataclass(frozen=True)
class Final:
    """The end of an answer."""

    reason: str
    metrics: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    context: list[int] | None = None
    rendered: str | None = None
    """The prompt, where only that was asked for."""


@dataclass(frozen=True)
class Embeddings:
    """Vectors, and what they took."""

    vectors: list[list[float]]
    metrics: dict[str, int]
    warnings: list[str]


class _Clock:
    """Durations of a request, in nanoseconds."""

    def __init__(self) -> None:
        self._start = time.perf_counter_ns()
        self._loaded = self._start

    def loaded(self) -> None:
        self._loaded = time.perf_counter_ns()

    def metrics(self) -> dict[str, int]:
        now = time.perf_counter_ns()
        return {"total_duration": now - self._start, "load_duration": self._loaded - self._start}

    def with_stats(self, stats: Stats) -> dict[str, int]:
        return {
            **self.metrics(),
            "prompt_eval_count": stats.prompt_tokens,
            "prompt_eval_duration": stats.prefill_ns,
            "eval_count": stats.generated_tokens,
            "eval_duration": stats.decode_ns,
            "cached_tokens": stats.cached_tokens,
            "queue_duration": stats.queue_ns,
        }


async def generate(services: Services, request: GenerateRequest) -> AsyncIterator[Piece | Final]:
    """The answer to a prompt."""
    clock = _Clock()
    try:
        served = await services.models.find(request.model)
    except (ModelNameError, ModelNotFoundError) as error:
        raise ApiError(404, f"model '{request.model[:200]}' not found", hint=error.hint) from None
    if request.is_empty and request.keep_alive == 0:
        yield _unloaded(services, served)
        return
    if not request.is_empty:
        _check_generate(served, request)
    asked = _options(services, served, request)
    async with _use(services, served, asked, request.keep_alive) as lease:
        clock.loaded()
        if request.is_empty:
            yield Final("load", clock.metrics(), asked.warnings)
            return
        fit = Fit(request.truncate, request.shift, asked.num_keep)
        prompt = await _generate_prompt(lease, served, request, fit)
        async for event in _answer(lease, prompt, asked, request, clock, with_context=not request.raw):
            yield event


async def chat(services: Services, request: ChatRequest) -> AsyncIterator[Piece | Final]:
    """The next message of a conversation."""
    clock = _Clock()
    if not request.model:
        raise ApiError(400, "model is required")
    served = await services.models.find(request.model)
    if request.is_empty and request.keep_alive == 0:
        yield _unloaded(services, served)
        return
    if not request.is_empty:
        _check_chat(served, request)
    asked = _options(services, served, request)
    async with _use(services, served, asked, request.keep_alive) as lease:
        clock.loaded()
        if request.is_empty:
            yield Final("load", clock.metrics(), asked.warnings)
            return
        messages = _conversation(served, request)
        fit = Fit(request.truncate, request.shift, asked.num_keep)
        prompt = await chat_prompt(lease, served, messages, fit=fit, variables=_variables(request))
        prompt.warnings += _template_warnings(served)
        async for event in _answer(lease, prompt, asked, request, clock):
            yield event


async def embed(services: Services, request: EmbedRequest) -> Embeddings:
    """Vectors of texts, in their order."""
    clock = _Clock()
    served = await services.models.find(request.model)
    asked = _options(services, served, request)
    warnings = list(asked.warnings)
    async with _use(services, served, asked, request.keep_alive) as lease:
        clock.loaded()
        if not request.inputs:
            return Embeddings([], clock.metrics(), warnings)
        inputs = []
        for index, text in enumerate(request.inputs):
            ids = await lease.tokenize([(text, False)], add_special=True)
            inputs.append(_fitting(ids, lease, request.truncate, index, warnings))
        vectors = []
        for group in _groups(inputs):
            pooling = {"pooling": served.facts.pooling, "normalise": request.normalise}
            data = await lease.embed(group, pooling)
            vectors += _vectors(data, len(group), request)
        metrics = {**clock.metrics(), "prompt_eval_count": sum(map(len, inputs))}
        return Embeddings(vectors, metrics, warnings)


async def unload(services: Services, name: str) -> bool:
    """Let a model go as soon as it is idle. False if it is not loaded."""
    return services.pool.unload(await services.models.path(name))


# The parts of an answer.


async def _answer(
    lease: Lease,
    prompt: Prompt,
    asked: Options,
    request: Inference,
    clock: _Clock,
    *,
    with_context: bool = False,
) -> AsyncIterator[Piece | Final]:
    warnings = [*asked.warnings, *prompt.warnings]
    for warning in prompt.warnings:
        log.warning("%s", warning)
    if request.render_only:
        yield Final("", warnings=warnings, rendered=prompt.text)
        return
    ids: list[int] = []
    shifting = {"shift": request.shift, "num_keep": max(0, asked.num_keep)}
    generation = await lease.generate(prompt.ids, {**asked.sampling, **shifting})
    async for token in generation:
        ids += token.ids
        logprobs = _logprobs(token)
        if token or logprobs:
            yield Piece(str(token), logprobs)
    stats = generation.stats
    if stats is None:
        raise RuntimeError("a sequence that has ended has figures")
    warnings += stats.warnings
    if stats.shifts:
        warnings.append(f"the context was full: {stats.dropped_tokens} of its older tokens were forgotten on the way")
    if stats.finish_reason == "context":
        warnings.append(f"stopped because the context of {lease.info['context']} tokens is full")
    reason = "stop" if stats.finish_reason == "stop" else "length"
    yield Final(reason, clock.with_stats(stats), warnings, [*prompt.ids, *ids] if with_context else None)


async def _generate_prompt(lease: Lease, served: Served, request: GenerateRequest, fit: Fit) -> Prompt:
    if request.raw:
        return await raw_prompt(lease, request.prompt, fit)
    facts = served.facts
    if facts.template is None and facts.template_error is None:
        return await _untemplated(lease, request, fit)
    system = request.system or served.system
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    if not request.context:
        messages += served.messages
    messages.append({"role": "user", "content": request.prompt})
    vocab_size = int(lease.info.get("vocab_size") or 0)
    if any(id >= vocab_size for id in request.context):
        raise ApiError(400, f"field 'context' has a token beyond the vocabulary of {vocab_size}")
    prompt = await chat_prompt(lease, served, messages, fit=fit, variables=_variables(request), before=request.context)
    prompt.warnings += _template_warnings(served)
    return prompt


async def _untemplated(lease: Lease, request: GenerateRequest, fit: Fit) -> Prompt:
    """The prompt of a model without any template: itself, as in Ollama."""
    if request.system:
        raise TemplateError(f"model {request.model!r} has no chat template, so a system message has no place")
    prompt = await raw_prompt(lease, request.prompt, fit)
    if request.context:
        prompt = replace(prompt, ids=[*request.context, *prompt.ids])
    prompt.warnings.append("the model has no chat template: the prompt was sent as it is")
    return prompt


def _conversation(served: Served, request: ChatRequest) -> list[dict[str, Any]]:
    messages = [*served.messages, *request.messages]
    if served.system and request.messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": served.system})
    return messages


def _variables(request: Inference) -> dict[str, Any]:
    return {} if request.think is None else {"enable_thinking": bool(request.think)}


def _use(services: Services, served: Served, asked: Options, keep_alive: float | None) -> Any:
    return services.pool.use(served.path, name=served.name.short, options=asked.runner, keep_alive=keep_alive)


def _options(services: Services, served: Served, request: Inference | EmbedRequest) -> Options:
    constraint = {"schema": request.schema, "logprobs": request.logprobs} if isinstance(request, Inference) else {}
    read = options.read(
        request.options,
        served.parameters,
        environment_context=services.config.context_length,
        training_context=served.facts.training_context,
        **constraint,
    )
    return replace(read, warnings=[*request.warnings, *read.warnings])


def _unloaded(services: Services, served: Served) -> Final:
    services.pool.unload(served.path)
    return Final("unload")


# What is not supported yet is refused, not ignored.


def _check_generate(served: Served, request: GenerateRequest) -> None:
    if request.suffix:
        raise ApiError(400, f"{served.name.full} does not support insert")
    if request.template:
        raise ApiError(400, "a template in the request is not supported yet: send a raw prompt instead")
    if request.images:
        raise ApiError(400, f"{served.name.full} does not support vision: images are not supported yet")
    _check_model(served, request, "generate", needs_template=not request.raw)


def _check_chat(served: Served, request: ChatRequest) -> None:
    if request.tools:
        raise ApiError(400, f"{served.name.full} does not support tools: they are not supported yet")
    for index, message in enumerate(request.messages):
        for name in ("images", "tool_calls"):
            if message.get(name):
                raise ApiError(400, f"messages[{index}].{name}: not supported yet")
    _check_model(served, request, "chat", needs_template=True)


def _check_model(served: Served, request: Inference, route: str, *, needs_template: bool) -> None:
    if served.facts.is_embedding:
        raise ApiError(400, f'"{served.asked}" does not support {route}')
    if request.think:
        raise ApiError(400, f'"{served.asked}" does not support thinking: it is not supported yet')
    if needs_template and served.go_template and served.facts.template is None:
        raise served.facts.template_error or ApiError(
            400,
            f"model {served.asked!r} has only a Go template (TEMPLATE), and those are not supported yet",
            hint="use /api/generate with raw, and a prompt in the model's own form",
        )


def _template_warnings(served: Served) -> list[str]:
    """What is not done as Ollama would."""
    warnings = []
    if served.go_template:
        warnings.append("the model's Go template (TEMPLATE) is not supported yet: the file's own template was used")
    template = served.facts.template
    if template is not None and "</think>" in template.source:
        warnings.append("thinking is not told from the answer yet: the text may hold both")
    return warnings


# Numbers.


def _logprobs(token: Token) -> list[dict[str, Any]] | None:
    if token.logprobs is None:
        return None
    return [
        {
            **_entry(entry),
            **({"top_logprobs": [_entry(other) for other in entry.top]} if entry.top else {}),
        }
        for entry in token.logprobs
    ]


def _entry(entry: Any) -> dict[str, Any]:
    # JSON has no infinity: a token that cannot come has the smallest logarithm that a float32 can say.
    logprob = entry.logprob if math.isfinite(entry.logprob) else -3.4028235e38
    return {"token": entry.text, "logprob": logprob, "bytes": list(entry.bytes)}


def _fitting(ids: list[int], lease: Lease, truncate: bool, index: int, warnings: list[str]) -> list[int]:
    """The tokens of an input, its end cut off where it is longer than the context; its last token may be an EOS."""
    limit = int(lease.info["context"])
    if len(ids) <= limit:
        return ids
    if not truncate:
        raise ContextLengthError(
            f"the input length exceeds the context length: input {index} has {len(ids)} tokens, the context {limit}",
            prompt_tokens=len(ids),
            context=limit,
        )
    warnings.append(f"input {index} was cut from {len(ids)} to {limit} tokens, the length of the context")
    special = lease.special_tokens
    if special.get("add_eos") and ids[-1] == special.get("eos"):
        return [*ids[: limit - 1], ids[-1]]
    return ids[:limit]


def _groups(inputs: Sequence[list[int]]) -> list[list[list[int]]]:
    groups: list[list[list[int]]] = []
    tokens = 0
    for ids in inputs:
        if not groups or len(groups[-1]) == _EMBED_INPUTS or tokens + len(ids) > _EMBED_TOKENS:
            groups.append([])
            tokens = 0
        groups[-1].append(ids)
        tokens += len(ids)
    return groups


def _vectors(data: bytearray, count: int, request: EmbedRequest) -> list[list[float]]:
    values = array.array("f")
    values.frombytes(data)
    width = len(values) // count
    vectors = [values[row * width : (row + 1) * width].tolist() for row in range(count)]
    if not all(map(math.isfinite, values)):
        raise ApiError(400, "embedding contains NaN or Inf values")
    if request.dimensions is None or request.dimensions >= width:
        return vectors
    return [_scaled(vector[: request.dimensions]) for vector in vectors]


def _scaled(vector: list[float]) -> list[float]:
    length = math.sqrt(math.fsum(value * value for value in vector))
    return [value / length for value in vector] if length else vector


async def in_thread(iterator: Any) -> AsyncIterator[Any]:
    """What a blocking generator yields. Closing this closes it, as soon as it comes to its next item."""
    end = object()
    step: asyncio.Future[Any] | None = None
    try:
        while True:
            step = asyncio.ensure_future(asyncio.to_thread(next, iterator, end))
            item = await asyncio.shield(step)
            if item is end:
                return
            yield item
    finally:
        if step is not None and not step.done():
            await asyncio.wait({step})
        await asyncio.to_thread(iterator.close)
