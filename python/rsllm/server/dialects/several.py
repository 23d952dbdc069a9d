"""Several answers to one request (`n`, or a list of prompts), of OpenAI's: one reply, or one stream, of them all.

Each answer is translated as if it were the only one, and then put beside the others. Each prompt is counted once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from rsllm.server.dialects.common import DONE, Event, Json, Translated

__all__ = ["SeveralStream", "merged_replies", "numbered"]


class _Stream(Protocol):
    def feed(self, chunk: Mapping[str, Any]) -> Iterator[Event]: ...


def numbered(request: Translated, index: int) -> Json:
    """The native request for one of the answers, those to the first prompt first: with the same seed they would all be
    the same."""
    which, copy = divmod(index, request.copies)
    options = dict(request.native.get("options") or {})
    if copy and isinstance(options.get("seed"), int):
        options["seed"] += copy
    prompt = {"prompt": request.prompts[which]} if request.prompts and isinstance(request.prompts[which], str) else {}
    return {**request.native, **prompt, "options": options}


def merged_replies(replies: Sequence[Mapping[str, Any]], request: Translated) -> Json:
    """Whole replies as one."""
    choices = [{**choice, "index": index} for index, reply in enumerate(replies) for choice in reply["choices"]]
    warnings = list(dict.fromkeys(warning for reply in replies for warning in reply.get("warnings", ())))
    usage = _sum([reply["usage"] for reply in replies], request.copies)
    merged = {**replies[0], "choices": choices, "usage": usage}
    merged.pop("warnings", None)
    return merged | ({"warnings": warnings} if warnings else {})


class SeveralStream:
    """Native chunks of several answers, in whatever order they come, as events of one stream."""

    def __init__(self, request: Translated, stream: Callable[[Translated], _Stream]) -> None:
        self._streams = [stream(request) for _ in range(request.answers)]
        self._include_usage = request.include_usage
        self._copies = request.copies
        self._usages: dict[int, Json] = {}
        self._head: Json = {}
        self._left = request.answers
        self._said: set[str] = set()

    def feed(self, index: int, chunk: Mapping[str, Any]) -> Iterator[Event]:
        """The events of a chunk of one answer; of the last of them all, also the end of the stream."""
        for event in self._streams[index].feed(chunk):
            if not isinstance(event.data, dict):
                continue  # the end of one
            if event.data.get("choices") == []:
                self._head = event.data
                self._usages[index] = event.data["usage"]
                continue
            yield Event(self._numbered(event.data, index), event.name)
        if chunk.get("done"):
            self._left -= 1
            if not self._left:
                if self._include_usage:
                    usages = [self._usages[index] for index in sorted(self._usages)]
                    yield Event({**self._head, "usage": _sum(usages, self._copies)})
                yield DONE

    def _numbered(self, data: Json, index: int) -> Json:
        data = {**data, "choices": [{**choice, "index": index} for choice in data.get("choices", ())]}
        warnings = [warning for warning in data.pop("warnings", ()) if warning not in self._said]
        self._said.update(warnings)
        return data | ({"warnings": warnings} if warnings else {})


def _sum(usages: Sequence[Mapping[str, Any]], copies: int) -> Json:
    completion = sum(usage["completion_tokens"] for usage in usages)
    prompt = sum(usage["prompt_tokens"] for usage in usages[::copies])
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    summed = {**usages[0], **counts}
    cached = sum(usage.get("prompt_tokens_details", {}).get("cached_tokens", 0) for usage in usages[::copies])
    if cached:
        summed["prompt_tokens_details"] = {"cached_tokens": cached}
    thinking = sum(usage.get("completion_tokens_details", {}).get("reasoning_tokens", 0) for usage in usages)
    return summed | ({"completion_tokens_details": {"reasoning_tokens": thinking}} if thinking else {})
