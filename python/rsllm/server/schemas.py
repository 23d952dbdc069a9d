"""What each native route takes: fields with their types and defaults, checked when a request is read."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from rsllm.runner.policy import parse_keep_alive
from rsllm.server.body import Body, refuse
from rsllm.server.errors import ApiError
from rsllm.server.messages import read_message, read_tool

__all__ = ["ChatRequest", "EmbedRequest", "GenerateRequest", "Inference", "TransferRequest"]

TOP_LOGPROBS_LIMIT = 20
_LEVELS = ("high", "medium", "low", "max")
# What a template is told that is no variable of the caller's.
RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"})


@dataclass(frozen=True, kw_only=True)
class Inference:
    """What generate and chat have in common."""

    model: str
    stream: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    keep_alive: float | None = None
    """Seconds, infinite for ever; `None`: the server's own."""
    schema: Any = None
    """`None`, "json" or a JSON schema."""
    think: bool | str | None = None
    think_is_optional: bool = False
    """A model that cannot think is no reason to refuse the request."""
    truncate: bool = True
    shift: bool | None = None
    """`None`: as the model's architecture can."""
    logprobs: int | None = None
    """How many alternatives of each token; `None`: no log probabilities."""
    render_only: bool = False
    count_only: bool = False
    """Only the length of the prompt is wanted, whether it fits or not."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GenerateRequest(Inference):
    """`POST /api/generate`."""

    prompt: str = ""
    prompt_ids: tuple[int, ...] = ()
    """The prompt as token ids, in place of a text; it is sent as it is."""
    suffix: str = ""
    system: str | None = None
    template: str = ""
    context: tuple[int, ...] = ()
    raw: bool = False
    images: int = 0
    """How many."""

    @classmethod
    def read(cls, body: Body) -> GenerateRequest:
        system = body.take("system")
        if system is not None and not isinstance(system, str):
            refuse("system", "a text", system)
        fields: dict[str, Any] = dict(
            prompt=body.text("prompt"),
            suffix=body.text("suffix"),
            system=system or None,
            template=body.text("template"),
            context=_ids(body.items("context")),
            raw=body.flag("raw", False),
            images=len(body.items("images")),
        )
        request = cls(**fields, **_inference(body))
        if request.raw and (request.template or request.system or request.context):
            raise ApiError(400, "raw mode does not support template, system, or context")
        return request

    @property
    def is_empty(self) -> bool:
        """Only to load or unload the model."""
        return not self.prompt and not self.prompt_ids


@dataclass(frozen=True, kw_only=True)
class ChatRequest(Inference):
    """`POST /api/chat`."""

    messages: tuple[dict[str, Any], ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    """Each has a member `function`, an object; the other members are as they were sent."""
    parallel_tool_calls: bool = True
    """Ours: otherwise the answer ends with its first call."""
    variables: dict[str, Any] = field(default_factory=dict)
    """Ours too: what the template is told beside the conversation."""

    @classmethod
    def read(cls, body: Body) -> ChatRequest:
        messages = tuple(read_message(value, index) for index, value in enumerate(body.items("messages")))
        tools = tuple(read_tool(value, f"tools[{index}]") for index, value in enumerate(body.items("tools")))
        variables = body.mapping("chat_template_kwargs")
        if taken := sorted(RESERVED & variables.keys()):
            raise ApiError(400, f"chat_template_kwargs cannot set {taken[0]!r}: a field of the request does")
        fields: dict[str, Any] = dict(
            messages=messages, tools=tools, parallel_tool_calls=body.flag("parallel_tool_calls", True)
        )
        inference = _inference(body)
        thinks = variables.get("enable_thinking")
        if inference["think"] is None and isinstance(thinks, bool):  # other servers' name for it
            inference |= {"think": thinks, "think_is_optional": True}
        return cls(variables=variables, **fields, **inference)

    @property
    def is_empty(self) -> bool:
        """Only to load or unload the model."""
        return not self.messages


@dataclass(frozen=True, kw_only=True)
class EmbedRequest:
    """`POST /api/embed`, and the older `/api/embeddings` with one input."""

    model: str
    inputs: tuple[str, ...] = ()
    truncate: bool = True
    dimensions: int | None = None
    normalise: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    keep_alive: float | None = None
    warnings: tuple[str, ...] = ()

    @classmethod
    def read(cls, body: Body) -> EmbedRequest:
        value = body.take("input")
        inputs = [value] if isinstance(value, str) and value else value or []
        if not isinstance(inputs, list) or not all(isinstance(text, str) for text in inputs):
            raise ApiError(400, "invalid input type")
        dimensions = body.count("dimensions")
        if dimensions is not None and dimensions < 0:
            refuse("dimensions", "a whole number from 0", dimensions)
        fields: dict[str, Any] = dict(truncate=body.flag("truncate", True), dimensions=dimensions or None)
        return cls(inputs=tuple(inputs), **fields, **_shared(body))

    @classmethod
    def read_legacy(cls, body: Body) -> EmbedRequest:
        prompt = body.text("prompt")
        return cls(inputs=(prompt,) if prompt else (), normalise=False, **_shared(body))


@dataclass(frozen=True)
class TransferRequest:
    """`POST /api/pull` and `/api/push`."""

    model: str
    insecure: bool
    stream: bool

    @classmethod
    def read(cls, body: Body) -> TransferRequest:
        return cls(body.text("model", "name"), body.flag("insecure", False), body.flag("stream", True))


def _shared(body: Body) -> dict[str, Any]:
    keep_alive = body.take("keep_alive")
    return {
        "model": body.text("model").strip(),
        "options": body.mapping("options"),
        "keep_alive": None if keep_alive is None else parse_keep_alive(keep_alive),
        "warnings": tuple(body.unknown()),
    }


def _inference(body: Body) -> dict[str, Any]:
    read = {
        "stream": body.flag("stream", True),
        "schema": _schema(body.take("format")),
        "think": _think(body.take("think")),
        "truncate": body.flag("truncate", True),
        "shift": None if body.take("shift") is None else body.flag("shift", True),
        "logprobs": _logprobs(body),
        "render_only": body.flag("_debug_render_only", False),
    }
    return {**read, **_shared(body)}


def _schema(value: Any) -> Any:
    if value is None or value == "":
        return None
    if value == "json" or isinstance(value, dict):
        return value
    raise ApiError(400, f'invalid format: {json.dumps(value)[:60]}; expected "json" or a valid JSON Schema object')


def _think(value: Any) -> bool | str | None:
    if value is None or isinstance(value, bool) or value in _LEVELS:
        return value  # type: ignore[no-any-return]
    shown = value if isinstance(value, str) else json.dumps(value)
    raise ApiError(400, f'invalid think value: "{shown[:60]}" (must be "high", "medium", "low", "max", true, or false)')


def _logprobs(body: Body) -> int | None:
    wanted, top = body.flag("logprobs", False), body.count("top_logprobs") or 0
    if not 0 <= top <= TOP_LOGPROBS_LIMIT:
        raise ApiError(400, f"top_logprobs must be between 0 and {TOP_LOGPROBS_LIMIT}")
    return top if wanted else None


def _ids(values: list[Any]) -> tuple[int, ...]:
    if not all(type(id) is int and 0 <= id < 2**32 for id in values):
        refuse("context", "a list of token ids", values)
    return tuple(values)
