"""A live `rsllm serve` with SmolLM2 in several dresses, and the registry that it may pull from.

The models are the same weights, so one runner serves them all:

    smollm2   as it is
    tools     a Go template that teaches tools in the Hermes way
    caller    that, and a parameter that lets it say nothing but one of two calls of `get_weather`
    twice     the same, with both calls
    thinker   a Go template with thinking, and messages to take as an example
    endless   goes on for ever: what runs it must be cancelled

A model of this size would not call a tool by itself; the parameter `regex` makes it, through the same sampler that
everybody's answers come from.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2

from rsllm.store.manifest import Layer, Manifest, MediaType
from rsllm.store.name import ModelName
from rsllm.store.store import Store
from tests.support import tiny_models
from tests.support.registry import docker_registry

__all__ = ["CONTEXT", "Live", "live_server"]

ROOT = Path(__file__).parents[2]
CONTEXT = 2048
_START_SECONDS = 60
_END = ["<|im_start|>", "<|im_end|>"]

_TOOLS_TEMPLATE = """
{{- if or .System .Tools }}<|im_start|>system
{{ .System }}
{{- if .Tools }}

# Tools

You may call one or more functions. Their signatures are within <tools></tools>:
<tools>
{{- range .Tools }}
{"type": "function", "function": {{ .Function }}}
{{- end }}
</tools>

For each call return a JSON object within <tool_call></tool_call>:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>
{{- end }}<|im_end|>
{{ end }}
{{- range $i, $_ := .Messages }}
{{- $last := eq (len (slice $.Messages $i)) 1 -}}
{{- if eq .Role "user" }}<|im_start|>user
{{ .Content }}<|im_end|>
{{ else if eq .Role "assistant" }}<|im_start|>assistant
{{ if .Content }}{{ .Content }}
{{- else if .ToolCalls }}<tool_call>
{{ range .ToolCalls }}{"name": "{{ .Function.Name }}", "arguments": {{ .Function.Arguments }}}
{{ end }}</tool_call>
{{- end }}{{ if not $last }}<|im_end|>
{{ end }}
{{- else if eq .Role "tool" }}<|im_start|>user
<tool_response>
{{ .Content }}
</tool_response><|im_end|>
{{ end }}
{{- if and (ne .Role "assistant") $last }}<|im_start|>assistant
{{ end }}
{{- end }}"""

_THINKING_TEMPLATE = """
{{- range $i, $_ := .Messages }}
{{- $last := eq (len (slice $.Messages $i)) 1 -}}
<|im_start|>{{ .Role }}
{{ if and (eq .Role "assistant") .Thinking }}<think>
{{ .Thinking }}
</think>

{{ end }}{{ .Content }}
{{- if not (and $last (eq .Role "assistant")) }}<|im_end|>
{{ end }}
{{- if and $last (ne .Role "assistant") }}<|im_start|>assistant
<think>
{{ if and $.IsThinkSet (not $.Think) }}
</think>

{{ end }}
{{- end }}
{{- end }}"""

# Enough for the model to go on in this way.
_THOUGHTS = [
    message
    for country, city in (("Italy", "Rome"), ("Spain", "Madrid"), ("Japan", "Tokyo"))
    for message in (
        {"role": "user", "content": f"What is the capital of {country}?"},
        {"role": "assistant", "thinking": f"The user asks for the capital of {country}.", "content": f"{city}."},
    )
]


def _call(cities: str) -> str:
    """A regular expression of a call of `get_weather`."""
    return rf'<tool_call>\n\{{"name": "get_weather", "arguments": \{{"city": "({cities})"\}}\}}\n</tool_call>'


class Live:
    """A server that runs, and its environment."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self.url = f"http://{environment['OLLAMA_HOST']}"

    def create(self, name: str, **body: Any) -> None:
        """Make a model through the API."""
        body = {"model": name, "stream": False, **body}
        response = httpx2.post(f"{self.url}/api/create", json=body, timeout=60)
        assert response.status_code == 200 and response.json() == {"status": "success"}, response.text

    def models(self) -> None:
        """Make the models that are not there from the beginning."""
        fixed = {"temperature": 0, "stop": _END}
        self.create("tools", **{"from": "smollm2"}, template=_TOOLS_TEMPLATE, parameters=fixed)
        self.create("caller", **{"from": "tools"}, parameters={"regex": _call("Paris|Rome")})
        self.create("twice", **{"from": "tools"}, parameters={"regex": rf"{_call('Paris')}\n{_call('Rome')}"})
        thinking = {"template": _THINKING_TEMPLATE, "messages": _THOUGHTS}
        self.create("thinker", **{"from": "smollm2"}, **thinking, parameters={**fixed, "num_predict": 60})
        self.create("endless", **{"from": "smollm2"}, parameters={"ignore_eos": True, "num_predict": -1})


@contextlib.contextmanager
def live_server(smollm2: Path, home: Path) -> Iterator[Live]:
    """`rsllm serve` on a free port, with a store below `home`, and a registry where there is one."""
    store = Store(home / "models")
    _put(store, "smollm2", smollm2)
    tiny = tiny_models.write(home / "tiny.gguf", tiny_models.SHAPES["llama"])
    environment = {
        **{name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")},
        "HOME": str(home),
        "OLLAMA_MODELS": str(store.root),
        "OLLAMA_HOST": f"127.0.0.1:{_free_port()}",
        "OLLAMA_CONTEXT_LENGTH": str(CONTEXT),
        "OLLAMA_KEEP_ALIVE": "-1",
        "RSLLM_STATE": str(home / "state"),
        "RSLLM_SERVER": "never",
        "RSLLM_TEST_TINY": str(tiny),
    }
    with contextlib.ExitStack() as stack:
        if shutil.which("docker-registry") is not None:
            registry = stack.enter_context(docker_registry(home / "registry"))
            environment |= {"RSLLM_PRIVATE_REGISTRIES": registry, "RSLLM_TEST_REGISTRY": registry}
        live = Live(environment)
        stack.enter_context(_serving(live, home / "server.log"))
        live.models()
        yield live


@contextlib.contextmanager
def _serving(live: Live, log: Path) -> Iterator[None]:
    with log.open("wb") as written:
        process = subprocess.Popen(
            [sys.executable, "-m", "rsllm", "serve"],
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
            cwd=ROOT,
            env=live.environment,
        )
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            httpx2.get(live.url)
            break
        except httpx2.ConnectError:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.05)
    try:
        yield
    finally:
        process.terminate()
        status = process.wait(60)
    assert status == 0, log.read_text()[-2000:]
    said = log.read_text(errors="replace")
    assert "Traceback" not in said, said[said.index("Traceback") :][:3000]


def _put(store: Store, name: str, weights: Path) -> None:
    described = {"model_format": "gguf", "model_family": "llama", "model_type": "134.52M", "file_type": "Q4_1"}
    layer = Layer(MediaType.MODEL, *store.add_blob(weights))
    config = Layer(MediaType.CONFIG, *store.add_blob([json.dumps(described).encode()]))
    store.write_manifest(ModelName.parse(name), Manifest.build(config, [layer]).raw)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
