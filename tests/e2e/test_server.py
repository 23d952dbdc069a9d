"""The server with a real model: over HTTP, and by the command line. Other people's clients are in tests/clients."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from rsllm.store.manifest import Layer, Manifest, MediaType
from rsllm.store.name import ModelName
from rsllm.store.store import Store

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
GREEDY = {"temperature": 0, "num_predict": 12, "num_ctx": 1024}


@pytest.fixture(scope="module")
def place(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment with SmolLM2 in its store as `smollm2`, and an address of its own."""
    home = tmp_path_factory.mktemp("home")
    store = Store(home / "models")
    weights = Layer(MediaType.MODEL, *store.add_blob(smollm2_path))
    described = {"model_format": "gguf", "model_family": "llama", "model_type": "134.52M", "file_type": "Q4_1"}
    config = Layer(MediaType.CONFIG, *store.add_blob([json.dumps(described).encode()]))
    store.write_manifest(ModelName.parse("smollm2"), Manifest.build(config, [weights]).raw)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    return {
        **os.environ,
        "HOME": str(home),
        "OLLAMA_MODELS": str(home / "models"),
        "OLLAMA_HOST": f"127.0.0.1:{port}",
        "RSLLM_STATE": str(home / "state"),
        "RSLLM_SERVER": "never",
    }


@pytest.fixture(scope="module")
def server(place: dict[str, str]) -> Iterator[str]:
    """`rsllm serve`; its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "rsllm", "serve"],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env=place,
    )
    url = f"http://{place['OLLAMA_HOST']}"
    deadline = time.monotonic() + 60
    while True:
        try:
            httpx2.get(url)
            break
        except httpx2.ConnectError:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
    yield url
    process.terminate()
    assert process.wait(60) == 0


def ask(url: str, route: str, **body: Any) -> Any:
    response = httpx2.post(f"{url}/api/{route}", json={"model": "smollm2", "stream": False, **body}, timeout=120)
    assert response.status_code == 200, response.text
    return response.json()


def test_generate_and_chat(server: str) -> None:
    question = "What is the capital of France?"
    first = ask(server, "generate", prompt=question, options=GREEDY)
    assert "Paris" in first["response"]
    second = ask(server, "chat", messages=[{"role": "user", "content": question}], options=GREEDY)
    assert second["message"]["content"] == first["response"]
    assert second["cached_tokens"] > 0
    raw = ask(server, "generate", prompt="The capital of France is", raw=True, options=GREEDY)
    assert "Paris" in raw["response"]


def test_lines_joined_are_the_whole(server: str) -> None:
    body = {"model": "smollm2", "prompt": "Count to ten.", "options": GREEDY}
    with httpx2.stream("POST", f"{server}/api/generate", json=body, timeout=120) as response:
        events = [json.loads(line) for line in response.iter_lines()]
    whole = ask(server, "generate", prompt="Count to ten.", options=GREEDY)
    assert "".join(event["response"] for event in events) == whole["response"]
    assert events[-1]["eval_count"] == whole["eval_count"] == 12


def test_a_schema_is_obeyed(server: str) -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    reply = ask(
        server, "generate", prompt="How old is Ann? She is 7.", format=schema, options={**GREEDY, "num_predict": 40}
    )
    assert isinstance(json.loads(reply["response"])["age"], int)


THINKING = (
    "{{ range .Tools }}{{ .Function }}\n{{ end }}{{ range .Messages }}<|im_start|>{{ .Role }}\n"
    "{{ if .Thinking }}<think>{{ .Thinking }}</think>{{ end }}{{ .Content }}{{ range .ToolCalls }}<tool_call>"
    '{"name": "{{ .Function.Name }}", "arguments": {{ .Function.Arguments }}}</tool_call>{{ end }}<|im_end|>\n{{ end }}'
    "<|im_start|>assistant\n{{ if $.Think }}<think>{{ end }}"
)
CLOCK = {"name": "clock", "parameters": {"type": "object", "properties": {"zone": {"enum": ["utc", "local"]}}}}


@pytest.fixture(scope="module")
def thinker(place: dict[str, str]) -> str:
    """SmolLM2 under a Go template with thoughts and tools."""
    store = Store(Path(place["OLLAMA_MODELS"]))
    base = store.find(ModelName.parse("smollm2")).manifest
    template = Layer(MediaType.TEMPLATE, *store.add_blob([THINKING.encode()]))
    store.write_manifest(ModelName.parse("thinker"), Manifest.build(base.config, [*base.layers, template]).raw)
    return "thinker"


def test_a_constraint_waits_for_the_end_of_the_thoughts(server: str, thinker: str) -> None:
    """STR-12."""
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    messages: list[dict[str, str]] = []
    for name, age in (("Bob", "5"), ("Eve", "6"), ("Joe", "8"), ("Ann", "7")):  # what it is shown it does again
        messages.append({"role": "user", "content": f"How old is {name}? {name} is {age}."})
        messages.append({"role": "assistant", "content": f'{{"age": {age}}}', "thinking": "I know it."})
    del messages[-1]
    options = {**GREEDY, "num_predict": 60}
    reply = ask(server, "chat", model=thinker, messages=messages, format=schema, options=options)
    assert reply["message"]["thinking"]
    assert isinstance(json.loads(reply["message"]["content"])["age"], int)
    refused = {"model": thinker, "messages": messages, "format": {"type": "object", "not": {}}}
    response = httpx2.post(f"{server}/api/chat", json=refused, timeout=120)
    assert response.status_code == 400 and "`not`" in response.json()["error"]
    reply = ask(server, "chat", model=thinker, messages=messages, format=schema, options=GREEDY, think=False)
    assert isinstance(json.loads(reply["message"]["content"])["age"], int)
    assert "thinking" not in reply["message"]


def test_a_call_that_is_required(server: str, thinker: str) -> None:
    body = {
        "model": thinker,
        "messages": [{"role": "user", "content": "What time is it?"}],
        "tools": [{"type": "function", "function": CLOCK}],
        "tool_choice": "required",
        "reasoning_effort": "none",
        "temperature": 0,
        "max_tokens": 60,
    }
    response = httpx2.post(f"{server}/v1/chat/completions", json=body, timeout=120)
    [choice] = response.json()["choices"]
    [call] = choice["message"]["tool_calls"]
    assert (call["function"]["name"], choice["finish_reason"]) == ("clock", "tool_calls")
    assert isinstance(json.loads(call["function"]["arguments"]), dict)


def test_a_template_and_a_prompt_of_the_request(server: str) -> None:
    ask(server, "generate", keep_alive=0)  # or a context that is longer already would be used, and said
    question = "What is the capital of France?"
    template = "<|im_start|>user\n{{ .Prompt }}<|im_end|>\n<|im_start|>assistant\n{{ .Response }}"
    reply = ask(server, "generate", prompt=question, template=template, options=GREEDY)
    assert "Paris" in reply["response"]
    assert "warnings" not in reply


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"format": {"type": "object", "properties": {"s": {"pattern": "(?<=x)*", "type": "string"}}}}, ""),
        ({"format": {"type": "object", "properties": {"s": {"pattern": "(" * 100_000, "type": "string"}}}}, ""),
        ({"options": {"grammar": r"Root ::= [^\n]+"}}, "root"),
        ({"options": {"grammar": 'rout::="route"'}}, "root"),
        ({"options": {"regex": "*"}}, ""),
    ],
)
def test_a_constraint_that_is_none_is_refused(server: str, fields: dict[str, Any], text: str) -> None:
    """STR-13, STR-14."""
    body = {"model": "smollm2", "prompt": "hi", "stream": True, **fields}
    response = httpx2.post(f"{server}/api/generate", json=body, timeout=120)
    assert response.status_code == 400, response.text
    assert text in response.json()["error"]


def test_a_stop_string_across_tokens_never_leaks(server: str) -> None:
    """HTTP-01, HTTP-02, HTTP-03."""
    options = {**GREEDY, "num_predict": 24}
    text = ask(server, "generate", prompt="Tell me of the sea.", options=options)["response"]
    for begin, length in ((9, 9), (12, 2), (5, 14)):  # they begin and end within tokens
        stop = text[begin : begin + length]
        body = {"model": "smollm2", "prompt": "Tell me of the sea.", "options": {**options, "stop": [stop]}}
        with httpx2.stream("POST", f"{server}/api/generate", json=body, timeout=120) as response:
            pieces = [json.loads(line)["response"] for line in response.iter_lines()]
        assert "".join(pieces) == text[: text.index(stop)]
    # What only looked like one comes at the end.
    held = ask(server, "generate", prompt="Tell me of the sea.", options={**options, "stop": [text[-4:] + "never"]})
    assert held["response"] == text


def test_seeds(server: str) -> None:
    """SMP-03."""

    def say(**options: Any) -> str:
        return str(ask(server, "generate", prompt="Tell me a story.", options={**GREEDY, **options})["response"])

    assert say(temperature=0.9, seed=5) == say(temperature=0.9, seed=5) != say(temperature=0.9, seed=6)
    assert say(seed=5) == say(seed=6)


def test_embeddings_of_a_batch_are_those_of_each(server: str) -> None:
    """EMB-02, EMB-06."""
    texts = [f"chunk {index} " + "word " * (index % 5 * 20) for index in range(12)]
    together = ask(server, "embed", input=texts)["embeddings"]
    for text, vector in list(zip(texts, together, strict=True))[:4]:
        [alone] = ask(server, "embed", input=text)["embeddings"]
        assert max(abs(a - b) for a, b in zip(alone, vector, strict=True)) < 1e-4
        assert abs(sum(value * value for value in vector) - 1) < 1e-4
    assert len({len(vector) for vector in together}) == 1
    reply = ask(server, "embed", input="word " * 600, dimensions=64)
    assert reply["prompt_eval_count"] > 600 and "was cut" not in str(reply["warnings"])
    assert abs(sum(value * value for value in reply["embeddings"][0]) - 1) < 1e-4


def test_a_conversation_longer_than_the_context_is_cut_and_said(server: str) -> None:
    ask(server, "generate", keep_alive=0)  # or a context that is longer already would be used
    messages = [{"role": ("user", "assistant")[i % 2], "content": f"word{i} " * 20} for i in range(21)]
    reply = ask(server, "chat", messages=messages, options=GREEDY | {"num_ctx": 512, "num_predict": 1}, keep_alive=0)
    assert "oldest messages were dropped" in reply["warnings"][0]
    assert 200 < reply["prompt_eval_count"] < 512


def test_the_command_line_asks_it(server: str, place: dict[str, str]) -> None:
    def rsllm(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "rsllm", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=place,
            timeout=120,
        )

    run = rsllm("run", "smollm2", "What is the capital of France?", "--temperature", "0", "--num-predict", "12")
    assert "Paris" in run.stdout, run.stderr
    assert run.stderr == ""
    assert rsllm("ps").stdout.splitlines()[1].startswith("smollm2:latest")
    assert "134.52M" in httpx2.get(f"{server}/api/tags").text
    assert rsllm("stop", "smollm2").returncode == 0
