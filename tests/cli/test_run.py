"""`rsllm run`, one answer at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from rsllm.cli.settings import Settings, parse_format
from rsllm.config import config
from rsllm.errors import OptionError
from tests.unit.fake_core import WHOLE

Run = Callable[..., Result]


def prompt_of(core: Any) -> str:
    text: str = core.text_of(core.behaviour.engines[0].prompts[0])
    return text


def test_the_answer_streams_to_standard_output(rsllm_command: Run, model_file: str, core: Any) -> None:
    result = rsllm_command("run", model_file, "Why", "is it?")
    assert (result.exit_code, result.stdout, result.stderr) == (0, WHOLE + "\n", "")
    assert prompt_of(core) == "<|im_start|>user\nWhy is it?<|im_end|>\n<|im_start|>assistant\n"
    assert core.behaviour.engines[0].closed


def test_standard_input_goes_before_the_arguments(rsllm_command: Run, model_file: str, core: Any) -> None:
    rsllm_command("run", model_file, "--raw", "summarise", stdin="é text\n")
    assert prompt_of(core) == "é text\n summarise"


def test_standard_input_alone_is_the_prompt(rsllm_command: Run, model_file: str, core: Any) -> None:
    assert rsllm_command("run", "--raw", model_file, stdin="hi").exit_code == 0
    assert prompt_of(core) == "hi"


def test_no_prompt_at_all_is_a_usage_error(rsllm_command: Run, model_file: str) -> None:
    result = rsllm_command("run", model_file)
    assert result.exit_code == 2
    assert "there is no prompt" in result.stderr


def test_an_empty_prompt_only_loads(rsllm_command: Run, model_file: str, core: Any) -> None:
    result = rsllm_command("run", model_file, "")
    assert (result.exit_code, result.stdout) == (0, "")
    assert core.behaviour.engines[0].prompts == []


def test_input_that_is_not_utf8_is_an_error(rsllm_command: Run, model_file: str) -> None:
    result = rsllm_command("run", model_file, stdin=b"ab\xff")
    assert result.exit_code == 1
    assert "byte 2 is 0xff" in result.stderr


def test_options_reach_the_engine(rsllm_command: Run, model_file: str, core: Any) -> None:
    flags = (
        "--temperature 0.5 --top-k -1 --top-p 0.7 --min-p 0.1 --typical-p 0.9 --seed -1 --num-predict 3 "
        "--repeat-penalty 1.1 --repeat-last-n -1 --presence-penalty 0.2 --frequency-penalty -0.3 --stop a --stop b "
        "-o ignore_eos=true --num-ctx 99 --threads 1 --kv-type q8_0 --isa avx2 --no-mmap"
    )
    assert rsllm_command("run", model_file, "hi", *flags.split()).exit_code == 0
    engine = core.behaviour.engines[0]
    assert engine.options[0] == {
        "max_tokens": 3,
        "temperature": 0.5,
        "top_k": 0,
        "top_p": 0.7,
        "min_p": 0.1,
        "typical_p": 0.9,
        "repeat_penalty": 1.1,
        "repeat_last_n": -1,
        "presence_penalty": 0.2,
        "frequency_penalty": -0.3,
        "seed": None,
        "stop": ["a", "b"],
        "logprobs": None,
        "ignore_eos": True,
        "max_draft": 15,
        "shift": False,
        "num_keep": 4,
        "logit_bias": [],
        "schema": None,
        "regex": None,
        "grammar": None,
    }
    assert engine.arguments == {"threads": 1, "context": 99, "kv_type": "q8_0", "isa": "avx2", "mmap": False}


def test_the_environment_gives_defaults_and_flags_win(
    rsllm_command: Run, model_file: str, core: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_CONTEXT_LENGTH", "128")
    monkeypatch.setenv("OLLAMA_KV_CACHE_TYPE", "q4_0")
    config.cache_clear()
    rsllm_command("run", model_file, "hi")
    rsllm_command("run", model_file, "hi", "--num-ctx", "64", "--kv-type", "f32")
    given = [(engine.arguments["context"], engine.arguments["kv_type"]) for engine in core.behaviour.engines]
    assert given == [(128, "q4_0"), (64, "f32")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--temperature", "nan"), "must be a number from 0 to 100"),
        (("--temperature", "-1"), "must be a number from 0 to 100"),
        (("--top-p", "2"), "must be a number from 0 to 1"),
        (("--seed", "x"), "must be None or a whole number"),
        (("--temprature", "1"), "--temperature"),
        (("-o", "temprature=1"), "did you mean 'temperature'"),
        (("-o", "temperature"), "is not of the form name=value"),
        (("-o", "num_ctx=5"), "use --num-ctx"),
        (("-o", "mirostat=1"), "unknown option 'mirostat'"),
        (("--num-ctx", "0"), "--num-ctx"),
        (("--kv-type", "q9"), "--kv-type"),
        (("--system", "x", "--raw"), "--raw"),
    ],
)
def test_a_mistake_in_an_option_is_a_usage_error_of_few_words(
    rsllm_command: Run, model_file: str, core: Any, arguments: tuple[str, ...], message: str
) -> None:
    result = rsllm_command("run", model_file, "hi", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.startswith("Error: ")
    assert len(result.stderr.splitlines()) <= 2
    assert core.behaviour.engines == []


def test_verbose_prints_timings_in_ollamas_words(rsllm_command: Run, model_file: str) -> None:
    result = rsllm_command("run", model_file, "a somewhat longer prompt", "--verbose")
    assert result.stdout == WHOLE + "\n"
    lines = result.stderr.strip().splitlines()
    assert lines[0] == "total duration:       4.875601s"
    assert lines[1] == "load duration:        45.6ms"
    assert lines[2].startswith("prompt eval count:    ")
    assert lines[3] == "prompt cached count:  2 token(s)"
    assert lines[4] == "prompt eval duration: 130ms"
    assert lines[6:] == [
        "eval count:           4 token(s)",
        "eval duration:        4.7s",
        "eval rate:            0.85 tokens/s",
        "context length:       256 token(s), the model's limit",
    ]


def test_what_is_odd_about_a_file_is_said(rsllm_command: Run, model_file: str, core: Any) -> None:
    core.behaviour.warnings = ["tensors without a use here: x"]
    result = rsllm_command("run", model_file, "hi", "--verbose")
    assert result.stderr.startswith("Warning: tensors without a use here: x\n")


def test_a_full_context_is_said(rsllm_command: Run, model_file: str, core: Any) -> None:
    core.behaviour.finish_reason = "context"
    result = rsllm_command("run", model_file, "hi")
    assert result.exit_code == 0
    assert "the context is full" in result.stderr


def test_a_prompt_too_long_is_an_error_and_not_cut(rsllm_command: Run, model_file: str) -> None:
    result = rsllm_command("run", model_file, "x" * 300)
    assert result.exit_code == 1
    assert "too long" in result.stderr


def test_a_model_without_a_template_names_raw(rsllm_command: Run, model_file: str, core: Any) -> None:
    core.behaviour.template = None
    result = rsllm_command("run", model_file, "hi")
    assert result.exit_code == 1
    assert "no chat template" in result.stderr
    assert "--raw" in result.stderr
    assert rsllm_command("run", "--raw", model_file, "hi").exit_code == 0


@pytest.mark.parametrize(
    ("ref", "message"), [("no/such.gguf", "no such model file: no/such.gguf"), ("qwen3:8b", "could not connect")]
)
def test_a_model_that_is_not_there(rsllm_command: Run, ref: str, message: str) -> None:
    result = rsllm_command("run", ref, "hi")
    assert result.exit_code == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_fault_of_ours_is_one_line_and_debug_shows_the_traceback(
    rsllm_command: Run, model_file: str, core: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    core.behaviour.fail_after = 1
    result = rsllm_command("run", model_file, "hi")
    assert result.exit_code == 1
    assert "internal error: RuntimeError" in result.stderr
    assert "Traceback" not in result.stderr
    monkeypatch.setenv("RSLLM_DEBUG", "1")
    config.cache_clear()
    assert "Traceback" in rsllm_command("run", model_file, "hi").stderr


def test_ctrl_c_exits_with_130(rsllm_command: Run, model_file: str, core: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Any, milliseconds: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(core.Generation, "next_timeout", interrupted)
    assert rsllm_command("run", model_file, "hi").exit_code == 130


@pytest.mark.parametrize(
    ("text", "format"),
    [
        ("json", "json"),
        ('{"type": "object"}', {"type": "object"}),
        ("  {}", {}),
        ("FILE", {"type": "array", "title": "é"}),
    ],
)
def test_formats(tmp_path: Path, text: str, format: Any) -> None:
    path = tmp_path / "my schema.json"
    path.write_bytes('{"type": "array", "title": "é"}'.encode("utf-8-sig"))
    assert parse_format(str(path) if text == "FILE" else text) == format


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[1]", "must be a JSON schema, which is an object"),
        (b"{", "is no JSON"),
        (b"\xff", "is not UTF-8: byte 0"),
        (None, "there is no file"),
        (b"[" * 100_000, "is no JSON"),
    ],
)
def test_formats_that_are_none(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "schema.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(OptionError, match=message):
        parse_format(str(path))


@pytest.mark.parametrize(
    ("arguments", "think", "words"),
    [
        (["--think", "Why is it?"], True, "Why is it?"),
        (["--think", "high", "Why?"], "high", "Why?"),
        (["--think=LOW", "Why?"], "low", "Why?"),
        (["--think=false", "Why?"], False, "Why?"),
        (["Why?", "--think"], True, "Why?"),
        (["--think", "--hidethinking", "Why?"], True, "Why?"),
        (["--", "--think"], None, "--think"),
    ],
)
def test_where_think_may_stand(
    rsllm_command: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str], think: Any, words: str
) -> None:
    seen: list[Any] = []

    def run(model: str, settings: Settings, asked: Any, load_options: Any) -> None:
        seen.append((settings.think, asked.words))

    monkeypatch.setattr("rsllm.cli.run._run_on_server", run)
    result = rsllm_command("run", "m", *arguments, stdin="")
    assert result.exit_code == 0, result.output
    assert seen == [(think, words)]
