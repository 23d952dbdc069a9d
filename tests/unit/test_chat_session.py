"""Conversations on the fake core: what is sent, and what is remembered."""

from __future__ import annotations

from typing import Any

import pytest

import rsllm
from rsllm.errors import ContextLengthError, OptionError, TemplateError
from tests.unit.fake_core import WHOLE


def sent(core: Any, index: int = -1) -> str:
    """The prompt of a generation, control tokens as text."""
    engine = core.behaviour.engines[0]
    text: str = engine.detokenize(engine.prompts[index])
    return text


def test_a_turn_is_rendered_and_remembered(model: rsllm.Model, core: Any) -> None:
    chat = model.chat(system="Be brief.")
    assert chat.generate("hi").text == WHOLE
    system = "<|im_start|>system\nBe brief.<|im_end|>\n"
    assert sent(core) == system + "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert chat.messages == [{"role": "user", "content": "hi"}, {"role": "assistant", "content": WHOLE}]
    core.behaviour.script = ["again"]
    assert "".join(chat.stream("more")) == "again"
    assert sent(core).count("<|im_start|>") == 5
    chat.clear()
    assert chat.messages == []
    assert chat.prompt("x").startswith("<|im_start|>system\nBe brief.")


def test_control_tokens_in_a_message_are_text(model: rsllm.Model, core: Any) -> None:
    model.chat().generate("<|im_end|>")
    assert core.behaviour.engines[0].prompts[0].count(core.IM_END) == 1


def test_a_list_of_messages_goes_on_from_the_history(model: rsllm.Model, core: Any) -> None:
    chat = model.chat()
    chat.generate([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}])
    assert sent(core).startswith("<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu")
    assert [message["role"] for message in chat.messages] == ["system", "user", "assistant"]
    with pytest.raises(TemplateError, match="a message is a dictionary"):
        chat.stream([{"content": "no role"}])


@pytest.mark.parametrize("add_bos", [False, True])
def test_there_is_one_bos_where_the_model_wants_one(model: rsllm.Model, core: Any, add_bos: bool) -> None:
    """TPL-17."""
    core.behaviour.add_bos = add_bos
    model.chat().generate("hi")
    core.behaviour.template = "{{ bos_token }}" + core.CHATML
    model._metadata = None
    model._templates.clear()
    model.chat().generate("hi")
    counts = [prompt.count(core.BOS) for prompt in core.behaviour.engines[0].prompts]
    assert counts == [int(add_bos), 1]


def test_a_closed_turn_keeps_what_was_said(model: rsllm.Model, core: Any) -> None:
    chat = model.chat()
    core.behaviour.endless = True
    stream = chat.stream("hi")
    next(stream)
    stream.close()
    assert chat.messages[-1] == {"role": "assistant", "content": "Hello"}


def test_a_turn_cancelled_before_a_word_leaves_nothing(model: rsllm.Model) -> None:
    chat = model.chat()
    chat.stream("hi").close()
    assert chat.messages == []


def test_a_failed_turn_leaves_the_history_as_it_was(model: rsllm.Model, core: Any) -> None:
    chat = model.chat()
    chat.generate("hi")
    before = list(chat.messages)
    core.behaviour.fail_after = 1
    with pytest.raises(RuntimeError):
        chat.generate("again")
    with pytest.raises(ContextLengthError):
        chat.generate("x" * 300)
    with pytest.raises(OptionError):
        chat.generate("x", temperature=-1)
    assert chat.messages == before


async def test_the_asynchronous_twins_remember_too(model: rsllm.Model, core: Any) -> None:
    chat = model.chat()
    assert (await chat.agenerate("hi")).text == WHOLE
    assert "".join([token async for token in chat.astream("more")]) == WHOLE
    assert len(chat.messages) == 4
    core.behaviour.fail_after = 1
    with pytest.raises(RuntimeError):
        await chat.agenerate("again")
    assert len(chat.messages) == 4


def test_a_model_without_a_template_has_no_chat(model: rsllm.Model, core: Any) -> None:
    core.behaviour.template = None
    with pytest.raises(TemplateError, match="has no chat template") as caught:
        model.chat()
    assert caught.value.hint is not None
    assert "--raw" in caught.value.hint


def test_thoughts_and_calls_are_told_from_the_answer(model: rsllm.Model, core: Any) -> None:
    core.behaviour.template = (
        core.CHATML + "{% if add_generation_prompt %}<think>\n{% endif %}{# </think><tool_call> #}"
    )
    core.behaviour.script = ["Hm", "</think>", "Yes. ", '<tool_call>{"name": ', '"clock"}', "</tool_call>"]
    chat = model.chat(tools=[{"type": "function", "function": {"name": "clock"}}])
    stream = chat.stream("hi")
    parser = chat.parser()
    parts = [part for piece in stream for part in parser.feed(piece)] + parser.finish()
    assert [(part.kind, part.text) for part in parts if part.text] == [("thinking", "Hm"), ("content", "Yes. ")]
    [call] = [call for part in parts for call in part.calls]
    assert (call.name, call.arguments) == ("clock", {})


def test_tags_that_are_control_tokens_are_seen(model: rsllm.Model, core: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same parts as the server makes: `test_tags_that_are_control_tokens` in tests/server/test_tools.py."""
    for text, id in (("<|im_start|>", core.IM_START), ("[TOOL_CALLS]", core.IM_START)):
        monkeypatch.setitem(core.SPECIAL, text, id)
        monkeypatch.setitem(core.TEXTS, id, text)
    tokens = [*map(str, range(258)), "[TOOL_CALLS]", "<|im_end|>"]
    monkeypatch.setattr(model, "_metadata", {**model.metadata, "tokenizer.ggml.tokens": tokens})
    core.behaviour.template = "{{ messages[0].content }}{# tools [TOOL_CALLS] #}"
    model._metadata["tokenizer.chat_template"] = core.behaviour.template  # type: ignore[index]
    core.behaviour.script = ["So. ", "[TOOL_CALLS]", "clock", "[ARGS]", "{}"]
    chat = model.chat(tools=[{"type": "function", "function": {"name": "clock"}}])
    stream = chat.stream("hi")
    parser = chat.parser()
    parts = [part for piece in stream for part in parser.feed(piece)] + parser.finish()
    assert [part.text for part in parts if part.text] == ["So. "]
    assert [call.name for part in parts for call in part.calls] == ["clock"]


def test_the_command_line_shows_thoughts_apart(model: rsllm.Model, core: Any) -> None:
    from rsllm.cli.sessions import LocalSession

    core.behaviour.template = core.CHATML + "{# <think></think> #}"
    core.behaviour.script = ["<think>", "Hm", "</think>", "\n\nYes"]
    chunks = list(LocalSession(model).answer("hi"))
    assert [(str(chunk), chunk.thinking) for chunk in chunks] == [("Hm", True), ("Yes", False)]
    core.behaviour.script = ["No tags"]
    assert [(str(chunk), chunk.thinking) for chunk in LocalSession(model).answer("hi")] == [("No tags", False)]
