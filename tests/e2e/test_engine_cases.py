"""Cases met in the field of prefixes that are found again, full contexts and clients that go, with a real model.

All of them ask `rsllm serve` over HTTP or by the command line, as users did. What the server decides without a model is
in `tests/server/test_engine_cases.py`, what the engine decides in `field_cases.rs`.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from rsllm import _core
from tests.e2e import test_server

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(300)]

place = test_server.place
server = test_server.server
ask = test_server.ask

PAGE = 64
Message = dict[str, str]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def words(topic: str, count: int) -> str:
    """A text of some 12 tokens for each sentence."""
    return " ".join(f"Sentence {number} of a long text about {topic}." for number in range(count))


def chat(server: str, messages: list[Message], **options: Any) -> Any:
    options = {"temperature": 0, "num_predict": 8, **options}
    return ask(server, "chat", messages=messages, options=options)


def computed(reply: Any) -> int:
    return int(reply["prompt_eval_count"] - reply.get("cached_tokens", 0))


def metric(server: str, name: str, **labels: str) -> float:
    text = httpx2.get(f"{server}/metrics", timeout=60).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return sum(sample.value for sample in samples if sample.name == name and labels.items() <= sample.labels.items())


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def unload(server: str) -> None:
    """Or a context that is longer already would be used."""
    ask(server, "generate", keep_alive=0)
    until(lambda: not httpx2.get(f"{server}/api/ps", timeout=60).json()["models"])


def common(smollm2_path: Path, first: str, second: str) -> int:
    """Tokens that two prompts begin with alike."""
    tokenizer = _core.Tokenizer(str(smollm2_path))
    pair = [tokenizer.tokenize(text, add_special=True, parse_special=True) for text in (first, second)]
    different = (at for at, (one, other) in enumerate(zip(*pair, strict=False)) if one != other)
    return next(different, min(map(len, pair)))


# Prefixes that are found again.


def test_the_same_chat_again(server: str) -> None:
    """PFX-01 and PFX-04: at most a hundredth of 2,000 tokens is computed again, and the reply says so."""
    messages = [user(words("doors", 170))]
    first = chat(server, messages)
    again = chat(server, messages)
    assert first["prompt_eval_count"] == again["prompt_eval_count"] >= 1900
    assert first.get("cached_tokens", 0) < PAGE
    assert computed(again) <= 0.01 * again["prompt_eval_count"]
    assert again["message"] == first["message"]


def test_the_second_turn_computes_what_is_new(server: str) -> None:
    """PFX-02: after a turn of 4,000 tokens."""
    messages = [user(words("rivers", 340))]
    first = chat(server, messages, num_predict=60)
    assert first["prompt_eval_count"] >= 3900
    messages += [first["message"], user("And the sea?")]
    second = chat(server, messages)
    new = second["prompt_eval_count"] - first["prompt_eval_count"] - first["eval_count"]
    assert computed(second) <= new + PAGE
    assert computed(second) <= 0.2 * first["prompt_eval_count"]


def test_chats_with_one_system_prompt(server: str) -> None:
    """PFX-03 and PFX-07: the first turns find the system prompt, the second ones their first, in between each other."""
    system = {"role": "system", "content": words("mountains", 66)}
    chats = [[system, user(f"What is {thing}?")] for thing in ("a valley", "the snow line")]
    known = []
    for number, messages in enumerate(chats):
        reply = chat(server, messages, num_predict=30)
        assert reply["prompt_eval_count"] >= 700
        assert number == 0 or reply["cached_tokens"] >= 700
        known.append(reply["prompt_eval_count"] + reply["eval_count"])
        messages += [reply["message"], user("Why?")]
    for messages, before in zip(chats, known, strict=True):
        # The last token of a reply is never computed, and its end may be written otherwise in the next prompt.
        assert chat(server, messages)["cached_tokens"] >= before - 3


def test_a_text_that_diverges_in_its_middle(server: str, smollm2_path: Path) -> None:
    """PFX-05: 5,663 tokens are known, and the first 3,433 of them are those of the new text."""
    first = words("stones", 470)
    second = first[: len(first) * 3433 // 5663] + " Otherwise. " + words("salt", 100)
    options = {"temperature": 0, "num_predict": 1}
    ask(server, "generate", prompt=first, raw=True, options=options)
    reply = ask(server, "generate", prompt=second, raw=True, options=options)
    expected = common(smollm2_path, first, second)
    assert 3000 < expected < 3800
    assert reply["cached_tokens"] == expected


def test_an_edit_of_the_system_prompt_shows_where_it_is(server: str, smollm2_path: Path) -> None:
    """PFX-06: `cached_tokens` is the token at which the prompts diverge."""
    prompts = []
    for date in ("Today is Monday.", "Today is Tuesday."):
        system = {"role": "system", "content": f"{words('clocks', 30)} {date} {words('time', 30)}"}
        body = {"messages": [system, user("hi")], "_debug_render_only": True}
        prompts.append(ask(server, "chat", **body)["_debug_info"]["rendered_template"])
        reply = chat(server, [system, user("hi")])
    expected = common(smollm2_path, *prompts)
    assert reply["cached_tokens"] == expected
    assert 300 < expected < reply["prompt_eval_count"] - 300


# The context.


def test_the_command_line_takes_a_long_argument(server: str, place: dict[str, str]) -> None:
    """CTX-01: 3,900 tokens fit with the settings there are; where they do not, that is said beside the answer."""
    prompt = f"Summarize this file: {words('paper', 340)}"

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "rsllm", "run", "smollm2", prompt, "--num-predict", "4", *arguments]
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=test_server.ROOT,
            env=place,
            timeout=120,
            check=True,
        )

    unload(server)
    before = metric(server, "rsllm_prompt_tokens_total")
    whole = run()
    assert whole.stdout.strip() and whole.stderr == ""
    assert metric(server, "rsllm_prompt_tokens_total") - before >= 3900
    unload(server)
    cut = run("--num-ctx", "2048")
    assert cut.stdout.strip()
    assert cut.stderr.startswith("Warning: the prompt was cut from ")
    assert "the context of 2048" in cut.stderr


@pytest.mark.parametrize("limit", [-1, -2])
def test_an_answer_without_end_ends_at_the_window(server: str, limit: int) -> None:
    """CTX-06, CTX-07, CTX-08."""
    unload(server)
    options = {"temperature": 0, "ignore_eos": True, "num_ctx": 256, "num_predict": limit}
    reply = ask(server, "generate", prompt="1, 2, 3,", raw=True, options=options)
    assert reply["done_reason"] == "length"
    # The last token is said and needs no place.
    assert reply["prompt_eval_count"] + reply["eval_count"] == 257
    assert reply["warnings"] == ["stopped because the context of 256 tokens is full"]


def test_an_answer_beyond_the_window_says_what_it_forgot(server: str) -> None:
    """CTX-07: with a limit of its own it goes on, and the reply says at which price."""
    unload(server)
    options = {"temperature": 0, "ignore_eos": True, "num_ctx": 256, "num_predict": 400}
    reply = ask(server, "generate", prompt="1, 2, 3,", raw=True, options=options)
    assert (reply["done_reason"], reply["eval_count"]) == ("length", 400)
    [warning] = reply["warnings"]
    assert warning.startswith("the context was full: ") and "were forgotten" in warning
    assert int(warning.split()[4]) >= 120


def test_one_token(server: str) -> None:
    """CTX-09."""
    body = {"model": "smollm2", "messages": [user("Count.")], "max_tokens": 1}
    reply = httpx2.post(f"{server}/v1/chat/completions", json=body, timeout=120).json()
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 1


# Clients that go.


@pytest.mark.parametrize("during", ["prompt", "answer"])
def test_a_dead_client_frees_the_engine(server: str, place: dict[str, str], during: str) -> None:
    """CON-03 (a, b): the pages are there again, and what was asked for is not computed to its end."""
    unload(server)
    ask(server, "generate")
    before = metric(server, "rsllm_prompt_tokens_total")
    long = during == "prompt"
    options = {"ignore_eos": True, "num_predict": 10**6}
    prompt = words("thunder", 630) if long else "Tell me everything."
    body = json.dumps({"model": "smollm2", "prompt": prompt, "raw": True, "shift": True, "options": options})
    host, _, port = place["OLLAMA_HOST"].partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(
            f"POST /api/generate HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        if long:
            until(lambda: metric(server, "rsllm_model_requests_running") == 1)
        else:
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
    until(lambda: metric(server, "rsllm_model_requests_running") == 0)
    until(lambda: metric(server, "rsllm_kv_pages", state="used") == 0)
    if long:
        assert metric(server, "rsllm_prompt_tokens_total") == before, "the prompt was read to its end"
        assert metric(server, "rsllm_kv_pages", state="cached") < 6500 / PAGE
    assert ask(server, "generate", prompt="hi", options={"num_predict": 2})["eval_count"] <= 2
