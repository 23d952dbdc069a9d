"""Ollama's own Python client: its whole API, synchronous and not."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import ollama
from harness import (
    ANSWER,
    CALLER,
    ENDLESS,
    HOST,
    MODEL,
    QUESTION,
    REGISTRY,
    THINKER,
    TOO_LONG,
    TOOLS,
    TWICE,
    cancelling,
    main,
    raises,
    wait_until_idle,
    working,
)
from ollama import AsyncClient, Client, Options, ResponseError
from pydantic import BaseModel

GREEDY = {"temperature": 0, "num_predict": 12}
ASK = [{"role": "user", "content": QUESTION}]


class Person(BaseModel):
    name: str
    age: int


def get_weather(city: str) -> str:
    """Say what the weather is like.

    Args:
      city: The city to ask about.
    """
    return f"sunny in {city}"


def case_chat() -> None:
    reply = ollama.chat(MODEL, ASK, options=GREEDY)
    assert ANSWER in reply.message.content, reply
    assert (reply.message.role, reply.done, reply.model) == ("assistant", True, MODEL)
    assert reply.done_reason in ("stop", "length")
    assert reply.eval_count and reply.prompt_eval_count and reply.total_duration > reply.eval_duration > 0


def case_chat_stream() -> None:
    chunks = list(ollama.chat(MODEL, ASK, stream=True, options=GREEDY))
    assert len(chunks) > 2 and [chunk.done for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    whole = ollama.chat(MODEL, ASK, options=GREEDY)
    assert "".join(chunk.message.content for chunk in chunks) == whole.message.content
    assert chunks[-1].eval_count == whole.eval_count


def case_history() -> None:
    """The model sees what was said before: the prompt has it, and the answer follows from it."""
    before = [
        {"role": "user", "content": "What is the capital of Italy?"},
        {"role": "assistant", "content": "The capital of Italy is Rome."},
    ]
    alone = ollama.chat(MODEL, [{"role": "user", "content": "And of France?"}], options=GREEDY)
    after = ollama.chat(MODEL, [*before, {"role": "user", "content": "And of France?"}], options=GREEDY)
    assert after.prompt_eval_count > alone.prompt_eval_count + 10
    assert ANSWER in after.message.content, after.message.content


async def case_asynchronous() -> None:
    client = AsyncClient()
    replies = await asyncio.gather(*(client.chat(MODEL, ASK, options=GREEDY) for _ in range(3)))
    assert len({reply.message.content for reply in replies}) == 1 and ANSWER in replies[0].message.content
    pieces = [piece.response async for piece in await client.generate(MODEL, QUESTION, stream=True, options=GREEDY)]
    assert "".join(pieces) == replies[0].message.content


def case_generate() -> None:
    reply = ollama.generate(MODEL, QUESTION, options=GREEDY)
    assert ANSWER in reply.response and reply.context
    raw = ollama.generate(MODEL, "The capital of France is", raw=True, options=GREEDY)
    assert ANSWER in raw.response and raw.context is None
    further = ollama.generate(MODEL, "And of Italy?", context=reply.context, options=GREEDY)
    assert further.prompt_eval_count > len(reply.context)
    pirate = ollama.generate(MODEL, QUESTION, system="You are a pirate.", options=GREEDY)
    assert pirate.prompt_eval_count != reply.prompt_eval_count
    with raises(ResponseError) as caught:
        ollama.generate(MODEL, "def f(", suffix="return x")
    assert caught.error.status_code == 400 and "insert" in caught.error.error, caught.error


def case_json_and_schema() -> None:
    said = [{"role": "user", "content": "Describe Ann, who is 7 years old, as JSON."}]
    options = {"temperature": 0, "num_predict": 60}
    person = ollama.chat(MODEL, said, format=Person.model_json_schema(), options=options).message.content
    assert isinstance(Person.model_validate_json(person).age, int)
    answer = ollama.chat(MODEL, said, format="json", options={**options, "num_predict": 100, "stop": ["\n\n\n"]})
    if answer.done_reason == "stop":
        assert isinstance(json.loads(answer.message.content), dict), answer
    parts = ollama.generate(MODEL, said[0]["content"], format=Person.model_json_schema(), stream=True, options=options)
    Person.model_validate_json("".join(part.response for part in parts))


def case_options() -> None:
    typed = ollama.chat(MODEL, ASK, options=Options(temperature=0, num_predict=3))
    assert typed.eval_count == 3 and typed.done_reason == "length"
    stopped = ollama.generate(MODEL, "Count: 1, 2, 3,", raw=True, options={"temperature": 0, "stop": ["7"]})
    assert "6" in stopped.response and "7" not in stopped.response and stopped.done_reason == "stop"
    warm = {"temperature": 1.5, "seed": 11, "num_predict": 16}
    first, second = (ollama.chat(MODEL, ASK, options=warm).message.content for _ in range(2))
    assert first == second
    assert ollama.chat(MODEL, ASK, options={**warm, "seed": 12}).message.content != first


def case_logprobs() -> None:
    reply = ollama.chat(MODEL, ASK, logprobs=True, top_logprobs=3, options=GREEDY)
    assert "".join(entry.token for entry in reply.logprobs).strip() == reply.message.content.strip()
    for entry in reply.logprobs:
        assert entry.logprob <= 0 and len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token  # greedy
    parts = list(ollama.generate(MODEL, QUESTION, logprobs=True, stream=True, options=GREEDY))
    assert sum(len(part.logprobs or []) for part in parts) == parts[-1].eval_count


def case_embeddings() -> None:
    reply = ollama.embed(MODEL, ["the cat sat", "the cat sat down", "tax law"])
    first, near, far = reply.embeddings
    assert len(first) == 576 and abs(sum(value * value for value in first) - 1) < 1e-3
    assert sum(map(lambda a, b: a * b, first, near)) > sum(map(lambda a, b: a * b, first, far))
    assert len(ollama.embed(MODEL, "one", dimensions=64).embeddings[0]) == 64
    assert len(ollama.embeddings(MODEL, "one").embedding) == 576
    with raises(ResponseError) as caught:
        ollama.embed(MODEL, TOO_LONG, truncate=False)
    assert caught.error.status_code == 400, caught.error


def case_list_show_ps() -> None:
    [listed] = [model for model in ollama.list().models if model.model == f"{MODEL}:latest"]
    assert listed.size > 90e6 and len(listed.digest) == 64 and listed.modified_at.tzinfo
    assert (listed.details.family, listed.details.quantization_level) == ("llama", "Q4_1")
    shown = ollama.show(MODEL)
    assert shown.modelinfo["general.architecture"] == "llama" and "completion" in shown.capabilities
    assert "FROM" in shown.modelfile and shown.template
    assert "temperature" in ollama.show(TOOLS).parameters
    ollama.generate(MODEL)  # loads
    [running] = [model for model in ollama.ps().models if model.digest == listed.digest]
    assert running.context_length == 2048 and running.size > 0 and running.expires_at.tzinfo


def case_copy_and_delete() -> None:
    ollama.copy(MODEL, "of-ollama:copied")
    assert "of-ollama:copied" in [model.model for model in ollama.list().models]
    assert ollama.delete("of-ollama:copied").status == "success"
    with raises(ResponseError) as caught:
        ollama.delete("of-ollama:copied")
    assert caught.error.status_code == 404
    with raises(ResponseError) as caught:
        ollama.copy("nosuch", "of-ollama:copied")
    assert caught.error.status_code == 404


def case_create() -> None:
    steps = list(
        ollama.create("of-ollama:made", from_=MODEL, system="Say yes.", parameters={"num_predict": 2}, stream=True)
    )
    assert steps[-1].status == "success"
    shown = ollama.show("of-ollama:made")
    assert "num_predict" in shown.parameters and "SYSTEM" in shown.modelfile and "Say yes." in shown.modelfile
    assert ollama.chat("of-ollama:made", ASK).eval_count <= 2
    ollama.delete("of-ollama:made")
    with raises(ResponseError) as caught:
        ollama.create("of-ollama:made", from_=MODEL, parameters={"temperature": "warm"})
    assert caught.error.status_code == 400, caught.error


def case_registry() -> None:
    """A file becomes a model, goes to a registry, and comes back from there."""
    path = Path(os.environ["RSLLM_TEST_TINY"])
    client = Client()
    digest = client.create_blob(path)
    name = f"{REGISTRY}/someone/of-ollama:v1"
    client.create(name, files={path.name: digest})
    assert [step.status for step in client.push(name, insecure=True, stream=True)][-1] == "success"
    client.delete(name)
    with raises(ResponseError):
        client.show(name)
    steps = list(client.pull(name, insecure=True, stream=True))
    assert steps[0].status == "pulling manifest" and steps[-1].status == "success"
    layers = {step.digest: step for step in steps if step.digest}
    assert digest in layers and layers[digest].completed == layers[digest].total == path.stat().st_size
    assert client.generate(name, "the", options={"num_predict": 3, "ignore_eos": True}, keep_alive=0).eval_count == 3
    client.delete(name)
    with raises(ResponseError) as caught:
        client.pull(f"{REGISTRY}/someone/nothing", insecure=True)
    assert "file does not exist" in caught.error.error, caught.error


def case_private_registry_not_listed() -> None:
    with raises(ResponseError) as caught:
        ollama.pull("127.0.0.1:9/someone/thing", insecure=True)
    assert "private address" in caught.error.error, caught.error


def case_errors() -> None:
    for call in (
        lambda: ollama.chat("nosuch", ASK),
        lambda: ollama.generate("nosuch", "hi"),
        lambda: list(ollama.chat("nosuch", ASK, stream=True)),
        lambda: ollama.embed("nosuch", "hi"),
        lambda: ollama.show("nosuch"),
    ):
        with raises(ResponseError) as caught:
            call()
        assert caught.error.status_code == 404 and "nosuch" in caught.error.error, caught.error
    for options in ({"temperature": -1}, {"top_p": "high"}, {"num_predict": "many"}, {"stop": 7}):
        with raises(ResponseError) as caught:
            ollama.chat(MODEL, ASK, options=options)
        assert caught.error.status_code == 400 and next(iter(options)) in caught.error.error, caught.error
    with raises(ResponseError) as caught:
        ollama.chat(MODEL, ASK, format={"type": "object", "properties": {"a": {"$ref": "http://x/y"}}})
    assert caught.error.status_code == 400, caught.error
    with raises(ResponseError) as caught:
        ollama.chat(MODEL, [{"role": "user", "content": "What is it?", "images": [b"\x89PNG"]}])
    assert caught.error.status_code == 400, caught.error
    with raises(ConnectionError):
        Client("127.0.0.1:9").list()


def case_context_too_long() -> None:
    """Ollama's chat cuts what is too long unless told otherwise, which this client cannot tell; ours says so."""
    reply = ollama.chat(MODEL, [{"role": "user", "content": TOO_LONG}], options={"num_predict": 1})
    assert reply.prompt_eval_count < 2048
    with raises(ResponseError) as caught:
        body = {"model": MODEL, "prompt": TOO_LONG, "truncate": False, "stream": False}
        Client()._request(ollama.GenerateResponse, "POST", "/api/generate", json=body)
    assert caught.error.status_code == 400 and "2048" in caught.error.error, caught.error


def case_cancelled_in_the_middle() -> None:
    with cancelling():
        parts = ollama.generate(ENDLESS, "Once", stream=True)
        for _ in range(3):
            next(parts)
        assert working() == 1
        parts.close()


async def case_cancelled_task() -> None:
    client = AsyncClient()
    with cancelling():
        asking = asyncio.create_task(client.chat(ENDLESS, ASK))  # not a stream
        while not await asyncio.to_thread(working):
            await asyncio.sleep(0.02)
        asking.cancel()
        with raises(asyncio.CancelledError):
            await asking


def case_keep_alive() -> None:
    """The tiny model comes and goes, so that nobody waits for the other."""
    wait_until_idle()
    path = Path(os.environ["RSLLM_TEST_TINY"])
    ollama.create("of-ollama:tiny", files={path.name: Client().create_blob(path)})

    def running() -> list[str]:
        return [model.model for model in ollama.ps().models]

    assert ollama.generate("of-ollama:tiny", keep_alive="10m").done_reason == "load"
    assert "of-ollama:tiny" in running()
    assert ollama.generate("of-ollama:tiny", keep_alive=0).done_reason == "unload"
    while "of-ollama:tiny" in running():
        pass
    ollama.delete("of-ollama:tiny")


def case_tools() -> None:
    reply = ollama.chat(CALLER, [{"role": "user", "content": "What is the weather in Paris?"}], tools=[get_weather])
    [call] = reply.message.tool_calls
    assert call.function.name == "get_weather" and not reply.message.content, reply
    result = get_weather(**call.function.arguments)
    said = [*ASK, reply.message, {"role": "tool", "tool_name": "get_weather", "content": result}]
    answer = ollama.chat(TOOLS, said, tools=[get_weather], options=GREEDY)
    assert answer.message.content and not answer.message.tool_calls
    assert "tools" in ollama.show(TOOLS).capabilities


def case_tools_stream() -> None:
    said = [{"role": "user", "content": "What is the weather in Rome?"}]
    parts = list(ollama.chat(CALLER, said, tools=[get_weather], stream=True))
    calls = [call for part in parts for call in part.message.tool_calls or []]
    assert [call.function.name for call in calls] == ["get_weather"]
    assert "".join(part.message.content or "" for part in parts).strip() == ""
    both = ollama.chat(TWICE, said, tools=[get_weather]).message.tool_calls
    assert [call.function.arguments["city"] for call in both] == ["Paris", "Rome"]
    with raises(ResponseError) as caught:
        ollama.chat(MODEL, said, tools=[get_weather])
    assert caught.error.status_code == 400 and "does not support tools" in caught.error.error, caught.error


def case_thinking() -> None:
    assert "thinking" in ollama.show(THINKER).capabilities
    reply = ollama.chat(THINKER, ASK, think=True)
    assert "asks" in reply.message.thinking and "<think>" not in reply.message.content
    assert reply.message.content.endswith("Paris.")
    unset = ollama.chat(THINKER, ASK)  # such a model thinks unless told otherwise
    assert unset.message.thinking == reply.message.thinking
    parts = list(ollama.chat(THINKER, ASK, think=True, stream=True))
    assert "".join(part.message.thinking or "" for part in parts) == reply.message.thinking
    assert "".join(part.message.content for part in parts) == reply.message.content
    single = ollama.generate(THINKER, QUESTION, think=True)
    assert "asks" in single.thinking and single.response.endswith("Paris.")
    plain = ollama.chat(THINKER, ASK, think=False)
    # What a model this small says without its thoughts is its own affair.
    assert not plain.message.thinking and plain.message.content and "think>" not in plain.message.content, plain
    assert plain.prompt_eval_count > reply.prompt_eval_count  # the template closes the thoughts
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    formed = ollama.chat(THINKER, ASK, think=True, format=schema)
    assert "asks" in formed.message.thinking and "city" in json.loads(formed.message.content)
    with raises(ResponseError) as caught:
        ollama.chat(MODEL, ASK, think=True)
    assert caught.error.status_code == 400 and "does not support thinking" in caught.error.error, caught.error


if __name__ == "__main__":
    assert os.environ["OLLAMA_HOST"] == HOST
    main(globals())
