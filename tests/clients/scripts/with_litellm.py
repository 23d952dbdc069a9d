"""LiteLLM, which speaks all of the server's protocols: Ollama's two, OpenAI's and Anthropic's."""

from __future__ import annotations

import asyncio
import json
import os

# It would fetch a list of prices when it is imported.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from harness import (
    ANSWER,
    CALLER,
    ENDLESS,
    MODEL,
    QUESTION,
    THINKER,
    TOO_LONG,
    TOOLS,
    URL,
    cancelling,
    main,
    raises,
    working,
)
from pydantic import BaseModel

litellm.telemetry = False
litellm.num_retries = 0

ASK = [{"role": "user", "content": QUESTION}]
SUNNY = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Say what the weather is like.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
# How it calls the protocols, and where they are.
PROTOCOLS = {
    "ollama": URL,
    "ollama_chat": URL,
    "openai": f"{URL}/v1",
    "text-completion-openai": f"{URL}/v1",
    "anthropic": URL,
}
CHATS = [name for name in PROTOCOLS if name not in ("ollama", "text-completion-openai")]


class Person(BaseModel):
    name: str
    age: int


def asked(protocol: str, model: str = MODEL, **fields: object) -> dict:
    place = {"model": f"{protocol}/{model}", "api_base": PROTOCOLS[protocol], "api_key": "none is needed"}
    return {**place, "messages": ASK, "temperature": 0, "max_tokens": 12, **fields}


def case_completion() -> None:
    for protocol in PROTOCOLS:
        reply = litellm.completion(**asked(protocol))
        assert ANSWER in reply.choices[0].message.content, (protocol, reply)
        assert reply.choices[0].finish_reason in ("stop", "length"), (protocol, reply)
        assert 0 < reply.usage.completion_tokens <= 12 and reply.usage.prompt_tokens > 5, (protocol, reply)


def case_stream() -> None:
    for protocol in PROTOCOLS:
        chunks = list(litellm.completion(**asked(protocol), stream=True))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text.strip() == litellm.completion(**asked(protocol)).choices[0].message.content.strip(), protocol
        assert chunks[-1].choices[0].finish_reason in ("stop", "length"), (protocol, chunks[-1])


async def case_asynchronous() -> None:
    replies = await asyncio.gather(*(litellm.acompletion(**asked(protocol)) for protocol in CHATS))
    assert all(ANSWER in reply.choices[0].message.content for reply in replies)
    for protocol in CHATS:
        parts = [chunk async for chunk in await litellm.acompletion(**asked(protocol), stream=True)]
        assert ANSWER in "".join(part.choices[0].delta.content or "" for part in parts), protocol


def case_structured() -> None:
    said = [{"role": "user", "content": "Describe Ann, who is 7 years old, as JSON."}]
    for protocol in ("ollama", "ollama_chat", "openai"):
        reply = litellm.completion(**asked(protocol, messages=said, max_tokens=80), response_format=Person)
        Person.model_validate_json(reply.choices[0].message.content)


def case_options() -> None:
    for protocol in CHATS:
        short = litellm.completion(**asked(protocol, max_tokens=3))
        assert short.usage.completion_tokens == 3 and short.choices[0].finish_reason == "length", protocol
        assert ANSWER not in (litellm.completion(**asked(protocol), stop=[ANSWER]).choices[0].message.content or "")
    warm = {"temperature": 1.5, "seed": 9}
    for protocol in ("ollama_chat", "openai"):
        first, second = (litellm.completion(**asked(protocol, **warm)).choices[0].message.content for _ in range(2))
        assert first == second, protocol


def case_logprobs() -> None:
    choice = litellm.completion(**asked("openai"), logprobs=True, top_logprobs=2).choices[0]
    assert all(entry.logprob <= 0 and len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)


def case_embedding() -> None:
    for protocol in ("ollama", "openai"):
        place = {"model": f"{protocol}/{MODEL}", "api_base": PROTOCOLS[protocol], "api_key": "x"}
        reply = litellm.embedding(**place, input=["the cat sat", "tax law"])
        assert [len(entry["embedding"]) for entry in reply.data] == [576, 576], protocol


def case_responses() -> None:
    place = {"model": f"openai/{MODEL}", "api_base": PROTOCOLS["openai"], "api_key": "x"}
    reply = litellm.responses(**place, input=QUESTION, temperature=0, max_output_tokens=12)
    assert ANSWER in reply.output_text


def case_tools() -> None:
    for protocol in CHATS:
        reply = litellm.completion(**asked(protocol, CALLER, messages=SUNNY, max_tokens=80), tools=[WEATHER])
        [choice] = reply.choices
        [call] = choice.message.tool_calls
        assert call.function.name == "get_weather" and choice.finish_reason == "tool_calls", (protocol, reply)
        assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome"), (protocol, reply)
        result = {"role": "tool", "tool_call_id": call.id, "content": "sunny, 21 degrees"}
        said = [*SUNNY, choice.message.model_dump(), result]
        answer = litellm.completion(**asked(protocol, TOOLS, messages=said), tools=[WEATHER])
        assert answer.choices[0].message.content, (protocol, answer)


def case_tools_stream() -> None:
    for protocol in CHATS:
        asking = asked(protocol, CALLER, messages=SUNNY, max_tokens=80)
        chunks = list(litellm.completion(**asking, tools=[WEATHER], stream=True))
        whole = litellm.stream_chunk_builder(chunks)
        [call] = whole.choices[0].message.tool_calls
        assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome"), (protocol, whole)


def case_thinking() -> None:
    for protocol in CHATS:
        asking = asked(protocol, THINKER, max_tokens=2000)
        if protocol == "anthropic":
            asking |= {"thinking": {"type": "enabled", "budget_tokens": 1024}, "allowed_openai_params": ["thinking"]}
        else:
            asking["reasoning_effort"] = "low"
        message = litellm.completion(**asking).choices[0].message
        assert message.content.endswith("Paris.") and "<think>" not in message.content, (protocol, message)
        assert "asks" in (message.reasoning_content or ""), (protocol, message)


def case_errors() -> None:
    for protocol in CHATS:
        with raises(litellm.NotFoundError, litellm.APIConnectionError) as caught:
            litellm.completion(**asked(protocol, "nosuch"))
        assert "nosuch" in str(caught.error), (protocol, caught.error)
    for protocol in ("openai", "anthropic"):
        with raises(litellm.BadRequestError):
            litellm.completion(**asked(protocol, temperature=-1))


def case_context_too_long() -> None:
    said = [{"role": "user", "content": TOO_LONG}]
    for protocol in ("openai", "anthropic"):
        with raises(litellm.ContextWindowExceededError):
            litellm.completion(**asked(protocol, messages=said))


def case_cancelled_in_the_middle() -> None:
    for protocol in ("ollama_chat", "openai"):
        with cancelling():
            parts = litellm.completion(**asked(protocol, ENDLESS, max_tokens=10_000), stream=True)
            for _ in range(3):
                next(parts)
            assert working() == 1
            parts.completion_stream.close() if hasattr(parts.completion_stream, "close") else None
            del parts


async def case_cancelled_task() -> None:
    for protocol in CHATS:
        with cancelling():
            asking = asyncio.create_task(litellm.acompletion(**asked(protocol, ENDLESS, max_tokens=10_000)))
            while not await asyncio.to_thread(working):
                await asyncio.sleep(0.02)
            asking.cancel()
            with raises(asyncio.CancelledError, litellm.APIConnectionError, litellm.InternalServerError):
                await asking


if __name__ == "__main__":
    main(globals())
