"""Many sequences on one real model: the same numbers as alone, prefixes found again, embeddings, figures."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pytest

import rsllm

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(300)]

TOPICS = ("cats", "rain", "bread", "music", "glass", "trains", "salt", "wind")
GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> Iterator[rsllm.Model]:
    with rsllm.load(smollm2_path, context=4096, threads=2) as model:
        yield model


def long_text(topic: str, sentences: int) -> str:
    return " ".join(f"Sentence {i} of a long text about {topic}." for i in range(sentences))


def numbers(reply: rsllm.Reply) -> list[Any]:
    assert reply.logprobs is not None
    return [(position.id, position.logprob, [rival.logprob for rival in position.top]) for position in reply.logprobs]


def test_sixteen_in_company_say_to_the_bit_what_one_alone_says(smollm2_path: Path, model: rsllm.Model) -> None:
    # Short ones, so that all run together, and a long one, which is cut into many parts.
    lengths = [1, 2, 3, 2] * 3 + [1, 2, 1, 30]
    prompts = [f"{i}. {long_text(topic, lengths[i])}" for i, topic in enumerate(TOPICS + TOPICS[::-1])]
    options = {**GREEDY, "max_tokens": 40, "logprobs": 8}
    with rsllm.load(smollm2_path, context=4096, threads=1) as single:
        alone = [numbers(single.generate(prompt, **options)) for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as threads:
        replies = list(threads.map(lambda prompt: model.generate(prompt, **options), prompts))
    assert [numbers(reply) for reply in replies] == alone
    sizes = dict(model.metrics()["batch_sizes"])
    assert sizes[16] > 0, sizes


def test_logits_do_not_depend_on_threads_or_company(smollm2_path: Path, model: rsllm.Model) -> None:
    ids = model.tokenize(long_text("stones", 12))
    stream = model.stream("Once upon a time", **GREEDY, max_tokens=10)
    expected = model.logits(ids)
    stream.close()
    with rsllm.load(smollm2_path, context=4096, threads=1) as single:
        assert numpy.array_equal(single.logits(ids), expected)
        assert numpy.array_equal(single.logits(ids[:70]), expected[:70])


def test_the_same_prompt_again_is_found(model: rsllm.Model) -> None:
    prompt = model.tokenize(long_text("doors", 40))
    first = model.generate(prompt, **GREEDY, max_tokens=4)
    again = model.generate(prompt, **GREEDY, max_tokens=4)
    assert (first.stats.cached_tokens, again.stats.cached_tokens) == (0, len(prompt) - 1)
    assert again.text == first.text
    # At most 1 % of the prompt is computed again.
    assert again.stats.prompt_tokens - again.stats.cached_tokens <= 0.01 * len(prompt)


def test_a_second_turn_computes_what_is_new(model: rsllm.Model) -> None:
    history = model.tokenize(long_text("rivers", 60))
    first = model.generate(history, **GREEDY, max_tokens=100)
    question = model.tokenize(" And what about the sea?")
    second = model.generate([*history, *first.tokens, *question], **GREEDY, max_tokens=4)
    computed = second.stats.prompt_tokens - second.stats.cached_tokens
    assert computed <= len(question) + 64
    assert second.stats.first_token_ns <= 0.1 * first.stats.first_token_ns + 200e6


def test_interleaved_chats_both_find_their_beginnings(model: rsllm.Model) -> None:
    chats = [model.tokenize(long_text(topic, 20)) for topic in ("mountains", "valleys")]
    for turn in range(2):
        for chat in chats:
            reply = model.generate(chat, **GREEDY, max_tokens=8)
            assert turn == 0 or reply.stats.cached_tokens >= len(chat) - 32
            chat.extend([*reply.tokens, *model.tokenize(f" Turn {turn}.")])


def test_a_model_with_windows_finds_its_prefixes_too(gemma3_path: Path) -> None:
    with rsllm.load(gemma3_path, context=2048, threads=2) as model:
        prompt = model.tokenize(long_text("clouds", 60))
        assert len(prompt) > 520
        first = model.generate(prompt, **GREEDY, max_tokens=6)
        again = model.generate(prompt, **GREEDY, max_tokens=6)
        assert again.stats.cached_tokens == len(prompt) - 1
        assert again.text == first.text


def test_embeddings_are_alike_for_texts_that_are(model: rsllm.Model) -> None:
    texts = ["The cat sleeps on the sofa.", "A cat is sleeping on the couch.", "Revenue rose by nine percent."]
    rows = model.embed(texts)
    assert rows.shape == (3, model.info()["embed_dim"])
    assert numpy.allclose(numpy.linalg.norm(rows, axis=1), 1.0, atol=1e-5)
    assert rows[0] @ rows[1] > rows[0] @ rows[2]
    assert numpy.array_equal(model.embed(texts[:1]), rows[:1])


def test_the_figures_add_up(smollm2_path: Path) -> None:
    with rsllm.load(smollm2_path, context=1024) as model:
        prompt = model.tokenize(long_text("paper", 10))
        for _ in range(2):
            model.generate(prompt, **GREEDY, max_tokens=5)
        metrics = model.metrics()
        assert metrics["started"] == metrics["ended"] == 2
        assert metrics["prefill_tokens"] + metrics["cached_tokens"] == 2 * len(prompt)
        assert metrics["decode_tokens"] == 8
        assert metrics["prefill_ns"] > 0 < metrics["decode_ns"]
        assert sum(steps for _, steps in metrics["batch_sizes"]) == metrics["steps"]
        assert metrics["pages_free"] + metrics["pages_cached"] == metrics["pages"] == 1024 // metrics["page_len"]
