"""The Python API on a real model: what it promises scripts, notebooks, threads and event loops."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import pytest

import rsllm
from rsllm.errors import ContextLengthError, EngineClosedError, GgufError, OptionError, TokenizerError

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(120)]

PROMPT = "The capital of France is"
GREEDY = {"temperature": 0.0, "max_tokens": 8}
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> Iterator[rsllm.Model]:
    with rsllm.load(smollm2_path, context=1024) as model:
        yield model


def run_script(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        stdin=subprocess.DEVNULL,
        cwd=ROOT,
    )


def test_a_real_model_answers(model: rsllm.Model) -> None:
    reply = model.generate(PROMPT, **GREEDY)
    assert "Paris" in reply.text
    assert reply.finish_reason == "length"
    assert len(reply.tokens) == 8
    assert reply.stats.prompt_tokens == len(model.tokenize(PROMPT))
    assert reply.stats.generated_tokens == 8
    assert model.detokenize(reply.tokens) == reply.text


@pytest.mark.parametrize("prompt", ["German ß, ♬ and 日本語: ", "Emoji: 😀😃😄 → 👩‍👩‍👧 ", "Кириллица и 中文 "])
def test_the_stream_loses_no_character(model: rsllm.Model, prompt: str) -> None:
    options = {"temperature": 1.5, "max_tokens": 24, "seed": 3, "top_k": 0, "top_p": 1.0}
    pieces = list(model.stream(prompt, **options))
    reply = model.generate(prompt, **options)
    assert "".join(pieces) == reply.text
    assert [id for piece in pieces for id in piece.ids] == reply.tokens


def test_seeds(model: rsllm.Model) -> None:
    def text(**options: float) -> str:
        return model.generate("Once upon a time", max_tokens=24, **options).text

    assert text(temperature=0.7, seed=5) == text(temperature=0.7, seed=5)
    assert text(temperature=0.7, seed=5) != text(temperature=0.7, seed=6)
    assert text(temperature=0, seed=5) == text(temperature=0, seed=6)


def test_the_seed_that_was_drawn_is_reported_and_repeats_the_text(model: rsllm.Model) -> None:
    first = model.generate(PROMPT, max_tokens=24, temperature=1.0)
    assert model.generate(PROMPT, max_tokens=24, temperature=1.0, seed=first.stats.seed).text == first.text


def test_a_stop_string_ends_the_text_before_it(model: rsllm.Model) -> None:
    whole = model.generate(PROMPT, **GREEDY).text
    stop = whole[5:9]
    reply = model.generate(PROMPT, stop=["never seen", stop], **GREEDY)
    assert reply.text == whole[: whole.index(stop)]
    assert (reply.finish_reason, reply.stats.stop_text) == ("stop", stop)


def test_logprobs_are_those_of_the_logits(model: rsllm.Model) -> None:
    reply = model.generate(PROMPT, logprobs=3, temperature=0.0, max_tokens=4)
    assert reply.logprobs is not None
    assert [entry.id for entry in reply.logprobs] == reply.tokens
    for entry in reply.logprobs:
        assert entry.top[0].id == entry.id  # greedy: the likeliest was taken
        assert [rival.logprob for rival in entry.top] == sorted((rival.logprob for rival in entry.top), reverse=True)
    scores = model.logits(model.tokenize(PROMPT))[-1].astype(numpy.float64)
    expected = scores.max() - numpy.log(numpy.exp(scores - scores.max()).sum()) - scores.max()
    assert reply.logprobs[0].logprob == pytest.approx(expected, abs=1e-3)


def test_logits_are_one_row_a_position(model: rsllm.Model) -> None:
    ids = model.tokenize(PROMPT)
    logits = model.logits(ids)
    assert logits.shape == (len(ids), model.info()["vocab_size"])
    assert numpy.isfinite(logits).all()
    assert int(logits[-1].argmax()) == model.generate(PROMPT, **GREEDY).tokens[0]
    with pytest.raises(TokenizerError):
        model.logits([10**9])


def test_max_tokens_zero_generates_nothing(model: rsllm.Model) -> None:
    reply = model.generate(PROMPT, max_tokens=0)
    assert (reply.text, reply.tokens, reply.finish_reason) == ("", [], "length")


def test_a_full_context_ends_the_text_and_says_so(smollm2_path: Path) -> None:
    with rsllm.load(smollm2_path, context=32) as model:
        reply = model.generate(PROMPT, temperature=0, ignore_eos=True)
        assert reply.finish_reason == "context"
        with pytest.raises(ContextLengthError) as caught:
            model.generate("word " * 100)
        assert caught.value.context == 32
        assert caught.value.prompt_tokens is not None
        assert caught.value.prompt_tokens > 90
        assert "Paris" in model.generate(PROMPT, max_tokens=4, temperature=0).text  # and life goes on


def test_chat_takes_a_message_as_text(model: rsllm.Model) -> None:
    chat = model.chat()
    text = chat.prompt("Hi <|im_end|>")
    assert text.endswith("user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n")
    ids = model._chat_ids(chat._render([{"role": "user", "content": "Hi <|im_end|>"}]))
    plain = model._chat_ids(chat._render([{"role": "user", "content": "Hi "}]))
    end = model.tokenize("<|im_end|>", parse_special=True)
    assert len(end) == 1
    assert ids.count(end[0]) == plain.count(end[0])
    assert model.detokenize(ids) == text


def test_a_conversation_remembers(model: rsllm.Model) -> None:
    chat = model.chat(system="You are terse.")
    reply = chat.generate("My name is Ada.", max_tokens=16, temperature=0)
    assert chat.messages[-1] == {"role": "assistant", "content": reply.text}
    assert "Ada" in chat.prompt("What is my name?")


@pytest.mark.parametrize("prompt", ["Hello", "<bos>Hello"])
def test_a_prompt_has_one_bos_where_the_model_wants_one(gemma3_path: Path, prompt: str) -> None:
    with rsllm.load(gemma3_path, context=64) as model:
        bos = model.special_tokens["bos"]
        assert model._prompt_ids(prompt) == [bos, *model.tokenize("Hello")]
        if "tokenizer.chat_template" in model.metadata:
            chat = model.chat()
            assert model._chat_ids(chat._render([{"role": "user", "content": prompt}])).count(bos) == 1


def test_threads_share_a_model(model: rsllm.Model) -> None:
    prompts = [PROMPT, "Two plus two is", "Water is made of", "The sky is"]
    alone = [model.generate(prompt, **GREEDY).tokens for prompt in prompts]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda prompt: model.generate(prompt, **GREEDY).tokens, prompts * 2))
    assert together == alone * 2


async def test_the_event_loop_goes_on_during_a_long_prompt(model: rsllm.Model) -> None:
    ticks = 0

    async def ticker() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1

    task = asyncio.create_task(ticker())
    stream = model.astream("word " * 400, max_tokens=4)
    await anext(stream)
    during_the_prompt = ticks
    await stream.aclose()
    task.cancel()
    assert during_the_prompt >= 3  # a blocked loop has none


async def test_asynchronous_and_synchronous_text_are_the_same(model: rsllm.Model) -> None:
    replies = await asyncio.gather(*(model.agenerate(PROMPT, **GREEDY) for _ in range(3)))
    assert {reply.text for reply in replies} == {model.generate(PROMPT, **GREEDY).text}


def test_an_abandoned_stream_frees_the_engine(model: rsllm.Model) -> None:
    stream = model.stream("Once upon a time", max_tokens=900, ignore_eos=True)
    next(stream)
    del stream
    gc.collect()
    assert "Paris" in model.generate(PROMPT, **GREEDY).text


def test_closing_a_stream_says_cancelled(model: rsllm.Model) -> None:
    with model.stream("Once upon a time", max_tokens=900, ignore_eos=True) as stream:
        next(stream)
    assert stream.stats is not None
    assert stream.stats.finish_reason == "cancelled"


def test_other_python_threads_run_during_generation(model: rsllm.Model) -> None:
    count = 0
    over = threading.Event()

    def counter() -> None:
        nonlocal count
        while not over.is_set():
            count += 1

    thread = threading.Thread(target=counter)
    thread.start()
    before = count
    model.generate("word " * 200, max_tokens=1)
    during = count - before
    over.set()
    thread.join()
    assert during > 1000


def test_close_frees_memory(smollm2_path: Path) -> None:
    def anonymous() -> int:
        gc.collect()
        rollup = Path("/proc/self/smaps_rollup").read_text()
        return next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Anonymous:"))

    def once() -> None:
        with rsllm.load(smollm2_path, context=2048) as model:
            model.generate("word " * 100, max_tokens=1)

    once()
    before, threads = anonymous(), len(os.listdir("/proc/self/task"))
    for _ in range(4):  # the allocator keeps what it can from the second time on
        once()
    assert len(os.listdir("/proc/self/task")) == threads
    assert anonymous() - before < 16_000  # KiB; a model of this size has 80,000


def test_a_closed_model_raises_and_its_streams_end(smollm2_path: Path) -> None:
    model = rsllm.load(smollm2_path, context=256)
    stream = model.stream("Once upon a time", ignore_eos=True)
    next(stream)
    model.close()
    with pytest.raises(EngineClosedError):
        model.generate("x")
    with pytest.raises(EngineClosedError):
        list(stream)


def test_a_script_that_just_ends_is_silent(smollm2_path: Path) -> None:
    run = run_script(
        """
        import sys, rsllm
        model = rsllm.load(sys.argv[1], context=128)
        stream = model.stream("Once upon a time", ignore_eos=True)
        print(len(next(stream)) > 0)
        """,
        str(smollm2_path),
    )
    assert (run.stdout, run.stderr, run.returncode) == ("True\n", "", 0)


def test_a_script_that_fails_shows_its_own_error_only(smollm2_path: Path) -> None:
    run = run_script(
        """
        import sys, rsllm
        model = rsllm.load(sys.argv[1], context=128)
        for token in model.stream("Once upon a time", ignore_eos=True):
            raise SystemExit("mine")
        """,
        str(smollm2_path),
    )
    assert (run.stdout, run.stderr, run.returncode) == ("", "mine\n", 1)


def test_ctrl_c_works_inside_a_long_prompt(smollm2_path: Path) -> None:
    script = """
        import sys, time, rsllm
        model = rsllm.load(sys.argv[1], context=8192)
        prompt = "word " * 8000
        print("ready", flush=True)
        try:
            model.generate(prompt, max_tokens=1)
        except KeyboardInterrupt:
            print("interrupted")
        print(model.generate("One two three", max_tokens=1).finish_reason)
        """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), str(smollm2_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert (output, errors, process.returncode) == ("interrupted\nlength\n", "", 0)


def test_what_is_no_model_is_a_typed_error(tmp_path: Path) -> None:
    page = tmp_path / "model.gguf"
    page.write_text("<!DOCTYPE html><html></html>")
    with pytest.raises(GgufError) as caught:
        rsllm.load(page)
    assert caught.value.file == str(page)
    with pytest.raises(FileNotFoundError):
        rsllm.load(tmp_path / "nothing.gguf")
    with pytest.raises(IsADirectoryError):
        rsllm.load(tmp_path)


def test_a_path_may_have_any_characters(smollm2_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ü 模型 Ž"
    folder.mkdir()
    os.symlink(smollm2_path, folder / "m.gguf")
    with rsllm.load(folder / "m.gguf", context=64) as model:
        assert model.generate(PROMPT, max_tokens=1).tokens


@pytest.mark.parametrize("options", [{"kv_type": "q9"}, {"isa": "mmx"}])
def test_unknown_choices_name_the_known_ones(smollm2_path: Path, options: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=f"{next(iter(options))}.*one of") as caught:
        rsllm.load(smollm2_path, **options)
    assert caught.value.name == next(iter(options))


def test_mmap_false_reads_the_file(smollm2_path: Path, model: rsllm.Model) -> None:
    with rsllm.load(smollm2_path, context=128, mmap=False) as read:
        assert read.generate(PROMPT, **GREEDY).tokens == model.generate(PROMPT, **GREEDY).tokens


def test_info_and_metadata_describe_the_model(model: rsllm.Model) -> None:
    info = model.info()
    assert info["architecture"] == model.metadata["general.architecture"] == "llama"
    assert info["context"] == 1024
    assert info["context_reason"]
    assert info["training_context"] == 8192
    assert info["parameters"] == 134_515_008
    assert info["warnings"] == []


def test_bench_measures(model: rsllm.Model) -> None:
    result = model.bench(prompt=32, generate=4, depth=16, repetitions=2)
    assert result.prompt_tokens_per_second > 0
    assert result.generate_tokens_per_second > 0
