"""Many requests, good and bad, in all protocols: none is a failure of the server, no reply names a folder of this
machine, and no log has a word of what people wrote."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.server.conftest import METADATA, Bench
from tests.server.test_serving import ROOT
from tests.server.test_tools import HERMES

WORD = "xyzzyplugh"
SAID = [{"role": "user", "content": WORD}]
TOOL = {"name": WORD, "description": WORD, "parameters": {"type": "object", "properties": {WORD: {"type": "string"}}}}
FUNCTION = {"type": "function", "function": TOOL}
CALL = {"id": WORD, "type": "function", "function": {"name": WORD, "arguments": json.dumps({WORD: WORD})}}
NATIVE_CALL = {"function": {"name": WORD, "arguments": {WORD: WORD}}}
BAD_CALL = {"id": WORD, "type": "function", "function": {"name": WORD, "arguments": WORD}}
SCHEMA = {"type": "object", "properties": {WORD: {"const": WORD}}}

NATIVE: list[dict[str, Any]] = [
    {"options": {"stop": [WORD], "seed": 1}},
    {"options": {"stop": WORD}},
    {"options": {"temperature": WORD}},
    {"options": {"logit_bias": {WORD: 1}}},
    {"options": {"grammar": WORD}},
    {"options": {"regex": "(" + WORD}},
    {"options": {"num_predict": 1, "num_ctx": 20}, "truncate": False},
    {"format": WORD},
    {"format": SCHEMA},
    {"format": {"$ref": WORD}},
    {"think": WORD},
    {"think": True},
    {"keep_alive": WORD},
    {"images": [WORD]},
    {"model": WORD},
    {"stream": WORD},
]
OPENAI: list[dict[str, Any]] = [
    {"stop": [WORD]},
    {"stop": {WORD: WORD}},
    {"temperature": WORD},
    {"temperature": 99},
    {"reasoning_effort": WORD},
    {"reasoning": {"effort": WORD}},
    {"logit_bias": {WORD: 1}},
    {"user": WORD, "metadata": {WORD: WORD}},
    {"n": 99},
    {"model": WORD},
]


def requests() -> Iterator[tuple[str, dict[str, Any]]]:
    """Paths and bodies."""
    for extra in ({}, *NATIVE):
        yield "/api/generate", {"prompt": WORD, "system": WORD, **extra}
        yield "/api/generate", {"prompt": WORD, "raw": True, **extra}
        yield "/api/chat", {"messages": SAID, **extra}
    yield "/api/generate", {"prompt": WORD, "suffix": WORD}
    yield "/api/generate", {"prompt": WORD, "template": "{{ if }}" + WORD}
    yield "/api/generate", {"prompt": WORD, "template": "{{ .Prompt }}" + WORD, "context": [10**6]}
    yield "/api/generate", {"prompt": WORD * 5000, "truncate": False}
    for messages in (
        [{"role": WORD, "content": WORD}],
        [{"content": WORD}],
        [{"role": "user", "content": {WORD: WORD}}],
        [{"role": "user", "content": WORD, "images": [WORD]}],
        [*SAID, {"role": "assistant", "content": "", "tool_calls": [NATIVE_CALL]}, {"role": "tool", "content": WORD}],
        [*SAID, {"role": "assistant", "content": "", "tool_calls": [BAD_CALL]}],
        [{"role": "user", "content": "refuse " + WORD}],
        [{"role": "user", "content": WORD * 5000}],
    ):
        yield "/api/chat", {"messages": messages, "tools": [FUNCTION], "truncate": False}
        yield "/v1/chat/completions", {"messages": messages, "tools": [FUNCTION]}
        yield "/v1/messages", {"messages": messages, "max_tokens": 9}
        yield "/v1/responses", {"input": messages}
    for extra in ({}, *OPENAI):
        yield "/v1/chat/completions", {"messages": SAID, **extra}
        yield "/v1/completions", {"prompt": WORD, **extra}
        yield "/v1/responses", {"input": WORD, "instructions": WORD, **extra}
        yield "/v1/messages", {"messages": SAID, "system": WORD, "max_tokens": 9, **extra}
    for choice in (WORD, {"type": "function", "function": {"name": WORD + "z"}}, "required"):
        yield "/v1/chat/completions", {"messages": SAID, "tools": [FUNCTION], "tool_choice": choice}
    yield "/v1/chat/completions", {"messages": SAID, "response_format": {"type": WORD}}
    yield "/v1/chat/completions", {"messages": [*SAID, {"role": "assistant", "tool_calls": [BAD_CALL]}]}
    yield "/v1/completions", {"prompt": [WORD, 1]}
    yield "/v1/responses", {"input": [{"type": WORD, "content": WORD}]}
    yield "/v1/responses", {"input": WORD, "tools": [{"type": WORD}]}
    yield "/v1/messages", {"messages": [{"role": "user", "content": [{"type": WORD}]}], "max_tokens": 9}
    yield "/v1/messages/count_tokens", {"messages": SAID, "system": WORD}
    for field in ({"input": [WORD, WORD]}, {"input": {WORD: 1}}, {"input": WORD * 5000, "truncate": False}):
        yield "/api/embed", field
        yield "/v1/embeddings", field
    yield "/api/embeddings", {"prompt": WORD}
    yield "/api/create", {"model": "made", "from": "tiny", "system": WORD, "template": WORD, "messages": SAID}
    yield "/api/create", {"model": "made", "from": "tiny", "parameters": {"stop": [WORD], "temperature": WORD}}
    yield "/api/create", {"model": "made", "files": {"x": WORD}}


REFUSES = "{% if 'refuse' in messages[0].content %}{{ raise_exception(messages[0].content) }}{% endif %}"


@pytest.mark.timeout(120)
async def test_no_failure_no_folder_and_nothing_of_what_was_said(
    client: httpx2.AsyncClient, bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench.add(metadata={**METADATA, "tokenizer.chat_template": REFUSES + HERMES})
    bench.add("breaks", {"crash_after": 1, "delay": 0.02, "log": [f"see {tmp_path}/x"]})
    statuses = set()
    with caplog.at_level(logging.DEBUG):
        for path, body in requests():
            for stream in (False, True):
                response = await client.post(path, json={"model": "tiny", "stream": stream, **body})
                statuses.add(response.status_code)
                assert response.status_code < 500, (path, body, response.text)
                assert not [folder for folder in (tmp_path, Path.home(), ROOT) if f"{folder}/" in response.text]
        for path, body in (("/api/chat", {"messages": SAID}), ("/v1/messages", {"messages": SAID, "max_tokens": 9})):
            response = await client.post(path, json={"model": "breaks", **body})
            assert "SIGKILL" in response.text and str(tmp_path) not in response.text
    assert statuses == {200, 400, 404}
    logged = caplog.text + "".join(str(vars(entry)) for entry in caplog.records)
    # But for names, cut short: of models, options and fields.
    told = [line for line in logged.splitlines() if WORD in line]
    assert not told, told[:5]


@pytest.mark.parametrize(
    ("path", "fields", "text"),
    [
        ("/api/generate", {"prompt": "x", "images": ["aGk="]}, "does not support vision"),
        ("/api/generate", {"prompt": "x", "raw": True, "images": ["aGk="]}, "does not support vision"),
        ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "does not support vision"),
        (
            "/api/chat",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
            "only parts of type text",
        ),
        *(
            (
                "/v1/chat/completions",
                {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": url}]}]},
                text,
            )
            for url, text in (
                ({"url": "data:image/png;base64,aGk="}, "does not support vision"),
                ("data:image/jpeg;base64,aGk=", "does not support vision"),
                ("https://example.org/a.png", "image URLs are not currently supported, please use base64"),
                ("iVBORw0=", "invalid image input"),
                ({"url": "data:image/png;base64,???"}, "invalid image input"),
            )
        ),
        (
            "/v1/responses",
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:;base64,aGk="}]}]},
            "does not support vision",
        ),
        (
            "/v1/responses",
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x/a.png"}]}]},
            "image URLs are not currently supported",
        ),
        (
            "/v1/responses",
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]},
            "file inputs are not currently supported",
        ),
        *(
            ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": [block]}]}, text)
            for source, text in (
                ({"type": "base64", "media_type": "image/png", "data": "aGk="}, "does not support vision"),
                ({"type": "url", "url": "https://example.org/a.png"}, "invalid image source"),
            )
            for block in (
                {"type": "image", "source": source},
                {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image", "source": source}]},
            )
        ),
        (
            "/v1/messages/count_tokens",
            {"messages": [{"role": "user", "content": [
                {"type": "image", "source": {"type": "base64", "data": "aGk="}}]}]},
            "does not support vision",
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "aGk="}}]}]},
            "audio input is not supported",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [True, False])
async def test_pictures_are_refused_in_every_shape(
    client: httpx2.AsyncClient, path: str, fields: dict[str, Any], text: str, stream: bool
) -> None:
    """MM-01, MM-02, MM-04, MM-05: a model that cannot see does not invent what it sees."""
    response = await client.post(path, json={"model": "tiny", "stream": stream, **fields})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert text in (error if isinstance(error, str) else error["message"])


@pytest.mark.parametrize("fields", [{"image_url": "/path/a.jpg"}, {"image": "aGk="}])
async def test_a_picture_in_a_field_that_there_is_not_is_said(
    client: httpx2.AsyncClient, fields: dict[str, Any]
) -> None:
    """MM-03."""
    reply = (
        await client.post("/api/generate", json={"model": "tiny", "prompt": "x", "stream": False, **fields})
    ).json()
    [name] = fields
    assert reply["warnings"][0].startswith(f"unknown field '{name}'")
