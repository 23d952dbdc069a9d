"""OpenAI's responses, replies: a native answer as a response object, native chunks as its events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rsllm.server.dialects.common import Event, Json, Translated, merged_warnings, now
from rsllm.server.dialects.openai import arguments_text, error_reply

__all__ = ["ResponseStream", "response_reply"]


def response_reply(native: Mapping[str, Any], request: Translated) -> Json:
    """The whole answer, of the native one."""
    message = native["message"]
    output: list[Json] = []
    if message.get("thinking"):
        output.append(_reasoning(_reasoning_id(request), message["thinking"]))
    if message.get("content") or not message.get("tool_calls"):
        output.append(_message(_message_id(request), message.get("content", ""), native.get("logprobs")))
    output += [_call(call) for call in message.get("tool_calls") or ()]
    return _finished(request, native, output)


class ResponseStream:
    """Native chunks as events. Items follow each other; one is open at a time."""

    def __init__(self, request: Translated) -> None:
        self._request = request
        self._sequence = -1
        self._output: list[Json] = []
        self._kind: str | None = None
        self._text = ""
        self._logprobs: list[Json] = []
        self._messages = 0

    def feed(self, chunk: Mapping[str, Any]) -> Iterator[Event]:
        """The events of one native chunk; of the last one, also the end of the stream."""
        if self._sequence < 0:
            for name in ("response.created", "response.in_progress"):
                yield self._event(name, response=_object(self._request, "in_progress", self._output))
        if "error" in chunk:
            error = error_reply(500, chunk)["error"]
            failed = _object(self._request, "failed", self._output)
            failed["error"] = {"code": "server_error", "message": error["message"]}
            yield self._event("response.failed", response=failed)
            return
        message = chunk.get("message") or {}
        if message.get("thinking"):
            yield from self._delta("reasoning", message["thinking"], None)
        if message.get("content") or chunk.get("logprobs"):
            yield from self._delta("message", message.get("content", ""), chunk.get("logprobs"))
        for call in message.get("tool_calls") or ():
            yield from self._close()
            yield from self._called(call)
        if chunk.get("done"):
            yield from self._end(chunk)

    def _delta(self, kind: str, text: str, logprobs: list[Json] | None) -> Iterator[Event]:
        if self._kind != kind:
            yield from self._close()
            yield from self._open(kind)
        self._text += text
        self._logprobs += logprobs or []
        name = "response.output_text.delta" if kind == "message" else "response.reasoning_summary_text.delta"
        extra = {"logprobs": logprobs or []} if kind == "message" else {}
        yield self._event(name, **self._place(), delta=text, **extra)

    def _open(self, kind: str) -> Iterator[Event]:
        self._kind, self._text, self._logprobs = kind, "", []
        if kind == "reasoning":
            item = {**_reasoning(_reasoning_id(self._request), ""), "summary": []}
            self._output.append(item)
            yield self._event("response.output_item.added", output_index=len(self._output) - 1, item=item)
            return
        item = {**_message(_message_id(self._request, self._messages), ""), "status": "in_progress", "content": []}
        self._messages += 1
        self._output.append(item)
        yield self._event("response.output_item.added", output_index=len(self._output) - 1, item=item)
        yield self._event("response.content_part.added", **self._place(), part=_text_part("", None))

    def _close(self) -> Iterator[Event]:
        kind, self._kind = self._kind, None
        if kind is None:
            return
        place = self._place(kind)
        if kind == "reasoning":
            yield self._event("response.reasoning_summary_text.done", **place, text=self._text)
            item = _reasoning(place["item_id"], self._text)
        else:
            logprobs = self._logprobs
            yield self._event("response.output_text.done", **place, text=self._text, logprobs=logprobs)
            yield self._event("response.content_part.done", **place, part=_text_part(self._text, logprobs))
            item = _message(place["item_id"], self._text, logprobs)
        self._output[-1] = item
        yield self._event("response.output_item.done", output_index=place["output_index"], item=item)

    def _called(self, call: Json) -> Iterator[Event]:
        item = _call(call)
        self._output.append(item)
        index = len(self._output) - 1
        place = {"item_id": item["id"], "output_index": index}
        begun = {**item, "status": "in_progress", "arguments": ""}
        yield self._event("response.output_item.added", output_index=index, item=begun)
        yield self._event("response.function_call_arguments.delta", **place, delta=item["arguments"])
        yield self._event("response.function_call_arguments.done", **place, arguments=item["arguments"])
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _end(self, chunk: Mapping[str, Any]) -> Iterator[Event]:
        if not self._output:
            yield from self._open("message")
        yield from self._close()
        response = _finished(self._request, chunk, self._output)
        yield self._event(f"response.{response['status']}", response=response)

    def _place(self, kind: str | None = None) -> Json:
        """Where the open item is."""
        index = len(self._output) - 1
        part = "content_index" if (kind or self._kind) == "message" else "summary_index"
        return {"item_id": self._output[index]["id"], "output_index": index, part: 0}

    def _event(self, name: str, **members: Any) -> Event:
        self._sequence += 1
        return Event({"type": name, "sequence_number": self._sequence, **members}, name)


def _finished(request: Translated, native: Mapping[str, Any], output: list[Json]) -> Json:
    # What was cut says so, as OpenAI's own responses do.
    cut = native.get("done_reason") == "length"
    response = _object(request, "incomplete" if cut else "completed", output)
    prompt, generated = native.get("prompt_eval_count", 0), native.get("eval_count", 0)
    response["completed_at"] = now()
    response["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
    response["usage"] = {
        "input_tokens": prompt,
        "output_tokens": generated,
        "total_tokens": prompt + generated,
        "input_tokens_details": {"cached_tokens": native.get("cached_tokens", 0)},
        "output_tokens_details": {"reasoning_tokens": native.get("thinking_count", 0)},
    }
    return response | merged_warnings(request, native)


def _object(request: Translated, status: str, output: list[Json]) -> Json:
    echo = request.echo
    return {
        "id": request.id,
        "object": "response",
        "created_at": request.created,
        "completed_at": None,
        "status": status,
        "incomplete_details": None,
        "model": request.model,
        "previous_response_id": None,
        "instructions": echo.get("instructions"),
        "output": list(output),
        "error": None,
        "tools": echo.get("tools", []),
        "tool_choice": "auto",
        "truncation": echo.get("truncation", "disabled"),
        "parallel_tool_calls": echo.get("parallel_tool_calls", True),
        "text": echo.get("text", {"format": {"type": "text"}}),
        "top_p": echo.get("top_p", 1.0),
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "top_logprobs": echo.get("top_logprobs", 0),
        "temperature": echo.get("temperature", 1.0),
        "reasoning": echo.get("reasoning"),
        "usage": None,
        "max_output_tokens": echo.get("max_output_tokens"),
        "max_tool_calls": None,
        "store": False,
        "background": False,
        "service_tier": "default",
        "metadata": {},
        "safety_identifier": None,
        "prompt_cache_key": None,
    }


def _reasoning(item_id: str, text: str) -> Json:
    summary = [{"type": "summary_text", "text": text}]
    return {"id": item_id, "type": "reasoning", "summary": summary, "encrypted_content": text}


def _message(item_id: str, text: str, logprobs: list[Json] | None = None) -> Json:
    content = [_text_part(text, logprobs)]
    return {"id": item_id, "type": "message", "status": "completed", "role": "assistant", "content": content}


def _text_part(text: str, logprobs: list[Json] | None) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}


def _call(call: Json) -> Json:
    call_id = call.get("id", "")
    return {
        "id": "fc_" + call_id.removeprefix("call_"),
        "type": "function_call",
        "status": "completed",
        "call_id": call_id,
        "name": call["function"]["name"],
        "arguments": arguments_text(call["function"]["arguments"]),
    }


def _reasoning_id(request: Translated) -> str:
    return f"rs_{request.echo.get('number', 0)}"


def _message_id(request: Translated, count: int = 0) -> str:
    """Of the first message as of the response; of those that follow calls, with a count behind it."""
    number = request.echo.get("number", 0)
    return f"msg_{number}_{count}" if count else f"msg_{number}"
