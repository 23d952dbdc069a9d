"""LangChain's Ollama integration: the chat model, the text model and the embeddings."""

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
from langchain_core.messages import AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM
from ollama import ResponseError
from pydantic import BaseModel, Field


class Person(BaseModel):
    """Somebody."""

    name: str = Field(description="What the person is called")
    age: int


@tool
def get_weather(city: str) -> str:
    """Say what the weather is like in a city."""
    return f"sunny in {city}"


def model(name: str = MODEL, **settings: object) -> ChatOllama:
    return ChatOllama(model=name, base_url=URL, **{"temperature": 0, "num_predict": 12, **settings})


def case_invoke() -> None:
    reply = model().invoke([SystemMessage("You answer questions."), HumanMessage(QUESTION)])
    assert ANSWER in reply.content and reply.response_metadata["model"] == MODEL
    usage = reply.usage_metadata
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > 12


def case_stream() -> None:
    chunks = list(model().stream(QUESTION))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert isinstance(whole, AIMessageChunk) and len(chunks) > 2
    assert whole.content == model().invoke(QUESTION).content
    assert whole.response_metadata["done_reason"] in ("stop", "length") and whole.usage_metadata["output_tokens"] <= 12


async def case_asynchronous() -> None:
    replies = await model().abatch([QUESTION, QUESTION, "Say hello."])
    assert replies[0].content == replies[1].content != replies[2].content
    parts = [chunk.content async for chunk in model().astream(QUESTION)]
    assert "".join(parts) == replies[0].content


def case_chain() -> None:
    prompt = ChatPromptTemplate.from_messages([("system", "You answer questions."), ("human", "{question}")])
    chain = prompt | model() | StrOutputParser()
    assert ANSWER in chain.invoke({"question": QUESTION})


def case_text_model() -> None:
    text = OllamaLLM(model=MODEL, base_url=URL, temperature=0, num_predict=12)
    assert ANSWER in text.invoke(QUESTION)
    assert "".join(text.stream(QUESTION)) == text.invoke(QUESTION)


def case_structured() -> None:
    said = "Describe Ann, who is 7 years old."
    for method in ("json_schema", "function_calling"):
        name = MODEL if method == "json_schema" else CALLER
        if method == "json_schema":
            person = model(name, num_predict=80).with_structured_output(Person, method=method).invoke(said)
            assert isinstance(person, Person)
    reply = model(num_predict=60, format="json").invoke(said)
    assert reply.content.lstrip().startswith("{")


def case_options() -> None:
    assert model(num_predict=3).invoke(QUESTION).usage_metadata["output_tokens"] == 3
    assert ANSWER not in model(stop=[ANSWER]).invoke(QUESTION).content
    warm = {"temperature": 1.5, "seed": 5, "top_k": 50, "top_p": 0.95, "repeat_penalty": 1.1, "repeat_last_n": 32}
    first, second = (model(**warm).invoke(QUESTION).content for _ in range(2))
    assert first == second and model(**{**warm, "seed": 6}).invoke(QUESTION).content != first
    # Old names that it can still send are no error.
    assert model(mirostat=0, tfs_z=1.0).invoke(QUESTION).content


def case_logprobs() -> None:
    reply = model(logprobs=True, top_logprobs=2).invoke(QUESTION)
    entries = reply.response_metadata["logprobs"]
    assert "".join(entry["token"] for entry in entries).strip() == reply.content.strip()
    assert all(entry["logprob"] <= 0 and len(entry["top_logprobs"]) == 2 for entry in entries)


def case_embeddings() -> None:
    embeddings = OllamaEmbeddings(model=MODEL, base_url=URL)
    one, other = embeddings.embed_documents(["the cat sat", "tax law"])
    assert len(one) == len(other) == 576
    query = embeddings.embed_query("the cat sat")
    assert max(abs(a - b) for a, b in zip(one, query, strict=True)) < 1e-4


def case_model_is_looked_up() -> None:
    assert model(validate_model_on_init=True).model == MODEL
    with raises(ValueError) as caught:
        model("nosuch", validate_model_on_init=True)
    assert "nosuch" in str(caught.error)


def case_tools() -> None:
    said = [HumanMessage("What is the weather in Paris?")]
    reply = model(CALLER, num_predict=80).bind_tools([get_weather]).invoke(said)
    [call] = reply.tool_calls
    assert call["name"] == "get_weather" and call["args"]["city"] in ("Paris", "Rome") and not reply.content
    result = get_weather.invoke(call)
    assert isinstance(result, ToolMessage)
    answer = model(TOOLS).bind_tools([get_weather]).invoke([*said, reply, result])
    assert answer.content and not answer.tool_calls


def case_tools_stream() -> None:
    whole = None
    for chunk in model(CALLER, num_predict=80).bind_tools([get_weather]).stream("What is the weather in Rome?"):
        whole = chunk if whole is None else whole + chunk
    [call] = whole.tool_calls
    assert call["name"] == "get_weather" and call["args"]["city"] in ("Paris", "Rome")


def case_thinking() -> None:
    reply = model(THINKER, reasoning=True, num_predict=80).invoke(QUESTION)
    assert reply.content.endswith("Paris.") and "asks" in reply.additional_kwargs["reasoning_content"]
    chunks = list(model(THINKER, reasoning=True, num_predict=80).stream(QUESTION))
    assert "".join(chunk.content for chunk in chunks) == reply.content
    told = "".join(chunk.additional_kwargs.get("reasoning_content", "") for chunk in chunks)
    assert told == reply.additional_kwargs["reasoning_content"]
    with raises(ResponseError) as caught:
        model(reasoning=True).invoke(QUESTION)
    assert caught.error.status_code == 400


def case_errors() -> None:
    with raises(ResponseError) as caught:
        model("nosuch").invoke(QUESTION)
    assert caught.error.status_code == 404
    with raises(ResponseError) as caught:
        model(temperature=-1.0).invoke(QUESTION)
    assert caught.error.status_code == 400 and "temperature" in str(caught.error)
    with raises(ResponseError) as caught:
        model().bind_tools([get_weather]).invoke(QUESTION)
    assert caught.error.status_code == 400 and "does not support tools" in str(caught.error)
    with raises(ResponseError) as caught:
        OllamaEmbeddings(model="nosuch", base_url=URL).embed_query("x")
    assert caught.error.status_code == 404


def case_cancelled_in_the_middle() -> None:
    with cancelling():
        parts = model(ENDLESS, num_predict=-1).stream(QUESTION)
        for _ in range(3):
            next(parts)
        assert working() == 1
        parts.close()


async def case_cancelled_task() -> None:
    with cancelling():
        asking = asyncio.create_task(model(ENDLESS, num_predict=-1).ainvoke(QUESTION))
        while not await asyncio.to_thread(working):
            await asyncio.sleep(0.02)
        asking.cancel()
        with raises(asyncio.CancelledError):
            await asking


if __name__ == "__main__":
    main(globals())
