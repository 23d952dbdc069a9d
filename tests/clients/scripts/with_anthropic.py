"""Anthropic's Python client: messages, whole and as events, with tools and thinking."""

from __future__ import annotations

import asyncio
import json

from anthropic import Anthropic, AsyncAnthropic, BadRequestError, NotFoundError
from harness import (
    ANSWER,
    CALLER,
    ENDLESS,
    MODEL,
    QUESTION,
    THINKER,
    TOO_LONG,
    TOOLS,
    TWICE,
    URL,
    cancelling,
    main,
    raises,
    working,
)
from pydantic import BaseModel

client = Anthropic(base_url=URL, auth_token="none is needed", max_retries=0)

ASK = [{"role": "user", "content": QUESTION}]
# This client has no argument for the temperature any more; its server still reads it.
COLD = {"extra_body": {"temperature": 0}}
GREEDY = {"model": MODEL, "messages": ASK, "max_tokens": 12, **COLD}
WEATHER = {
    "name": "get_weather",
    "description": "Say what the weather is like.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
SUNNY = [{"role": "user", "content": "What is the weather in Paris?"}]


class Person(BaseModel):
    name: str
    age: int


def case_message() -> None:
    reply = client.messages.create(**GREEDY, system="You answer questions.")
    assert (reply.type, reply.role, reply.model) == ("message", "assistant", MODEL)
    [block] = reply.content
    assert block.type == "text" and ANSWER in block.text
    assert reply.stop_reason in ("end_turn", "max_tokens")
    assert reply.usage.input_tokens > 10 and 0 < reply.usage.output_tokens <= 12


def case_count_tokens() -> None:
    counted = client.messages.count_tokens(model=MODEL, messages=ASK, system="You answer questions.")
    reply = client.messages.create(**GREEDY, system="You answer questions.")
    assert counted.input_tokens == reply.usage.input_tokens
    long = [{"role": "user", "content": TOO_LONG}]
    assert client.messages.count_tokens(model=MODEL, messages=long).input_tokens > 2048


def case_events() -> None:
    whole = client.messages.create(**GREEDY)
    events = list(client.messages.create(**GREEDY, stream=True))
    assert (events[0].type, events[-1].type) == ("message_start", "message_stop")
    kinds = [event.type for event in events]
    assert kinds.index("content_block_start") < kinds.index("content_block_delta") < kinds.index("content_block_stop")
    text = "".join(event.delta.text for event in events if event.type == "content_block_delta")
    assert text == whole.content[0].text
    [end] = [event for event in events if event.type == "message_delta"]
    assert end.delta.stop_reason == whole.stop_reason and end.usage.output_tokens == whole.usage.output_tokens


def case_stream_helper() -> None:
    with client.messages.stream(**GREEDY) as stream:
        text = "".join(stream.text_stream)
    assert stream.get_final_message().content[0].text == text and ANSWER in text


async def case_asynchronous() -> None:
    async with AsyncAnthropic(base_url=URL, auth_token="x") as client:
        replies = await asyncio.gather(*(client.messages.create(**GREEDY) for _ in range(3)))
        assert len({reply.content[0].text for reply in replies}) == 1
        async with client.messages.stream(**GREEDY) as stream:
            parts = [text async for text in stream.text_stream]
        assert "".join(parts) == replies[0].content[0].text


def case_history_in_blocks() -> None:
    said = [
        {"role": "user", "content": [{"type": "text", "text": "What is the capital of Italy?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "The capital of Italy is Rome."}]},
        {"role": "user", "content": "And of France?"},
    ]
    system = [{"type": "text", "text": "You answer questions.", "cache_control": {"type": "ephemeral"}}]
    reply = client.messages.create(**{**GREEDY, "messages": said}, system=system)
    assert ANSWER in reply.content[0].text


def case_structured() -> None:
    said = [{"role": "user", "content": "Describe Ann, who is 7 years old, as JSON."}]
    asked = {**GREEDY, "messages": said, "max_tokens": 80}
    reply = client.messages.parse(**asked, output_format=Person)
    assert isinstance(reply.parsed_output, Person)
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    whole = client.messages.create(**asked, output_config={"format": {"type": "json_schema", "schema": schema}})
    assert isinstance(json.loads(whole.content[0].text)["age"], int)


def case_options() -> None:
    cut = client.messages.create(**{**GREEDY, "max_tokens": 3})
    assert cut.stop_reason == "max_tokens" and cut.usage.output_tokens == 3
    stopped = client.messages.create(**GREEDY, stop_sequences=[ANSWER])
    assert ANSWER not in "".join(block.text for block in stopped.content)
    assert client.messages.create(**{**GREEDY, "extra_body": {"top_k": 1, "top_p": 0.9}}).content[0].text == (
        client.messages.create(**GREEDY).content[0].text
    )


def case_models() -> None:
    assert f"{MODEL}:latest" in [model.id for model in client.models.list()]


def case_tools() -> None:
    reply = client.messages.create(model=CALLER, messages=SUNNY, max_tokens=80, tools=[WEATHER])
    [block] = reply.content
    assert reply.stop_reason == "tool_use" and (block.type, block.name) == ("tool_use", "get_weather")
    assert block.id and block.input["city"] in ("Paris", "Rome")
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "sunny, 21 degrees"}
    said = [*SUNNY, {"role": "assistant", "content": reply.content}, {"role": "user", "content": [result]}]
    answer = client.messages.create(model=TOOLS, messages=said, max_tokens=12, tools=[WEATHER], **COLD)
    assert answer.content[0].type == "text" and answer.content[0].text
    both = client.messages.create(model=TWICE, messages=SUNNY, max_tokens=120, tools=[WEATHER]).content
    assert [(block.type, block.input["city"]) for block in both] == [("tool_use", "Paris"), ("tool_use", "Rome")]


def case_tools_stream() -> None:
    with client.messages.stream(model=CALLER, messages=SUNNY, max_tokens=80, tools=[WEATHER]) as stream:
        kinds = [event.type for event in stream]
    assert "input_json" in kinds
    [block] = stream.get_final_message().content
    assert block.type == "tool_use" and block.input["city"] in ("Paris", "Rome")
    assert stream.get_final_message().stop_reason == "tool_use"


def case_tool_choice() -> None:
    asked = {"model": TOOLS, "messages": SUNNY, "max_tokens": 60, "tools": [WEATHER], **COLD}
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
        reply = client.messages.create(**asked, tool_choice=choice)
        [block] = reply.content
        assert block.type == "tool_use" and block.input["city"] in ("Paris", "Rome")
    none = client.messages.create(**{**asked, "max_tokens": 8}, tool_choice={"type": "none"})
    assert [block.type for block in none.content] == ["text"]


def case_thinking() -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    reply = client.messages.create(model=THINKER, messages=ASK, max_tokens=2000, thinking=thinking)
    assert [block.type for block in reply.content] == ["thinking", "text"]
    assert "asks" in reply.content[0].thinking and reply.content[1].text.endswith("Paris.")
    with client.messages.stream(model=THINKER, messages=ASK, max_tokens=2000, thinking=thinking) as stream:
        kinds = [event.type for event in stream]
    assert "thinking" in kinds
    final = stream.get_final_message()
    assert [(block.type, getattr(block, "text", "")) for block in final.content] == [
        (block.type, getattr(block, "text", "")) for block in reply.content
    ]
    said = [*ASK, {"role": "assistant", "content": final.content}, {"role": "user", "content": "Are you sure?"}]
    assert client.messages.create(model=THINKER, messages=said, max_tokens=2000, thinking=thinking).content
    # A model that cannot think goes on without.
    assert client.messages.create(**{**GREEDY, "max_tokens": 2000, "stop_sequences": ["."]}, thinking=thinking).content


def case_errors() -> None:
    with raises(NotFoundError) as caught:
        client.messages.create(**{**GREEDY, "model": "nosuch"})
    assert caught.error.body["error"]["type"] == "not_found_error" and "nosuch" in str(caught.error)
    with raises(NotFoundError):
        client.messages.create(**{**GREEDY, "model": "nosuch"}, stream=True)
    for wrong in (
        {"extra_body": {"temperature": -1}},
        {"max_tokens": 0},
        {"messages": []},
        {"tool_choice": {"type": "some"}},
    ):
        with raises(BadRequestError) as caught:
            client.messages.create(**{**GREEDY, **wrong})
        assert caught.error.body["error"]["type"] == "invalid_request_error", caught.error


def case_context_too_long() -> None:
    said = [{"role": "user", "content": TOO_LONG}]
    for stream in (False, True):
        with raises(BadRequestError) as caught:
            client.messages.create(**{**GREEDY, "messages": said}, stream=stream)
        assert "prompt is too long: " in str(caught.error), caught.error


def case_cancelled_in_the_middle() -> None:
    with cancelling():
        stream = client.messages.create(model=ENDLESS, messages=ASK, max_tokens=100_000, stream=True)
        for _ in range(5):
            next(iter(stream))
        assert working() == 1
        stream.close()


async def case_cancelled_task() -> None:
    async with AsyncAnthropic(base_url=URL, auth_token="x", max_retries=0) as client:
        with cancelling():
            asked = {"model": ENDLESS, "messages": ASK, "max_tokens": 5000}
            asking = asyncio.create_task(client.messages.create(**asked))
            while not await asyncio.to_thread(working):
                await asyncio.sleep(0.02)
            asking.cancel()
            with raises(asyncio.CancelledError):
                await asking


if __name__ == "__main__":
    main(globals())
