"""Bodies of requests: JSON as clients really send it, checked field by field.

A body is read whatever its Content-Type says. Names of fields match in any case, the exact one first; a field that is
not known is no error, but the reply says so in its `warnings`. A value of the wrong type is a 400 that names the field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from rsllm.options import OLLAMA_NAMES, OPTIONS
from rsllm.runner.policy import parse_keep_alive
from rsllm.server.errors import ApiError

__all__ = ["Body", "ChatRequest", "EmbedRequest", "GenerateRequest", "Inference", "TransferRequest"]

TOP_LOGPROBS_LIMIT = 20
DEPTH_LIMIT = 200
_LEVELS = ("high", "medium", "low", "max")
_MESSAGE_FIELDS = (
    "role", "content", "thinking", "images", "tool_calls", "tool_name", "tool_call_id", "name", "reasoning_content",
)  # fmt: skip


class Body:
    """The members of a request, taken one after the other; `unknown` are those that nobody asked for."""

    def __init__(self, members: Mapping[str, Any]) -> None:
        self._members = dict(members)
        self._by_lower = {name.lower(): name for name in reversed(list(members))}
        self._taken: set[str] = set()
        self._known: set[str] = set()

    @classmethod
    def parse(cls, data: bytes) -> Body:
        """Read the first JSON value of a body, which must be an object; 400 where it is none."""
        if not data.strip():
            raise ApiError(400, "missing request body")
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise ApiError(400, f"the body is not UTF-8: byte {error.start} is {data[error.start]:#04x}") from None
        decoder = json.JSONDecoder(parse_constant=_refuse_constant)
        try:
            value, _ = decoder.raw_decode(text.lstrip())
        except (ValueError, RecursionError) as error:
            raise ApiError(400, f"the body is not JSON: {str(error) or 'too deep'}"[:300]) from None
        if not isinstance(value, dict):
            raise ApiError(400, f"the body is {_kind(value)}, not an object")
        if "\\u" in text:
            value = _without_surrogates(value)
        _check_depth(value)
        return cls(value)

    def take(self, *names: str) -> Any:
        """The value of a field, by the first of its names that is there; `None` where it is absent or null."""
        self._known.update(names)
        for name in names:
            found = name if name in self._members else self._by_lower.get(name.lower())
            if found is not None:
                self._taken.update(other for other in self._members if other.lower() == name.lower())
                if self._members[found] is not None:
                    return self._members[found]
        return None

    def text(self, *names: str, default: str = "") -> str:
        value = self.take(*names)
        if value is None:
            return default
        return value if isinstance(value, str) else refuse(names[0], "a text", value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.take(name)
        if value is None:
            return default
        return value if isinstance(value, bool) else refuse(name, "true or false", value)

    def count(self, name: str) -> int | None:
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        return value if isinstance(value, int) and not isinstance(value, bool) else refuse(name, "a number", value)

    def mapping(self, name: str) -> dict[str, Any]:
        value = self.take(name)
        if value is None:
            return {}
        return value if isinstance(value, dict) else refuse(name, "an object", value)

    def items(self, name: str) -> list[Any]:
        value = self.take(name)
        if value is None:
            return []
        return value if isinstance(value, list) else refuse(name, "a list", value)

    def members(self) -> dict[str, Any]:
        """All of them, names in lower case where they match nothing in their own."""
        self._taken.update(self._members)
        return {name.lower(): value for name, value in self._members.items() if value is not None}

    def unknown(self) -> list[str]:
        """What to say of the fields that were not taken."""
        import difflib

        said = []
        known = sorted(self._known)
        for name in self._members:
            if name in self._taken:
                continue
            shown = name[:60]
            if name in OPTIONS or name in OLLAMA_NAMES or name == "num_ctx":
                said.append(f"{shown!r} has no effect there: it belongs in 'options'")
                continue
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            said.append(f"unknown field {shown!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
        return said[:20]


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
    shift: bool = True
    logprobs: int | None = None
    """How many alternatives of each token; `None`: no log probabilities."""
    render_only: bool = False
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GenerateRequest(Inference):
    """`POST /api/generate`."""

    prompt: str = ""
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
        return not self.prompt


@dataclass(frozen=True, kw_only=True)
class ChatRequest(Inference):
    """`POST /api/chat`."""

    messages: tuple[dict[str, Any], ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    """Each has a member `function`, an object; the other members are as they were sent."""

    @classmethod
    def read(cls, body: Body) -> ChatRequest:
        messages = tuple(_message(value, index) for index, value in enumerate(body.items("messages")))
        tools = tuple(_tool(value, f"tools[{index}]") for index, value in enumerate(body.items("tools")))
        return cls(messages=messages, tools=tools, **_inference(body))

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


def refuse(name: str, expected: str, value: Any) -> NoReturn:
    """A field of the wrong type."""
    raise ApiError(400, f"field {name!r} must be {expected}, not {_kind(value)}")


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
        "shift": body.flag("shift", True),
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


def _message(value: Any, index: int) -> dict[str, Any]:
    """A message with the fields that are not empty; a content in parts becomes one text."""
    where = f"messages[{index}]"
    if not isinstance(value, dict):
        refuse(where, "an object", value)
    body = Body(value)
    message: dict[str, Any] = {}
    for name in _MESSAGE_FIELDS:
        found = body.take(name)
        if found is None or found == []:
            continue
        if name == "content" and isinstance(found, list):
            found = _joined(found, where)
        if name == "tool_calls":
            calls = found if isinstance(found, list) else refuse(f"{where}.{name}", "a list", found)
            found = [_tool_call(call, f"{where}.{name}[{number}]") for number, call in enumerate(calls)]
        elif name != "images" and not isinstance(found, str):
            refuse(f"{where}.{name}", "a text", found)
        message[name] = found
    message["role"] = message.get("role", "").lower()
    if not message["role"]:
        raise ApiError(400, f"{where} has no role")
    message.setdefault("content", "")
    # Other protocols' names for the same.
    for theirs, ours in (("reasoning_content", "thinking"), ("name", "tool_name")):
        if theirs in message and (ours == "thinking" or message["role"] == "tool"):
            message.setdefault(ours, message.pop(theirs))
    return message


def _tool_call(value: Any, where: str) -> dict[str, Any]:
    """A call in the history. Arguments as a JSON text, which is OpenAI's form, are read too."""
    call = value if isinstance(value, dict) else refuse(where, "an object", value)
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise ApiError(400, f"{where} has no function with a name")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}", parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            raise ApiError(400, f"field '{where}.function.arguments' is a text that is not JSON") from None
    if arguments is not None and not isinstance(arguments, dict):
        refuse(f"{where}.function.arguments", "an object", arguments)
    known: dict[str, Any] = {"id": call["id"]} if isinstance(call.get("id"), str) and call["id"] else {}
    index = {"index": function["index"]} if type(function.get("index")) is int else {}
    return {**known, "function": {**index, "name": function["name"], "arguments": arguments or {}}}


def _tool(value: Any, where: str) -> dict[str, Any]:
    """A tool as it was sent, so that the template shows all of it; what clients leave out or empty is filled in."""
    tool = value if isinstance(value, dict) else refuse(where, "an object", value)
    function = tool.get("function")
    if function is not None and not isinstance(function, dict):
        refuse(f"{where}.function", "an object", function)
    function = dict(function or {})
    if function.get("name") is not None and not isinstance(function["name"], str):
        refuse(f"{where}.function.name", "a text", function["name"])
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        refuse(f"{where}.function.parameters", "an object", parameters)
    parameters = dict(parameters or {"type": "object"})
    properties = parameters.get("properties")
    if not properties:  # PHP writes an empty object as a list
        parameters["properties"] = {}
    elif not isinstance(properties, dict):
        refuse(f"{where}.function.parameters.properties", "an object", properties)
    return {"type": "function", **tool, "function": {**function, "parameters": parameters}}


def _joined(parts: list[Any], where: str) -> str:
    """The text of OpenAI's content parts."""
    texts = []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise ApiError(400, f"{where}.content: only parts of type text are supported")
        texts.append(text)
    return "\n".join(texts)


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEPTH_LIMIT):
        level = [
            item
            for holder in level
            if isinstance(holder, (dict, list))
            for item in (holder.values() if isinstance(holder, dict) else holder)
            if isinstance(item, (dict, list))
        ]
        if not level:
            return
    raise ApiError(400, f"the body is nested deeper than {DEPTH_LIMIT} levels")


def _without_surrogates(value: Any) -> Any:
    r"""Halves of pairs, which JSON can write as `\ud83d`, replaced by U+FFFD, as Go reads them."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, (int, float)):
        return "a number"
    return "a text" if isinstance(value, str) else "a list" if isinstance(value, list) else "an object"
