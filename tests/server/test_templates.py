"""Which template makes a prompt, and what can be said with it: Go templates, suffixes, templates of requests."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from rsllm.server.templates import Sources, choose, known_stops
from rsllm.store.manifest import MediaType
from tests.server.conftest import METADATA, Bench, asking

HI = [{"role": "user", "content": "hi"}]
NO_JINJA = {name: value for name, value in METADATA.items() if name != "tokenizer.chat_template"}
LEGACY = "{{ if .System }}S:{{ .System }} {{ end }}U:{{ .Prompt }} A:{{ .Response }}."
MODERN = "{{ range .Messages }}<{{ .Role }}>{{ .Content }}{{ end }}<assistant>"


async def rendered(client: httpx2.AsyncClient, route: str = "generate", **body: Any) -> str:
    asked = {"messages": HI} if route == "chat" else {"prompt": "hi"}
    body = {"model": "tiny", "stream": False, "_debug_render_only": True, **asked, **body}
    reply = await client.post(f"/api/{route}", json=body)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["_debug_info"]["rendered_template"])


def with_go(bench: Bench, template: str, metadata: Any = NO_JINJA, **more: Any) -> None:
    layers = {MediaType.TEMPLATE: template, **more.pop("layers", {})}
    bench.add(layers=layers, metadata=metadata, **more)


async def test_a_go_template_alone(client: httpx2.AsyncClient, bench: Bench) -> None:
    with_go(bench, LEGACY)
    assert await rendered(client) == "U:hi A:"
    assert await rendered(client, system="Be nice.") == "S:Be nice. U:hi A:"
    turns = [*HI, {"role": "assistant", "content": "yo"}, {"role": "user", "content": "so?"}]
    assert await rendered(client, "chat", messages=turns) == "U:hi A:yo.U:so? A:"
    with_go(bench, MODERN)
    assert await rendered(client, "chat", messages=turns) == "<user>hi<assistant>yo<user>so?<assistant>"


async def test_the_models_own_system_and_messages(client: httpx2.AsyncClient, bench: Bench) -> None:
    history = json.dumps([{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}])
    with_go(bench, MODERN, layers={MediaType.SYSTEM: "Be nice.", MediaType.MESSAGES: history})
    for route in ("generate", "chat"):
        assert await rendered(client, route) == "<system>Be nice.<user>1<assistant>2<user>hi<assistant>"


async def test_context_goes_before_what_a_go_template_says(client: httpx2.AsyncClient, bench: Bench) -> None:
    with_go(bench, LEGACY, behaviour={"pieces": 1, "text": "x"})
    body = {"model": "tiny", "prompt": "hi", "stream": False}
    first = (await client.post("/api/generate", json=body)).json()["context"]
    second = (await client.post("/api/generate", json={**body, "context": first})).json()["context"]
    assert bytes(second).decode() == "U:hi A:xU:hi A:x"


@pytest.mark.parametrize(
    ("go", "jinja", "setting", "wins"),
    [
        (LEGACY, "plain", None, "go"),
        ("{{ .Prompt }}", "{{ tools }} tool_calls 'tool'", None, "jinja"),
        ("{{ .Prompt }}", "{{ tools }} tool_calls 'tool'", "1", "go"),
        (LEGACY, "plain", "false", "jinja"),
        (LEGACY, None, "false", "go"),
        (None, "plain", "1", "jinja"),
    ],
)
async def test_the_choice(
    make_bench: Callable[..., Bench], go: str | None, jinja: str | None, setting: str | None, wins: str
) -> None:
    bench = make_bench(environment={} if setting is None else {"OLLAMA_GO_TEMPLATE": setting})
    metadata = NO_JINJA if jinja is None else {**METADATA, "tokenizer.chat_template": "J" + jinja}
    bench.add(metadata=metadata, layers={} if go is None else {MediaType.TEMPLATE: go})
    async with bench.pool, asking(bench) as client:
        assert (await rendered(client)).startswith("J") == (wins == "jinja")


async def test_what_is_put_aside_is_said(client: httpx2.AsyncClient, bench: Bench) -> None:
    body = {"model": "tiny", "prompt": "hi", "stream": False}
    with_go(bench, "{{ if }}", METADATA)
    [warning] = (await client.post("/api/generate", json=body)).json()["warnings"]
    assert "the model's Go template (TEMPLATE) was put aside for the file's own: " in warning
    bench.add(config={"renderer": "qwen3.5"}, layers={MediaType.TEMPLATE: "{{ .Prompt }}"})
    [warning] = (await client.post("/api/generate", json=body)).json()["warnings"]
    assert "renderer 'qwen3.5', which is built into Ollama" in warning
    assert (await rendered(client)).startswith("<|im_start|>")
    bench.add(config={"parser": "nosuch"})
    [warning] = (await client.post("/api/generate", json=body)).json()["warnings"]
    assert "the parser 'nosuch', which is not known" in warning
    with_go(bench, "{{ if }}")
    response = await client.post("/api/generate", json=body)
    assert response.status_code == 400 and "line 1" in response.json()["error"]


async def test_a_template_of_the_request(client: httpx2.AsyncClient, bench: Bench) -> None:
    assert await rendered(client, template=LEGACY, system="x") == "S:x U:hi A:"
    assert await rendered(client, template="{{ .Prompt }}!") == "hi!"
    assert (await rendered(client)).startswith("<|im_start|>")
    with_go(bench, MODERN)
    assert await rendered(client, template=LEGACY) == "U:hi A:"
    # What people wrote stays text in whatever template.
    endless = "{{ range .Messages }}" * 200 + "{{ end }}" * 200
    response = await client.post("/api/generate", json={"model": "tiny", "prompt": "hi", "template": endless})
    assert response.status_code == 400


# The text between a prefix and a suffix.


async def test_a_suffix_by_the_go_template(client: httpx2.AsyncClient, bench: Bench) -> None:
    template = "{{ if .Suffix }}<PRE>{{ .Prompt }}<SUF>{{ .Suffix }}<MID>{{ else }}{{ .Prompt }}{{ end }}"
    with_go(bench, template)
    assert await rendered(client, prompt="def f():", suffix="return 1") == "<PRE>def f():<SUF>return 1<MID>"
    assert await rendered(client) == "hi"
    # Also where the file's own template makes all other prompts.
    with_go(bench, template, {**METADATA, "tokenizer.chat_template": "J{{ tools }} tool_calls 'tool'"})
    assert (await rendered(client)).startswith("J")
    assert await rendered(client, suffix="x") == "<PRE>hi<SUF>x<MID>"


@pytest.mark.parametrize(
    ("texts", "ids"),
    [
        (["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"], {}),
        (["<a>", "<b>", "<c>"], {"fim_pre": 0, "fim_suf": 1, "fim_mid": 2}),
        (["<a>", "<b>", "<c>"], {"prefix": 0, "suffix": 1, "middle": 2}),
    ],
)
async def test_a_suffix_by_tokens_of_the_model(
    client: httpx2.AsyncClient, bench: Bench, texts: list[str], ids: dict[str, int]
) -> None:
    keys = {f"tokenizer.ggml.{name}_token_id": id for name, id in ids.items()}
    tokens = {"tokenizer.ggml.tokens": [*texts, "a"], "tokenizer.ggml.token_type": [3, 3, 3, 1]}
    bench.add(metadata={**METADATA, **tokens, **keys})
    first, second, third = texts
    assert await rendered(client, suffix="x") == f"{first}hi{second}x{third}"
    body = {"model": "tiny", "prompt": "hi", "suffix": "x"}
    reply = (await client.post("/v1/completions", json=body)).json()
    assert reply["choices"][0]["text"] == "ab" * 4


async def test_a_suffix_that_the_model_cannot_use(client: httpx2.AsyncClient, bench: Bench) -> None:
    with_go(bench, LEGACY)
    response = await client.post("/api/generate", json={"model": "tiny", "prompt": "hi", "suffix": "x"})
    assert response.status_code == 400
    assert response.json()["error"] == "registry.ollama.ai/library/tiny:latest does not support insert"
    body = {"model": "tiny", "prompt": "hi", "suffix": "x", "think": True}
    assert "does not support thinking" in (await client.post("/api/generate", json=body)).json()["error"]


# Stop strings.


async def test_the_stop_strings_of_a_known_shape(client: httpx2.AsyncClient, bench: Bench) -> None:
    alpaca = "### Instruction:\n{{ .Prompt }}\n\n### Response:\n{{ .Response }}\n"
    behaviour = {"says": ["Yes.\n", "### Instruction:", " more"]}
    with_go(bench, alpaca, behaviour=behaviour)
    body = {"model": "tiny", "prompt": "hi", "stream": False}
    reply = (await client.post("/api/generate", json=body)).json()
    assert reply["response"] == "Yes.\n"
    assert "'### Instruction:', '### Response'" in reply["warnings"][0]
    reply = (await client.post("/api/generate", json={**body, "options": {"stop": []}})).json()
    assert reply["response"] == "Yes.\n### Instruction: more" and "warnings" not in reply
    with_go(bench, alpaca, behaviour=behaviour, layers={MediaType.PARAMS: '{"stop": ["more"]}'})
    assert (await client.post("/api/generate", json=body)).json()["response"] == "Yes.\n### Instruction: "


def test_stop_strings_that_are_control_tokens_need_no_mention() -> None:
    assert known_stops("<|im_start|>user\n{{ .Prompt }}<|im_end|>") == ("<|im_start|>", "<|im_end|>")
    assert known_stops("{{ .Prompt }}") == ()


async def test_control_tokens_are_no_stop_strings(client: httpx2.AsyncClient, bench: Bench) -> None:
    with_go(bench, "<|im_start|>user\n{{ .Prompt }}<|im_end|>\n<|im_start|>assistant\n{{ .Response }}")
    reply = (await client.post("/api/generate", json={"model": "tiny", "prompt": "hi", "stream": False})).json()
    assert "warnings" not in reply


async def test_old_thoughts_are_not_shown_again(client: httpx2.AsyncClient, bench: Bench) -> None:
    messages = [*HI, {"role": "assistant", "content": "<think>no</think>\n\nyo"}, *HI]
    with_go(bench, MODERN)
    assert "<think>no" in await rendered(client, "chat", messages=messages)
    with_go(bench, MODERN, config={"model_family": "qwen3"})
    assert await rendered(client, "chat", messages=messages) == "<user>hi<assistant>yo<user>hi<assistant>"
    # What is being continued is left as it is.
    assert "<think>no" in await rendered(client, "chat", messages=messages[:2])


def test_nothing_to_choose_from() -> None:
    chosen = choose(Sources())
    assert chosen.template is None and chosen.error is None


async def test_an_answer_that_has_begun_is_continued(client: httpx2.AsyncClient, bench: Bench) -> None:
    messages = [*HI, {"role": "assistant", "content": ' Once "upon" <|im_end|> '}]
    expected = '<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n Once "upon" <|im_end|>'
    assert await rendered(client, "chat", messages=messages) == expected
    # A call is no beginning, and Go templates close what was said, as in Ollama.
    call = {"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": "f"}}]}
    assert (await rendered(client, "chat", messages=[*HI, call])).endswith("assistant\n")
    with_go(bench, MODERN)
    assert await rendered(client, "chat", messages=[*HI, {"role": "assistant", "content": "x"}]) == (
        "<user>hi<assistant>x<assistant>"
    )
    bench.add(metadata={**METADATA, "tokenizer.chat_template": "{{ messages[0].content }}"})
    response = await client.post("/api/chat", json={"model": "tiny", "messages": messages})
    assert response.status_code == 400 and "does not show it as it is" in response.json()["error"]


# What is built into Ollama.


@pytest.mark.parametrize("template", [None, "{{ .Prompt }}", "{{- .Prompt -}}\n"])
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate", "/v1/chat/completions", "/v1/messages"])
async def test_a_renderer_that_is_not_here_is_no_reason_to_send_the_bare_prompt(
    client: httpx2.AsyncClient, bench: Bench, template: str | None, path: str
) -> None:
    layers = {} if template is None else {MediaType.TEMPLATE: template}
    bench.add(config={"renderer": "qwen3-coder", "parser": "qwen3-coder"}, layers=layers, metadata=NO_JINJA)
    body = {"model": "tiny", "prompt": "hi", "messages": HI, "stream": False, "max_tokens": 3}
    response = await client.post(path, json=body)
    assert response.status_code == 400, response.text
    assert "the renderer 'qwen3-coder', which is built into Ollama and is not here" in response.text
    assert (await client.post("/api/generate", json={**body, "raw": True})).status_code == 200
    own = {"model": "tiny", "prompt": "hi", "template": "U:{{ .Prompt }}", "stream": False}
    assert (await client.post("/api/generate", json=own)).status_code == 200


async def test_a_go_template_in_place_of_a_renderer(client: httpx2.AsyncClient, bench: Bench) -> None:
    with_go(bench, MODERN, config={"renderer": "qwen3-coder"})
    assert await rendered(client, "chat") == "<user>hi<assistant>"
    reply = (await client.post("/api/chat", json={"model": "tiny", "messages": HI, "stream": False})).json()
    assert "its template was used in its place" in reply["warnings"][0]


async def test_a_named_parser_decides_how_replies_are_read(client: httpx2.AsyncClient, bench: Bench) -> None:
    says = ["<think>Hm</think>", "<tool_call>\n<function=clock>\n</function>\n</tool_call>"]
    template = "{# tools #}{% for m in messages %}{{ m.content }}{% endfor %}"
    tools = [{"type": "function", "function": {"name": "clock"}}]
    body = {"model": "tiny", "messages": HI, "tools": tools, "stream": False}
    metadata = {**METADATA, "tokenizer.chat_template": template}
    for parser, thinking, content, calls in [
        ("qwen3.5", "Hm", "", 1),
        ("qwen3-coder", None, "<think>Hm</think>", 1),
        ("passthrough", None, "".join(says), 0),
    ]:
        bench.add(config={"parser": parser}, behaviour={"says": says}, metadata=metadata)
        message = (await client.post("/api/chat", json=body)).json()["message"]
        assert (message.get("thinking"), message["content"]) == (thinking, content)
        assert len(message.get("tool_calls", ())) == calls


# Variables of the request.

DATED = "{% if not date_string is defined %}{% set date_string = '26 Jul 2024' %}{% endif %}{{ date_string }} "


async def test_variables_of_the_request_reach_the_template(client: httpx2.AsyncClient, bench: Bench) -> None:
    """TPL-08."""
    bench.add(metadata={**METADATA, "tokenizer.chat_template": DATED + "{{ messages[0].content }}"})
    assert await rendered(client, "chat") == "26 Jul 2024 hi"
    variables = {"date_string": "30 Nov 2026"}
    assert await rendered(client, "chat", chat_template_kwargs=variables) == "30 Nov 2026 hi"
    body = {"model": "tiny", "messages": HI, "chat_template_kwargs": variables, "_debug_render_only": True}
    reply = (await client.post("/v1/chat/completions", json=body)).json()
    assert reply["_debug_info"]["rendered_template"] == "30 Nov 2026 hi"
    for wrong in ({"messages": []}, {"tools": []}, {"bos_token": "x"}, [], "x"):
        response = await client.post("/api/chat", json={**body, "chat_template_kwargs": wrong})
        assert response.status_code == 400 and "chat_template_kwargs" in response.json()["error"]
    with_go(bench, MODERN)
    reply = (await client.post("/api/chat", json={**body, "stream": False})).json()
    assert reply["warnings"] == ["field 'chat_template_kwargs' has no effect: the model's template is Go's"]


async def test_thinking_by_a_variable_is_thinking(client: httpx2.AsyncClient, bench: Bench) -> None:
    template = "{% if enable_thinking %}<think>\n{% else %}<think></think>{% endif %}"
    says = ["Hm", "</think>", "Yes"]
    bench.add(behaviour={"says": says}, metadata={**METADATA, "tokenizer.chat_template": template})
    body = {"model": "tiny", "messages": HI, "stream": False, "chat_template_kwargs": {"enable_thinking": True}}
    message = (await client.post("/api/chat", json=body)).json()["message"]
    assert (message["thinking"], message["content"]) == ("Hm", "Yes")
    off = {"enable_thinking": False}
    assert await rendered(client, "chat", chat_template_kwargs=off) == "<think></think>"
    bench.add()  # which does not think: no reason to refuse
    assert (await client.post("/api/chat", json=body)).status_code == 200
