"""OpenAI's text completions, embeddings and list of models, as `/api/generate`, `/api/embed` and `/api/tags`."""

from __future__ import annotations

import base64
import random
import struct
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from rsllm.server.dialects.common import DONE, Event, Fields, Json, Translated, fitting, merged_warnings, now, random_id
from rsllm.server.dialects.openai import FINGERPRINT, copies, error_reply, sampling_options, usage
from rsllm.server.errors import ApiError

__all__ = [
    "CompletionStream",
    "completion_reply",
    "completion_request",
    "embeddings_reply",
    "embeddings_request",
    "model_reply",
    "models_reply",
]

_IDS = 999
PROMPTS_LIMIT = 128
"""Most answers to one request with a list of prompts; each takes a place of the model, or waits for one."""


def completion_request(body: Mapping[str, Any]) -> Translated:
    """Text completions in native terms: the model's template is applied to a prompt that is a text, and not to one
    that is token ids."""
    fields = Fields(body)
    prompts = _prompts(fields.take("prompt"))
    is_text = len(prompts) == 1 and isinstance(prompts[0], str)
    options = {"frequency_penalty": 0.0, "presence_penalty": 0.0, **sampling_options(fields)}
    options["top_p"] = options["top_p"] or 1.0
    most, biases, top = fields.count("max_tokens"), fields.mapping("logit_bias"), fields.count("logprobs")
    options |= ({} if most is None else {"num_predict": most}) | ({"logit_bias": biases} if biases else {})
    native: Json = {
        "model": fields.text("model"),
        "stream": fields.flag("stream", False),
        **({"prompt": prompts[0]} if is_text else {}),
        "options": options,
        **fitting(fields),
    }
    if suffix := fields.text("suffix"):
        native["suffix"] = suffix
    if top is not None and top > 0:
        native |= {"logprobs": True, "top_logprobs": top}
    wanted = copies(fields)
    if fields.count("best_of") not in (None, wanted):
        raise ApiError(400, "best_of must be n: all answers that are made are sent")
    if len(prompts) > 1 and wanted * len(prompts) > PROMPTS_LIMIT:
        raise ApiError(400, f"prompt asks for {wanted * len(prompts)} answers, and at most {PROMPTS_LIMIT} are given")
    fields.default_only("echo", False)
    return Translated(
        native=native,
        id=f"cmpl-{random.randrange(_IDS)}",
        created=now(),
        include_usage=fields.mapping("stream_options").get("include_usage") is True,
        copies=wanted,
        prompts=() if is_text else prompts,
        warnings=tuple(fields.ignored()),
    )


def _prompts(value: Any) -> tuple[str | tuple[int, ...], ...]:
    """A text, a list of texts, token ids, or a list of lists of those."""
    if value is None or isinstance(value, str):
        return (value or "",)
    if isinstance(value, list) and value:
        if all(isinstance(item, str) for item in value):
            return tuple(value)
        lists = value if isinstance(value[0], list) else [value]
        if all(map(_are_ids, lists)):
            return tuple(map(tuple, lists))
    raise ApiError(400, "prompt must be a text, a list of texts, a list of token ids, or a list of such lists")


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(id) is int and 0 <= id < 2**32 for id in value)


def completion_reply(native: Mapping[str, Any], request: Translated) -> Json:
    """The whole answer, of the native one."""
    choice = _choice(native, native.get("done_reason") or "stop", offset=0)
    return {**_head(request), "choices": [choice], "usage": usage(native)} | merged_warnings(request, native)


class CompletionStream:
    """Native chunks as events."""

    def __init__(self, request: Translated) -> None:
        self._request = request
        self._length = 0

    def feed(self, chunk: Mapping[str, Any]) -> Iterator[Event]:
        """The events of one native chunk; of the last one, also the end of the stream."""
        if "error" in chunk:
            yield Event(error_reply(500, chunk))
            return
        done = bool(chunk.get("done"))
        choice = _choice(chunk, (chunk.get("done_reason") or "stop") if done else None, offset=self._length)
        self._length += len(choice["text"])
        # Where counts are wanted each chunk has some, and only those of the last are real.
        counts = {"usage": usage({})} if self._request.include_usage else {}
        said = merged_warnings(self._request, chunk) if done else {}
        yield Event({**_head(self._request), "choices": [choice], **counts, **said})
        if done:
            if self._request.include_usage:
                yield Event({**_head(self._request), "choices": [], "usage": usage(chunk)})
            yield DONE


def embeddings_request(body: Mapping[str, Any]) -> Translated:
    """Embeddings in native terms."""
    fields = Fields(body)
    value = fields.take("input")
    inputs = [value] if isinstance(value, str) else value
    if not value or not isinstance(inputs, list) or not all(isinstance(text, str) for text in inputs):
        raise ApiError(400, "invalid input")
    form = fields.text("encoding_format").lower() or "float"
    if form not in ("float", "base64"):
        shown = fields.text("encoding_format")[:60]
        raise ApiError(400, f"Invalid value for 'encoding_format' = {shown}. Supported values: ['float', 'base64'].")
    native: Json = {"model": fields.text("model"), "input": value}
    if (dimensions := fields.count("dimensions")) is not None:
        native["dimensions"] = dimensions
    echo = {"encoding_format": form}
    return Translated(native, random_id("embd-"), now(), tuple(fields.ignored()), echo=echo)


def embeddings_reply(native: Mapping[str, Any], request: Translated) -> Json:
    """Vectors as numbers, or as base64 of little-endian float32."""
    as_text = request.echo.get("encoding_format") == "base64"
    count = native.get("prompt_eval_count", 0)
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "embedding": _packed(vector) if as_text else vector, "index": index}
            for index, vector in enumerate(native["embeddings"])
        ],
        "model": request.model,
        "usage": {"prompt_tokens": count, "total_tokens": count},
    } | merged_warnings(request, native)


def models_reply(tags: Mapping[str, Any]) -> Json:
    """The list of models, of `/api/tags`."""
    return {"object": "list", "data": [model_reply(model, model["name"]) for model in tags["models"]]}


def model_reply(model: Mapping[str, Any], asked: str) -> Json:
    """One model, of its entry in `/api/tags`, under the name that it was asked for by."""
    namespace = model["name"].rpartition("/")[0].rpartition("/")[2]
    return {
        "id": asked,
        "object": "model",
        "created": _seconds(model["modified_at"]),
        "owned_by": namespace or "library",
    }


def _choice(native: Mapping[str, Any], reason: str | None, *, offset: int) -> Json:
    finish = None if reason is None else "length" if reason == "length" else "stop"
    choice: Json = {"text": native.get("response", ""), "index": 0, "finish_reason": finish}
    if native.get("thinking"):
        choice["reasoning"] = native["thinking"]
    if native.get("logprobs"):
        choice["logprobs"] = _logprobs(native["logprobs"], offset)
    return choice


def _logprobs(entries: list[Json], offset: int) -> Json:
    """The older shape: lists side by side."""
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry["token"])
    return {
        "tokens": [entry["token"] for entry in entries],
        "token_logprobs": [entry["logprob"] for entry in entries],
        "top_logprobs": [
            {other["token"]: other["logprob"] for other in entry.get("top_logprobs") or ()} for entry in entries
        ],
        "text_offset": offsets,
    }


def _packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _seconds(time: str) -> int:
    """Of a time with up to nine digits behind the point, of which Python reads six."""
    try:
        whole, point, rest = time.partition(".")
        digits = len(rest) - len(rest.lstrip("0123456789"))
        return int(datetime.fromisoformat(whole + rest[digits:] if point else time).timestamp())
    except ValueError:
        return 0


def _head(request: Translated) -> Json:
    return {
        "id": request.id,
        "object": "text_completion",
        "created": request.created,
        "model": request.model,
        "system_fingerprint": FINGERPRINT,
    }
