"""OpenAI's Python client: chat completions, responses, completions, embeddings, models."""

from __future__ import annotations

import asyncio
import json

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
    post,
    raises,
    working,
)
from openai import AsyncOpenAI, AuthenticationError, BadRequestError, NotFoundError, OpenAI
from pydantic import BaseModel

client = OpenAI(base_url=f"{URL}/v1", api_key="none is needed", max_retries=0)
chat = client.chat.completions

ASK = [{"role": "user", "content": QUESTION}]
GREEDY = {"model": MODEL, "messages": ASK, "temperature": 0, "max_tokens": 12}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Say what the weather is like.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}
SUNNY = [{"role": "user", "content": "What is the weather in Paris?"}]


class Person(BaseModel):
    name: str
    age: int


def case_models() -> None:
    listed = {model.id: model for model in client.models.list()}
    assert listed[f"{MODEL}:latest"].object == "model" and listed[f"{MODEL}:latest"].created > 1_600_000_000
    assert client.models.retrieve(MODEL).id == MODEL
    with raises(NotFoundError):
        client.models.retrieve("nosuch")


def case_chat() -> None:
    reply = chat.create(**GREEDY)
    [choice] = reply.choices
    assert ANSWER in choice.message.content and choice.message.role == "assistant"
    assert choice.finish_reason in ("stop", "length") and not choice.message.tool_calls
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.id.startswith("chatcmpl-") and reply.model == MODEL and reply.object == "chat.completion"


def case_chat_stream() -> None:
    chunks = list(chat.create(**GREEDY, stream=True, stream_options={"include_usage": True}))
    whole = chat.create(**GREEDY)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant" and len({chunk.id for chunk in chunks}) == 1
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chat.create(**GREEDY, stream=True).__next__().choices[0].delta.role == "assistant"


def case_stream_helper() -> None:
    with chat.stream(**GREEDY) as stream:
        kinds = {event.type for event in stream}
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert ANSWER in stream.get_final_completion().choices[0].message.content


async def case_asynchronous() -> None:
    async with AsyncOpenAI(base_url=f"{URL}/v1", api_key="x") as client:
        replies = await asyncio.gather(*(client.chat.completions.create(**GREEDY) for _ in range(3)))
        assert len({reply.choices[0].message.content for reply in replies}) == 1
        parts = [
            chunk.choices[0].delta.content or ""
            async for chunk in await client.chat.completions.create(**GREEDY, stream=True)
        ]
        assert "".join(parts) == replies[0].choices[0].message.content


def case_content_in_parts() -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
    assert chat.create(**{**GREEDY, "messages": parts}).choices[0].message.content == (
        chat.create(**GREEDY).choices[0].message.content
    )
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    with raises(BadRequestError):
        chat.create(**{**GREEDY, "messages": [{"role": "user", "content": [image]}]})


def case_structured() -> None:
    said = [{"role": "user", "content": "Describe Ann, who is 7 years old, as JSON."}]
    asked = {"model": MODEL, "messages": said, "temperature": 0, "max_tokens": 80}
    person = chat.parse(**asked, response_format=Person).choices[0].message.parsed
    assert isinstance(person, Person)
    with chat.stream(**asked, response_format=Person) as stream:
        for _ in stream:
            pass
    assert stream.get_final_completion().choices[0].message.parsed == person
    reply = chat.create(**{**asked, "max_tokens": 100}, response_format={"type": "json_object"}).choices[0]
    assert reply.message.content.lstrip().startswith("{")
    if reply.finish_reason == "stop":
        assert isinstance(json.loads(reply.message.content), dict)


def case_options() -> None:
    assert chat.create(**{**GREEDY, "max_tokens": 3}).usage.completion_tokens == 3
    few = chat.create(model=MODEL, messages=ASK, temperature=0, max_completion_tokens=4)
    assert few.usage.completion_tokens == 4 and few.choices[0].finish_reason == "length"
    stopped = chat.create(**GREEDY, stop=[ANSWER]).choices[0]
    assert ANSWER not in stopped.message.content and stopped.finish_reason == "stop"
    assert ANSWER not in chat.create(**GREEDY, stop=ANSWER).choices[0].message.content
    warm = {**GREEDY, "temperature": 1.5, "top_p": 0.95, "presence_penalty": 0.5, "frequency_penalty": 0.5}
    first, second = (chat.create(**warm, seed=3).choices[0].message.content for _ in range(2))
    assert first == second and first != chat.create(**warm, seed=4).choices[0].message.content
    [first] = chat.create(**{**GREEDY, "max_tokens": 1}, logprobs=True).choices[0].logprobs.content
    biased = chat.create(**{**GREEDY, "max_tokens": 1}, logit_bias={str(_first_id(first.token)): -100})
    assert biased.choices[0].message.content != first.token


def _first_id(token: str) -> int:
    """The id of a text's first token, which the native route tells in `context`."""
    options = {"temperature": 0, "num_predict": 2}
    reply = post("/api/generate", model=MODEL, prompt=QUESTION, stream=False, options=options)
    assert reply["response"].startswith(token), (reply, token)
    return int(reply["context"][-2])


def case_several_choices() -> None:
    reply = chat.create(**{**GREEDY, "temperature": 1.2, "max_tokens": 8}, n=2, seed=5)
    assert [choice.index for choice in reply.choices] == [0, 1]
    assert reply.choices[0].message.content != reply.choices[1].message.content
    assert reply.usage.completion_tokens <= 16
    streamed: dict[int, str] = {0: "", 1: ""}
    for chunk in chat.create(**{**GREEDY, "max_tokens": 8}, n=2, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed[0] == streamed[1] == chat.create(**{**GREEDY, "max_tokens": 8}).choices[0].message.content


def case_logprobs() -> None:
    choice = chat.create(**GREEDY, logprobs=True, top_logprobs=3).choices[0]
    assert "".join(entry.token for entry in choice.logprobs.content).strip() == choice.message.content.strip()
    for entry in choice.logprobs.content:
        assert entry.logprob <= 0 and bytes(entry.bytes).decode() == entry.token
        assert len(entry.top_logprobs) == 3 and entry.top_logprobs[0].token == entry.token
    chunks = list(chat.create(**GREEDY, logprobs=True, stream=True))
    told = [entry.token for chunk in chunks if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
    assert told == [entry.token for entry in choice.logprobs.content]
    with raises(BadRequestError):
        chat.create(**GREEDY, logprobs=True, top_logprobs=21)


def case_completions() -> None:
    asked = {"model": MODEL, "prompt": QUESTION, "temperature": 0, "max_tokens": 12}
    reply = client.completions.create(**asked)
    assert ANSWER in reply.choices[0].text and reply.object == "text_completion"
    chunks = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == reply.choices[0].text
    assert chunks[-1].usage.completion_tokens == reply.usage.completion_tokens


def case_completions_of_several_prompts() -> None:
    asked = {"model": MODEL, "temperature": 0, "max_tokens": 12}
    alone = client.completions.create(prompt=QUESTION, **asked).choices[0].text
    reply = client.completions.create(prompt=[QUESTION, "Say hello."], **asked)
    assert [choice.index for choice in reply.choices] == [0, 1]
    assert reply.choices[0].text == alone
    texts = {0: "", 1: ""}
    for chunk in client.completions.create(prompt=[QUESTION, "Say hello."], stream=True, **asked):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert list(texts.values()) == [choice.text for choice in reply.choices]
    ids = client.completions.create(prompt=[504, 3575, 282], **asked)  # "The capital of"
    assert ids.usage.prompt_tokens == 3 and ids.choices[0].text


def case_embeddings() -> None:
    texts = ["the cat sat", "the cat sat down"]
    packed = client.embeddings.create(model=MODEL, input=texts)  # base64, unless asked otherwise
    plain = client.embeddings.create(model=MODEL, input=texts, encoding_format="float")
    assert [len(entry.embedding) for entry in packed.data] == [576, 576] and packed.data[1].index == 1
    for one, other in zip(packed.data, plain.data, strict=True):
        assert max(abs(a - b) for a, b in zip(one.embedding, other.embedding, strict=True)) < 1e-5
    assert packed.usage.prompt_tokens > 4
    assert len(client.embeddings.create(model=MODEL, input="one", dimensions=32).data[0].embedding) == 32
    with raises(NotFoundError):
        client.embeddings.create(model="nosuch", input="one")


def case_responses() -> None:
    asked = {"model": MODEL, "input": QUESTION, "temperature": 0, "max_output_tokens": 12}
    reply = client.responses.create(**asked, instructions="You answer questions.")
    assert ANSWER in reply.output_text and reply.usage.output_tokens <= 12
    assert reply.status in ("completed", "incomplete") and reply.id.startswith("resp_")
    events = list(client.responses.create(**asked, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert events[-1].type in ("response.completed", "response.incomplete")
    assert "".join(texts) == events[-1].response.output_text == client.responses.create(**asked).output_text
    turns = [
        {"role": "user", "content": "What is the capital of Italy?"},
        {"role": "assistant", "content": "The capital of Italy is Rome."},
        {"role": "user", "content": [{"type": "input_text", "text": "And of France?"}]},
    ]
    assert ANSWER in client.responses.create(**{**asked, "input": turns}).output_text
    person = client.responses.parse(
        model=MODEL, input="Describe Ann, 7 years old.", text_format=Person, temperature=0, max_output_tokens=80
    )
    assert isinstance(person.output_parsed, Person)


def case_responses_tools() -> None:
    flat = {"type": "function", **WEATHER["function"]}
    reply = client.responses.create(model=CALLER, input="What is the weather in Paris?", tools=[flat])
    [call] = [item for item in reply.output if item.type == "function_call"]
    assert call.name == "get_weather" and json.loads(call.arguments)["city"] in ("Paris", "Rome")
    with client.responses.stream(model=CALLER, input="What is the weather in Paris?", tools=[flat]) as stream:
        kinds = [event.type for event in stream]
    assert "response.function_call_arguments.done" in kinds
    assert [item.type for item in stream.get_final_response().output] == ["function_call"]
    turns = [
        {"role": "user", "content": "What is the weather in Paris?"},
        call.to_dict(),
        {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"},
    ]
    answer = client.responses.create(model=TOOLS, input=turns, tools=[flat], max_output_tokens=12)
    assert answer.output_text


def case_tools() -> None:
    reply = chat.create(model=CALLER, messages=SUNNY, tools=[WEATHER, CLOCK])
    [choice] = reply.choices
    assert choice.finish_reason == "tool_calls" and not choice.message.content
    [call] = choice.message.tool_calls
    assert call.function.name == "get_weather" and call.id and call.type == "function"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    said = [*SUNNY, choice.message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "sunny, 21 degrees"}]
    answer = chat.create(model=TOOLS, messages=said, tools=[WEATHER], temperature=0, max_tokens=12)
    assert answer.choices[0].message.content and not answer.choices[0].message.tool_calls
    rendered = chat.create(model=TOOLS, messages=said, tools=[WEATHER], extra_body={"_debug_render_only": True})
    prompt = rendered.model_extra["_debug_info"]["rendered_template"]
    for part in ("<tools>", "<tool_call>", "get_weather", "<tool_response>\nsunny, 21 degrees"):
        assert part in prompt, prompt


def case_tools_stream() -> None:
    chunks = list(chat.create(model=CALLER, messages=SUNNY, tools=[WEATHER], stream=True))
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert calls[0].index == 0 and calls[0].id and calls[0].function.name == "get_weather"
    assert json.loads("".join(call.function.arguments for call in calls))["city"]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    with chat.stream(model=CALLER, messages=SUNNY, tools=[WEATHER]) as stream:
        for _ in stream:
            pass
    [call] = stream.get_final_completion().choices[0].message.tool_calls
    assert call.function.name == "get_weather"


def case_parallel_tools() -> None:
    message = chat.create(model=TWICE, messages=SUNNY, tools=[WEATHER]).choices[0].message
    assert [call.function.name for call in message.tool_calls] == ["get_weather"] * 2
    assert len({call.id for call in message.tool_calls}) == 2
    with chat.stream(model=TWICE, messages=SUNNY, tools=[WEATHER]) as stream:
        for _ in stream:
            pass
    streamed = stream.get_final_completion().choices[0].message.tool_calls
    assert [json.loads(call.function.arguments)["city"] for call in streamed] == ["Paris", "Rome"]
    results = [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in message.tool_calls]
    said = [*SUNNY, message.to_dict(), *results]
    assert chat.create(model=TOOLS, messages=said, tools=[WEATHER], max_tokens=8).choices[0].message.content


def case_tool_choice() -> None:
    asked = {"model": TOOLS, "messages": SUNNY, "temperature": 0, "max_tokens": 60}
    named = {"type": "function", "function": {"name": "get_weather"}}
    for choice, tools in (("required", [WEATHER]), (named, [WEATHER, CLOCK])):
        reply = chat.create(**asked, tools=tools, tool_choice=choice).choices[0]
        [call] = reply.message.tool_calls
        assert call.function.name == "get_weather" and reply.finish_reason == "tool_calls"
        assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    chunks = list(chat.create(**asked, tools=[WEATHER], tool_choice="required", stream=True))
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert json.loads("".join(call.function.arguments for call in calls))["city"]
    none = chat.create(**{**asked, "max_tokens": 8}, tools=[WEATHER], tool_choice="none").choices[0]
    assert not none.message.tool_calls and none.message.content
    with raises(BadRequestError):
        chat.create(**asked, tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "nosuch"}})
    with raises(BadRequestError):
        chat.create(**{**asked, "model": MODEL}, tools=[WEATHER])


def case_reasoning() -> None:
    asked = {"model": THINKER, "messages": ASK, "reasoning_effort": "high", "temperature": 0}
    message = chat.create(**asked).choices[0].message
    assert "asks" in message.model_extra["reasoning"]
    assert message.content.endswith("Paris.") and "<think>" not in message.content
    parts = [chunk.choices[0].delta for chunk in chat.create(**asked, stream=True)]
    assert "".join(part.content or "" for part in parts) == message.content
    told = "".join((part.model_extra or {}).get("reasoning") or "" for part in parts)
    assert told == message.model_extra["reasoning"]
    reply = client.responses.create(model=THINKER, input=QUESTION, reasoning={"effort": "high"}, temperature=0)
    assert [item.type for item in reply.output] == ["reasoning", "message"] and reply.output_text == message.content
    with raises(BadRequestError):
        chat.create(**GREEDY, reasoning_effort="high")


def case_errors() -> None:
    with raises(NotFoundError) as caught:
        chat.create(**{**GREEDY, "model": "nosuch"})
    assert "nosuch" in caught.error.message and caught.error.type == "not_found_error"
    with raises(NotFoundError):
        chat.create(**{**GREEDY, "model": "nosuch"}, stream=True)
    for wrong in (
        {"temperature": -1},
        {"top_p": 7},
        {"messages": []},
        {"messages": [{"role": "user", "content": 3}]},
        {"response_format": {"type": "xml"}},
        {"stop": 7},
        {"reasoning_effort": "some"},
    ):
        with raises(BadRequestError) as caught:
            chat.create(**{**GREEDY, **wrong})
        assert caught.error.type == "invalid_request_error" and caught.error.message, caught.error
    with raises(NotFoundError):
        client.post("/nosuch", cast_to=object)
    assert not issubclass(BadRequestError, AuthenticationError)


def case_context_too_long() -> None:
    said = [{"role": "user", "content": TOO_LONG}]
    for stream in (False, True):
        with raises(BadRequestError) as caught:
            chat.create(**{**GREEDY, "messages": said}, stream=stream)
        assert "2048" in caught.error.message and caught.error.code == "context_length_exceeded", caught.error
    with raises(BadRequestError):
        client.responses.create(model=MODEL, input=TOO_LONG)


def case_warnings() -> None:
    """What has no effect is said, and the client shows it."""
    reply = chat.create(**GREEDY, extra_body={"colour": "blue"})
    assert any("colour" in warning for warning in reply.model_extra["warnings"])


def case_cancelled_in_the_middle() -> None:
    with cancelling():
        stream = chat.create(model=ENDLESS, messages=ASK, stream=True)
        for _ in range(3):
            next(stream)
        assert working() == 1
        stream.close()
    with cancelling():
        stream = client.responses.create(model=ENDLESS, input=QUESTION, stream=True)
        for _ in range(6):
            next(stream)
        stream.close()


async def case_cancelled_task() -> None:
    async with AsyncOpenAI(base_url=f"{URL}/v1", api_key="x", max_retries=0) as client:
        with cancelling():
            asking = asyncio.create_task(client.chat.completions.create(model=ENDLESS, messages=ASK))
            while not await asyncio.to_thread(working):
                await asyncio.sleep(0.02)
            asking.cancel()
            with raises(asyncio.CancelledError):
                await asking


if __name__ == "__main__":
    main(globals())
