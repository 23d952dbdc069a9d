"""The environment as a frozen dataclass."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from rsllm.config import Config
from rsllm.errors import OptionError

HOME = {"HOME": "/home/u"}


def test_an_empty_environment_gives_the_defaults() -> None:
    config = Config.from_environment(HOME)
    assert config.cache_dir == Path("/home/u/.cache/rsllm")
    assert config.history_file == Path("/home/u/.local/state/rsllm/history")
    assert not config.debug
    assert config.context_length is None


def test_variables_are_trimmed_of_spaces_and_quotes() -> None:
    config = Config.from_environment(
        {
            **HOME,
            "RSLLM_CACHE": ' "/tmp/c d" ',
            "RSLLM_DEBUG": "1",
            "RSLLM_ISA": "AVX2",
            "OLLAMA_CONTEXT_LENGTH": "'8192'",
            "OLLAMA_KV_CACHE_TYPE": "Q8_0",
        }
    )
    assert config.cache_dir == Path("/tmp/c d")
    assert config.debug
    assert config.isa == "avx2"
    assert config.context_length == 8192
    assert config.kv_type == "q8_0"


def test_xdg_folders_count_where_absolute() -> None:
    assert Config.from_environment({**HOME, "XDG_CACHE_HOME": "/x"}).cache_dir == Path("/x/rsllm")
    assert Config.from_environment({**HOME, "XDG_CACHE_HOME": "x"}).cache_dir == Path("/home/u/.cache/rsllm")


@pytest.mark.parametrize(
    ("value", "detail"), [("", 0), ("0", 0), ("false", 0), ("1", 1), ("true", 1), ("2", 2), ("3", 2), ("yes", 1)]
)
def test_how_much_is_logged(value: str, detail: int) -> None:
    assert Config.from_environment({**HOME, "OLLAMA_DEBUG": value}).log_detail == detail


@pytest.mark.parametrize(
    ("variables", "editor"),
    [
        ({}, ""),
        ({"EDITOR": "ed"}, "ed"),
        ({"EDITOR": "ed", "VISUAL": "vis"}, "vis"),
        ({"EDITOR": "ed", "VISUAL": "vis", "OLLAMA_EDITOR": "code -w"}, "code -w"),
    ],
)
def test_the_editor(variables: dict[str, str], editor: str) -> None:
    assert Config.from_environment({**HOME, **variables}).editor == editor


@pytest.mark.parametrize(("value", "expected"), [("", True), ("0", True), ("false", True), ("1", False), ("x", False)])
def test_history_is_off_when_asked(value: str, expected: bool) -> None:
    config = Config.from_environment({**HOME, "OLLAMA_NOHISTORY": value})
    assert (config.history_file is not None) is expected


@pytest.mark.parametrize("value", ["many", "-1", "1.5"])
def test_a_bad_number_is_an_error_naming_the_variable(value: str) -> None:
    with pytest.raises(OptionError, match="OLLAMA_CONTEXT_LENGTH"):
        Config.from_environment({**HOME, "OLLAMA_CONTEXT_LENGTH": value})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("8032385536", 8032385536),
        ("8G", 8 << 30),
        ("8GiB", 8 << 30),
        ("8 gib", 8 << 30),
        ("8GB", 8 * 10**9),
        ("512m", 512 << 20),
        ("1T", 1 << 40),
        ("100B", 100),
        ("0", None),
        ("", None),
    ],
)
def test_a_size_may_have_a_unit(value: str, expected: int | None) -> None:
    """MEM-01."""
    assert Config.from_environment({**HOME, "RSLLM_RUNNER_MEMORY": value}).runner_memory_bytes == expected


@pytest.mark.parametrize("value", ["abc", "8X", "G", "-8G", "8.5G", "8iB", "8GiBiB", "8BG", "٨"])
def test_a_size_that_is_none_is_an_error_at_the_start(value: str) -> None:
    """MEM-01."""
    with pytest.raises(OptionError, match="RSLLM_RUNNER_MEMORY"):
        Config.from_environment({**HOME, "RSLLM_RUNNER_MEMORY": value})


@pytest.mark.parametrize(
    ("value", "expected"), [("8G", 8 << 30), ("8GiB", 8 << 30), ("8032385536", 8032385536), ("0", None)]
)
def test_memory_to_leave_on_a_gpu_may_have_a_unit(value: str, expected: int | None) -> None:
    """MEM-01, under the name that it was met by."""
    config = Config.from_environment({**HOME, "OLLAMA_GPU_OVERHEAD": value})
    assert config.gpu_overhead_bytes == expected
    assert config.without_effect == ("OLLAMA_GPU_OVERHEAD has no effect: this build has no GPU backend",)
    with pytest.raises(OptionError, match="OLLAMA_GPU_OVERHEAD"):
        Config.from_environment({**HOME, "OLLAMA_GPU_OVERHEAD": "abc"})


def test_what_changes_nothing_is_told() -> None:
    assert Config.from_environment({**HOME, "OLLAMA_FLASH_ATTENTION": ""}).without_effect == ()
    told = Config.from_environment({**HOME, "OLLAMA_SCHED_SPREAD": "1", "OLLAMA_LLM_LIBRARY": "cpu"}).without_effect
    assert [text.split()[0] for text in told] == ["OLLAMA_LLM_LIBRARY", "OLLAMA_SCHED_SPREAD"]


@pytest.mark.parametrize(
    ("variable", "value", "member", "expected"),
    [
        ("OLLAMA_KEEP_ALIVE", "", "keep_alive_seconds", 300.0),
        ("OLLAMA_KEEP_ALIVE", "1h30m", "keep_alive_seconds", 5400.0),
        ("OLLAMA_KEEP_ALIVE", "42", "keep_alive_seconds", 42.0),
        ("OLLAMA_KEEP_ALIVE", "0", "keep_alive_seconds", 0.0),
        ("OLLAMA_KEEP_ALIVE", "-1", "keep_alive_seconds", math.inf),
        ("OLLAMA_KEEP_ALIVE", "-5s", "keep_alive_seconds", math.inf),
        ("OLLAMA_LOAD_TIMEOUT", "", "load_timeout_seconds", 300.0),
        ("OLLAMA_LOAD_TIMEOUT", "90", "load_timeout_seconds", 90.0),
        ("OLLAMA_LOAD_TIMEOUT", "0", "load_timeout_seconds", None),
        ("OLLAMA_LOAD_TIMEOUT", "-1s", "load_timeout_seconds", None),
        ("OLLAMA_MAX_LOADED_MODELS", "", "max_loaded_models", 0),
        ("OLLAMA_MAX_LOADED_MODELS", "2", "max_loaded_models", 2),
        ("OLLAMA_MAX_QUEUE", "", "max_queue", 512),
        ("OLLAMA_MAX_QUEUE", "0", "max_queue", 0),
        ("OLLAMA_MAX_QUEUE", "7", "max_queue", 7),
        ("OLLAMA_NUM_PARALLEL", "", "num_parallel", None),
        ("OLLAMA_NUM_PARALLEL", "0", "num_parallel", None),
        ("OLLAMA_NUM_PARALLEL", "4", "num_parallel", 4),
        ("OLLAMA_CONTEXT_LENGTH", "0", "context_length", None),
        ("OLLAMA_CONTEXT_LENGTH", "8192", "context_length", 8192),
        ("OLLAMA_KV_CACHE_TYPE", "", "kv_type", None),
        ("OLLAMA_KV_CACHE_TYPE", "q4_0", "kv_type", "q4_0"),
    ],
)
def test_the_rules_of_the_scheduler(variable: str, value: str, member: str, expected: object) -> None:
    assert getattr(Config.from_environment({**HOME, variable: value}), member) == expected


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OLLAMA_KEEP_ALIVE", "soon"),
        ("OLLAMA_LOAD_TIMEOUT", "5 x"),
        ("OLLAMA_MAX_LOADED_MODELS", "-1"),
        ("OLLAMA_MAX_QUEUE", "many"),
        ("OLLAMA_NUM_PARALLEL", "1.5"),
        ("OLLAMA_KV_CACHE_TYPE", "q3"),
    ],
)
def test_a_rule_that_makes_no_sense_is_an_error_at_the_start(variable: str, value: str) -> None:
    with pytest.raises(OptionError, match=variable) as error:
        Config.from_environment({**HOME, variable: value})
    assert error.value.name == variable


def test_the_store_is_where_the_environment_says() -> None:
    assert Config.from_environment(HOME).models_dir == Path("/home/u/.ollama/models")
    assert Config.from_environment({**HOME, "OLLAMA_MODELS": " '/data/ü m' "}).models_dir == Path("/data/ü m")
    assert not Config.from_environment(HOME).no_prune
    assert Config.from_environment({**HOME, "OLLAMA_NOPRUNE": "1"}).no_prune
