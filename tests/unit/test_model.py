"""`Model` on the fake core: what it checks, what it hands on, how streams end."""

from __future__ import annotations

import gc
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pytest

import rsllm
from rsllm.errors import ContextLengthError, EngineClosedError, OptionError, TokenizerError
from tests.unit.fake_core import WHOLE


def test_stream_gives_strings_that_know_their_tokens(model: rsllm.Model) -> None:
    pieces = list(model.stream("hi"))
    assert "".join(pieces) == WHOLE
    assert all(isinstance(piece, str) for piece in pieces)
    assert pieces[2].ids == tuple("wörld".encode())
    assert pieces[2].id == ord("d")
    assert pieces[2].logprobs is None


def test_generate_equals_the_stream(model: rsllm.Model) -> None:
    reply = model.generate("hi")
    assert reply.text == str(reply) == WHOLE
    assert reply.tokens == list(WHOLE.encode())
    assert reply.finish_reason == "stop"
    assert reply.stats.generated_tokens == 4
    assert reply.stats.prompt_tokens_per_second is None  # both prompt tokens were cached
    assert reply.stats.generated_tokens_per_second == pytest.approx(4 / 4.7)


def test_logprobs_come_with_pieces_and_reply(model: rsllm.Model) -> None:
    reply = model.generate("hi", logprobs=2)
    assert reply.logprobs is not None
    assert len(reply.logprobs) == len(reply.tokens)
    assert [rival.logprob for rival in reply.logprobs[0].top] == [-0.5, -0.5]
    assert model.generate("hi").logprobs is None


def test_options_reach_the_core_checked_and_complete(model: rsllm.Model, core: Any) -> None:
    model.generate("hi", temperature=0, stop="x", repeat_last_n=-1)
    options = core.behaviour.engines[0].options[0]
    assert options["temperature"] == 0.0
    assert options["stop"] == ["x"]
    assert options["repeat_last_n"] == -1
    with pytest.raises(OptionError, match="temprature"):
        model.stream("hi", temprature=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("prompt", ["hi", "<s>hi"])
def test_a_raw_prompt_starts_with_one_bos(model: rsllm.Model, core: Any, prompt: str) -> None:
    core.behaviour.add_bos = True
    model.generate(prompt)
    assert core.behaviour.engines[0].prompts[0] == [core.BOS, *b"hi"]


def test_a_prompt_may_be_ids_and_is_then_left_alone(model: rsllm.Model, core: Any) -> None:
    core.behaviour.add_bos = True
    model.generate(numpy.array([1, 2], dtype=numpy.int64))
    assert core.behaviour.engines[0].prompts[0] == [1, 2]
    with pytest.raises(AttributeError):
        model.generate([1.5])  # type: ignore[list-item]


def test_a_prompt_that_does_not_fit_is_an_error_with_both_numbers(model: rsllm.Model) -> None:
    with pytest.raises(ContextLengthError) as caught:
        model.stream("x" * 300)
    assert (caught.value.prompt_tokens, caught.value.context) == (300, 256)


@pytest.mark.parametrize("text", ["\ud800", "ok\udfff"])
def test_text_that_is_not_unicode_is_an_error(model: rsllm.Model, text: str) -> None:
    for call in (model.tokenize, model.stream):
        with pytest.raises(TokenizerError, match="lone surrogate"):
            call(text)


def test_nul_is_text(model: rsllm.Model) -> None:
    assert model.detokenize(model.tokenize("a\0b")) == "a\0b"


def test_tokenize_takes_text_and_nothing_else(model: rsllm.Model) -> None:
    with pytest.raises(TypeError, match="must be a str"):
        model.tokenize(b"bytes")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="tokenize the text first"):
        model.detokenize("text")  # type: ignore[arg-type]
    for id in (-1, 260, 2**32):
        with pytest.raises(TokenizerError, match="outside the vocabulary of 260"):
            model.detokenize([id])


def test_logits_are_rows_of_float32(model: rsllm.Model, core: Any) -> None:
    logits = model.logits([1, 2, 3])
    assert logits.shape == (3, core.VOCAB_SIZE)
    assert logits.dtype == numpy.float32
    logits[0, 0] = 1  # the caller's own copy


def test_embeddings_are_rows_of_float32(model: rsllm.Model) -> None:
    rows = model.embed(["hi", "hello"])
    assert (rows.shape, rows.dtype) == ((2, 8), numpy.float32)
    assert rows[:, :3].tolist() == [[2.0, 3.0, 1.0], [5.0, 3.0, 1.0]]
    assert model.embed("hi").shape == (1, 8)
    assert model.embed([]).shape == (0, 8)
    assert model.metrics() == {"started": 0}


@pytest.mark.parametrize(("pooling_type", "kind"), [(0, 3.0), (1, 1.0), (2, 2.0), (3, 3.0)])
def test_the_file_says_how_embeddings_are_made(model: rsllm.Model, pooling_type: int, kind: float) -> None:
    model._metadata = {**model.metadata, "fake.pooling_type": pooling_type}
    assert model.embed("hi")[0, 1] == kind


def test_a_pooling_that_is_not_here_is_an_error(model: rsllm.Model) -> None:
    model._metadata = {**model.metadata, "fake.pooling_type": 5}
    with pytest.raises(OptionError, match="pooling type 5"):
        model.embed("hi")
    with pytest.raises(OptionError, match="pooling none"):
        model.embed("hi", pooling="none")


def test_a_reranker_gives_a_score_a_text(model: rsllm.Model) -> None:
    assert model.embed(["hi", "hello"], pooling="rank").tolist() == [[2.0], [5.0]]
    model._metadata = {**model.metadata, "fake.pooling_type": 4}
    assert model.embed("hi").shape == (1, 1)
    assert model.embed("hi", pooling="mean").shape == (1, 8)


def test_a_query_is_ranked_against_each_document(model: rsllm.Model) -> None:
    scores = model.rank("hi", ["you", "everybody"])
    assert scores.shape == (2,)
    assert scores[1] - scores[0] == 6, "the fake reranker counts tokens"
    assert model.rank("hi", []).shape == (0,)


def test_prefixes_go_to_the_core_and_come_back(model: rsllm.Model, tmp_path: Path) -> None:
    assert model.restore_prefix(model.save_prefix("hello")) == len(model._prompt_ids("hello"))
    folder = tmp_path / "prefixes"
    folder.mkdir()
    path = model.persist_prefix([1, 2, 3], folder)
    assert model.restore_prefixes(folder) == [(path, 3, None)]


def test_bench_gives_rates(model: rsllm.Model) -> None:
    result = model.bench(prompt=128, generate=10, repetitions=3)
    assert result.prompt_tokens_per_second == pytest.approx(1000)
    assert result.generate_tokens_per_second == pytest.approx(100)
    assert len(result.prompt_ns) == 3
    assert model.bench(prompt=1).generate_tokens_per_second == 0.0
    with pytest.raises(OptionError, match="option repetitions"):
        model.bench(repetitions=0)


def test_closing_a_stream_cancels_once(model: rsllm.Model, core: Any) -> None:
    core.behaviour.endless = True
    stream = model.stream("hi")
    next(stream)
    stream.close()
    stream.close()
    assert core.behaviour.engines[0].generations[0].cancelled.is_set()
    assert list(stream) == []
    assert stream.stats is not None
    assert stream.stats.finish_reason == "cancelled"


def test_with_cancels(model: rsllm.Model, core: Any) -> None:
    core.behaviour.endless = True
    with model.stream("hi") as stream:
        next(stream)
    assert core.behaviour.engines[0].generations[0].cancelled.is_set()


def test_an_error_inside_the_engine_reaches_the_reader_and_cancels(model: rsllm.Model, core: Any) -> None:
    core.behaviour.fail_after = 2
    stream = model.stream("hi")
    with pytest.raises(RuntimeError, match="failed as asked"):
        list(stream)
    assert core.behaviour.engines[0].generations[0].cancelled.is_set()


def test_a_dropped_stream_drops_its_generation(model: rsllm.Model, core: Any) -> None:
    import weakref

    stream = model.stream("hi")
    generation = weakref.ref(core.behaviour.engines[0].generations.pop())
    next(stream)
    del stream
    gc.collect()
    assert generation() is None


def test_a_closed_model_says_so(core: Any, model_file: Path) -> None:
    model = rsllm.load(model_file)
    with model:
        model.generate("hi")
    model.close()
    assert core.behaviour.engines[0].closed
    for use in (lambda: model.stream("x"), lambda: model.tokenize("x"), lambda: model.metadata, lambda: model.chat()):
        with pytest.raises(EngineClosedError, match="closed"):
            use()
    assert "closed" in repr(model)
    assert model.info()["architecture"] == "fake"


def test_load_hands_on_what_was_asked(core: Any, model_file: Path) -> None:
    rsllm.load(str(model_file), threads=1, context=64, kv_type="q8_0", isa="avx2", gpu_layers=0, mmap=False).close()
    assert core.behaviour.engines[0].arguments == {
        "threads": 1,
        "context": 64,
        "kv_type": "q8_0",
        "isa": "avx2",
        "mmap": False,
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [("threads", 0), ("threads", 1.5), ("threads", True), ("context", 0), ("context", 2**31), ("gpu_layers", -1)],
)
def test_load_options_out_of_range_are_errors(core: Any, model_file: Path, name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=f"option {name} must be"):
        rsllm.load(model_file, **{name: value})


def test_layers_for_a_gpu_are_refused_and_not_run_on_the_cpu(core: Any, model_file: Path) -> None:
    with pytest.raises(OptionError, match="no GPU backend") as caught:
        rsllm.load(model_file, gpu_layers=10)
    assert caught.value.name == "gpu_layers"


def test_many_threads_share_one_model(model: rsllm.Model) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: model.generate("hi").text, range(40))) == [WHOLE] * 40


def test_a_stream_can_be_closed_from_another_thread(model: rsllm.Model, core: Any) -> None:
    core.behaviour.endless = True
    core.behaviour.delay = 0.01
    stream = model.stream("hi")
    threading.Timer(0.1, stream.close).start()
    assert "".join(stream).startswith("Hello")


def test_tokens_survive_a_pickle(model: rsllm.Model) -> None:
    token = next(model.stream("hi", logprobs=1))
    copy = pickle.loads(pickle.dumps(token))
    assert copy == token
    assert (copy.ids, copy.logprobs) == (token.ids, token.logprobs)
