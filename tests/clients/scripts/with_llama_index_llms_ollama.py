"""LlamaIndex's Ollama integration."""

from __future__ import annotations

import asyncio

from harness import (
    ANSWER,
    CALLER,
    ENDLESS,
    MODEL,
    QUESTION,
    THINKER,
    TOOLS,
    URL,
    cancelling,
    main,
    raises,
    working,
)
from llama_index.core.base.llms.types import ThinkingBlock
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.ollama import Ollama
from ollama import ResponseError
from pydantic import BaseModel

ASK = [ChatMessage(role="user", content=QUESTION)]


class Person(BaseModel):
    """Somebody."""

    name: str
    age: int


def get_weather(city: str) -> str:
    """Say what the weather is like in a city."""
    return f"sunny in {city}"


WEATHER = FunctionTool.from_defaults(get_weather)


def model(name: str = MODEL, most: int = 12, **settings: object) -> Ollama:
    return Ollama(
        model=name,
        base_url=URL,
        temperature=0.0,
        request_timeout=60.0,
        context_window=2048,
        additional_kwargs={"num_predict": most},
        **settings,
    )


def case_complete() -> None:
    reply = model().complete(QUESTION)
    assert ANSWER in reply.text
    parts = list(model().stream_complete(QUESTION))
    assert "".join(part.delta for part in parts) == parts[-1].text == reply.text


def case_chat() -> None:
    reply = model().chat([ChatMessage(role="system", content="You answer questions."), *ASK])
    assert ANSWER in reply.message.content and reply.message.role.value == "assistant"
    assert reply.raw["usage"]["total_tokens"] > 12


def case_stream_chat() -> None:
    parts = list(model().stream_chat(ASK))
    assert len(parts) > 2 and "".join(part.delta for part in parts) == parts[-1].message.content
    assert parts[-1].message.content == model().chat(ASK).message.content


async def case_asynchronous() -> None:
    replies = await asyncio.gather(*(model().achat(ASK) for _ in range(3)))
    assert len({reply.message.content for reply in replies}) == 1
    parts = [part.delta async for part in await model().astream_chat(ASK)]
    assert "".join(parts) == replies[0].message.content


def case_context_from_the_model() -> None:
    """Unless it is told otherwise, it asks the model for its context and sends that as `num_ctx`."""
    assert Ollama(model=MODEL, base_url=URL).metadata.context_window == 8192


def case_structured() -> None:
    prompt = PromptTemplate("Describe {who}, who is 7 years old.")
    person = model(most=80).structured_predict(Person, prompt, who="Ann")
    assert isinstance(person, Person)
    assert isinstance(model(most=80).as_structured_llm(Person).complete("Describe Ann, 7.").raw, Person)
    reply = model(most=60, json_mode=True).complete("Describe Ann, who is 7 years old, as JSON.")
    assert reply.text.lstrip().startswith("{")


def case_tools() -> None:
    llm = model(CALLER, most=80)
    reply = llm.chat_with_tools([WEATHER], user_msg="What is the weather in Paris?")
    [call] = llm.get_tool_calls_from_response(reply)
    assert call.tool_name == "get_weather" and call.tool_kwargs["city"] in ("Paris", "Rome")
    result = ChatMessage(role="tool", content=get_weather(**call.tool_kwargs))
    said = [ChatMessage(role="user", content="What is the weather in Paris?"), reply.message, result]
    answer = model(TOOLS).chat_with_tools([WEATHER], chat_history=said)
    assert answer.message.content


def case_tools_stream() -> None:
    llm = model(CALLER, most=80)
    parts = list(llm.stream_chat_with_tools([WEATHER], user_msg="What is the weather in Paris?"))
    [call] = llm.get_tool_calls_from_response(parts[-1])
    assert call.tool_name == "get_weather"
    called = model(CALLER, most=80).predict_and_call([WEATHER], user_msg="What is the weather in Paris?")
    assert str(called).startswith("sunny in ")


def case_thinking() -> None:
    reply = model(THINKER, most=80, thinking=True).chat(ASK)
    assert reply.message.content.endswith("Paris.")
    [thought] = [block for block in reply.message.blocks if isinstance(block, ThinkingBlock)]
    assert "asks" in thought.content
    parts = list(model(THINKER, most=80, thinking=True).stream_chat(ASK))
    assert parts[-1].message.content == reply.message.content
    assert "".join(part.additional_kwargs["thinking_delta"] or "" for part in parts) == thought.content


def case_errors() -> None:
    with raises(ResponseError) as caught:
        model("nosuch").complete(QUESTION)
    assert caught.error.status_code == 404
    with raises(ResponseError) as caught:
        Ollama(model=MODEL, base_url=URL, temperature=-1.0, context_window=2048).complete(QUESTION)
    assert caught.error.status_code == 400 and "temperature" in str(caught.error)
    with raises(ResponseError) as caught:
        model().chat_with_tools([WEATHER], user_msg="hi")
    assert caught.error.status_code == 400 and "does not support tools" in str(caught.error)


def case_cancelled_in_the_middle() -> None:
    with cancelling():
        parts = model(ENDLESS, most=-1).stream_chat(ASK)
        for _ in range(3):
            next(parts)
        assert working() == 1
        parts.close()


async def case_cancelled_task() -> None:
    with cancelling():
        asking = asyncio.create_task(model(ENDLESS, most=-1).achat(ASK))
        while not await asyncio.to_thread(working):
            await asyncio.sleep(0.02)
        asking.cancel()
        with raises(asyncio.CancelledError):
            await asking


if __name__ == "__main__":
    main(globals())
