"""What the dialects share: reading fields, events, and the parts of a request that all of them write in some way."""

from __future__ import annotations

import binascii
import json
import random
import re
import time
from base64 import b64decode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rsllm.server.body import Body, refuse
from rsllm.server.errors import ApiError

__all__ = [
    "DONE",
    "Event",
    "Fields",
    "Translated",
    "context_error",
    "effort",
    "fitting",
    "image_data",
    "json_arguments",
    "merged_warnings",
    "random_id",
    "texts",
    "tool_definition",
]

Json = dict[str, Any]

_EFFORTS: dict[str, bool | str] = {
    "none": False, "minimal": "low", "low": "low", "medium": "medium", "high": "high", "max": "max", "xhigh": "max",
    "ultra": "max",
}  # fmt: skip
_DATA_URL = re.compile(r"data:(?:image/(?:jpeg|jpg|png|webp))?;base64,")
_ID_LETTERS = "0123456789abcdef"
# Made once: `json.dumps` makes one for each value where separators are given, which costs as much as the value.
_encoded = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


@dataclass(frozen=True)
class Event:
    """One server-sent event."""

    data: Json | str
    name: str | None = None

    def encode(self) -> bytes:
        """As it goes over the wire."""
        data = self.data if isinstance(self.data, str) else _encoded(self.data)
        head = f"event: {self.name}\n" if self.name is not None else ""
        return f"{head}data: {data}\n\n".encode()


DONE = Event("[DONE]")
"""The end of OpenAI's older streams."""


@dataclass(frozen=True)
class Translated:
    """A request in native terms, and what its reply needs to know of it."""

    native: Json
    """The body of the native route; its `stream` is the dialect's."""
    id: str
    created: int
    """Seconds since 1970."""
    warnings: tuple[str, ...] = ()
    include_usage: bool = False
    copies: int = 1
    """How many answers are wanted to each prompt."""
    prompts: tuple[str | tuple[int, ...], ...] = ()
    """The prompts, where there may be several: texts, or token ids. Otherwise `native` has the only one."""
    think_is_optional: bool = False
    """A model that cannot think is no reason to refuse: the server goes on without, and says so."""
    count_only: bool = False
    """No answer is wanted, but the length of the prompt."""
    echo: Json = field(default_factory=dict)
    """What the reply repeats."""

    @property
    def model(self) -> str:
        """As the client wrote it."""
        return str(self.native.get("model", ""))

    def unsaid(self, index: int) -> Json:
        """What the native request for an answer has that no client of the native route can say."""
        found: Json = {"think_is_optional": True} if self.think_is_optional else {}
        if self.count_only:
            found["count_only"] = True
        prompt = self.prompts[index // self.copies] if self.prompts else ""
        return found | ({"prompt_ids": prompt} if isinstance(prompt, tuple) else {})

    @property
    def answers(self) -> int:
        """How many there will be."""
        return self.copies * max(1, len(self.prompts))

    @property
    def stream(self) -> bool:
        """Whether the answer is a stream of events."""
        return bool(self.native.get("stream"))


class Fields(Body):
    """The members of a request, with the readings that these protocols need beside the native ones."""

    def number(self, name: str) -> float | int | None:
        """A number, whole or not."""
        value = self.take(name)
        if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
            return value
        refuse(name, "a number", value)

    def stops(self, name: str) -> list[str] | None:
        """A text or a list of texts."""
        value = self.take(name)
        values = [value] if isinstance(value, str) else value
        if values is None or (isinstance(values, list) and all(isinstance(text, str) for text in values)):
            return values
        refuse(name, "a text or a list of texts", value)

    def default_only(self, name: str, *defaults: Any) -> None:
        """Take a field if it says what happens anyway; else it is left for `ignored`."""
        if name in self._members and self._members[name] in defaults:
            self.take(name)

    def ignored(self) -> list[str]:
        """What to say of the fields that were not taken."""
        return [
            f"field {name[:60]!r} has no effect"
            for name, value in self._members.items()
            if name not in self._taken and value is not None
        ][:20]


def effort(value: Any) -> bool | str | None:
    """OpenAI's reasoning effort as `think`."""
    if value is None:
        return None
    if isinstance(value, str) and value in _EFFORTS:
        return _EFFORTS[value]
    shown = value if isinstance(value, str) else json.dumps(value)
    words = '"minimal", "low", "medium", "high", "xhigh", "ultra", "max", or "none"'
    raise ApiError(400, f'invalid reasoning value: "{shown[:60]}" (must be {words})')


def fitting(fields: Fields) -> Json:
    """What happens to a prompt that is too long: an error, as these protocols have it, unless the client asks natively.

    Agents wait for that error to shorten the conversation in their own way.
    """
    return {"truncate": fields.flag("truncate", False)}


def context_error(native: Mapping[str, Any]) -> tuple[int, int] | None:
    """Of the body of an error: tokens of the prompt and of the context, where that is what is wrong."""
    found = native.get("prompt_tokens"), native.get("context")
    return found if all(isinstance(count, int) and count > 0 for count in found) else None  # type: ignore[return-value]


def tool_definition(name: Any, description: Any, parameters: Any, where: str) -> Json:
    """A native tool."""
    if not isinstance(name, str) or not name:
        raise ApiError(400, f"{where} has no name")
    function: Json = {"name": name}
    if isinstance(description, str):
        function["description"] = description
    if parameters is not None and not isinstance(parameters, dict):
        refuse(f"{where}.parameters", "an object", parameters)
    function["parameters"] = parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def image_data(url: Any) -> str:
    """The base64 text of a data URL."""
    if isinstance(url, str) and url.startswith(("http://", "https://")):
        raise ApiError(400, "image URLs are not currently supported, please use base64 encoded data instead")
    match = _DATA_URL.match(url) if isinstance(url, str) else None
    if match is None:
        raise ApiError(400, "invalid image input")
    data = str(url)[match.end() :]
    try:
        b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise ApiError(400, "invalid image input") from None
    return data


def json_arguments(value: Any) -> Json:
    """Arguments of a call in the history, which OpenAI's protocols carry as a JSON text."""
    try:
        arguments = json.loads(value) if isinstance(value, str) else None
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise ApiError(400, "invalid tool call arguments")
    return arguments


def texts(parts: Iterable[str]) -> str:
    """The parts of one message as one text: as Ollama joins messages of one role."""
    return "\n\n".join(parts)


def merged_warnings(request: Translated, native: Mapping[str, Any]) -> Json:
    """`{"warnings": […]}` of the translation and of the native reply; empty where there are none."""
    warnings = [*request.warnings, *native.get("warnings", ())]
    return {"warnings": warnings} if warnings else {}


def random_id(prefix: str, length: int = 24) -> str:
    """An id of random hexadecimal digits."""
    return prefix + "".join(random.choice(_ID_LETTERS) for _ in range(length))


def now() -> int:
    """Seconds since 1970."""
    return int(time.time())
