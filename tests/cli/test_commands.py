"""The other commands, the help texts, and what the commands share."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from rsllm.cli import common
from rsllm.cli.main import cli

Run = Callable[..., Result]
GOLDEN = Path(__file__).parent.parent / "golden" / "help"


def every_command() -> list[str]:
    """The names of all commands, and of those within groups behind the name of the group."""
    names = []
    for name in cli.list_commands(None):  # type: ignore[arg-type]
        command = cli.get_command(None, name)  # type: ignore[arg-type]
        names += [name, *(f"{name} {part}" for part in getattr(command, "commands", ()))]
    return names


@pytest.mark.parametrize("command", ["", *every_command()])
def test_help_is_as_recorded(rsllm_command: Run, command: str) -> None:
    """`RSLLM_UPDATE_GOLDEN=1 pytest tests/cli/test_commands.py` writes the files anew; look at the difference."""
    text = rsllm_command(*command.split(), "--help").stdout
    path = GOLDEN / f"{command.replace(' ', '-') or 'rsllm'}.txt"
    if os.environ.get("RSLLM_UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()
    assert "Examples:" in text


def test_every_command_is_listed_and_has_a_recorded_help() -> None:
    recorded = {path.stem for path in GOLDEN.glob("*.txt")} - {"rsllm"}
    assert recorded == {name.replace(" ", "-") for name in every_command()}


def test_without_a_command_the_help_is_shown(rsllm_command: Run) -> None:
    result = rsllm_command()
    assert result.exit_code == 2
    assert result.stderr.startswith("Usage: rsllm")


def test_a_misspelt_command_is_recognised(rsllm_command: Run) -> None:
    assert "did you mean 'tokenize'?" in rsllm_command("tokenise").stderr


def test_version(rsllm_command: Run) -> None:
    result = rsllm_command("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith("rsllm ")


@pytest.mark.parametrize("arguments", [("nonsense",), ("run",), ("show", "--nope", "x"), ("bench", "m", "-p", "a")])
def test_usage_errors_exit_with_2(rsllm_command: Run, arguments: tuple[str, ...]) -> None:
    result = rsllm_command(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")


def test_show(rsllm_command: Run, model_file: str) -> None:
    text = rsllm_command("show", model_file).stdout
    assert "architecture        fake" in text
    assert "token_embd" not in text
    verbose = rsllm_command("show", "-v", model_file).stdout
    assert "token_embd.weight   Q4_0  4x32      72" in verbose
    assert "tokenizer.ggml.tokens" in verbose
    assert rsllm_command("show", "--license", model_file).stdout == "mit\n"
    assert "im_start" in rsllm_command("show", "--template", model_file).stdout


def test_show_as_json(rsllm_command: Run, model_file: str) -> None:
    report = json.loads(rsllm_command("show", "--json", model_file).stdout)
    assert report["model"]["parameters"] == 160
    assert report["tensors"][0]["shape"] == [4, 32]
    assert report["metadata"]["tokenizer.ggml.tokens"]["array_length"] == 60
    whole = json.loads(rsllm_command("show", "--json", "-v", model_file).stdout)
    assert len(whole["metadata"]["tokenizer.ggml.tokens"]) == 60


def test_show_of_something_else(rsllm_command: Run, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("<html>")
    result = rsllm_command("show", str(path))
    assert result.exit_code == 1
    assert "is not a GGUF file" in result.stderr


def test_tokenize(rsllm_command: Run, model_file: str) -> None:
    text = rsllm_command("tokenize", model_file, "hé<s>").stdout
    assert "104  'h'" in text
    assert text.endswith("6 token(s)\n")
    assert rsllm_command("tokenize", "--ids", "--parse-special", model_file, "h<s>").stdout == "104 256\n"
    assert rsllm_command("tokenize", "--ids", model_file, stdin="hi").stdout == "104 105\n"


def test_tokenize_as_json_gives_bytes_where_a_piece_is_no_text(rsllm_command: Run, model_file: str) -> None:
    report = json.loads(rsllm_command("tokenize", "--json", model_file, stdin="hé").stdout)
    assert report == {
        "count": 3,
        "tokens": [{"id": 104, "piece": "h"}, {"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}],
    }


def test_bench(rsllm_command: Run, model_file: str, core: Any) -> None:
    result = rsllm_command("bench", model_file, "-p", "128,16", "-n", "10", "-d", "0,32", "-t", "1,2", "-r", "2")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 2 + 2 * 2 * 3
    assert lines[1].split() == ["threads", "test", "depth", "tokens/s", "±", "GB/s", "of", "read"]
    assert core.behaviour.engines[0].arguments["context"] == 128 + 32 + 1
    assert [engine.arguments["threads"] for engine in core.behaviour.engines] == [1, 2]


def test_bench_as_json(rsllm_command: Run, model_file: str) -> None:
    report = json.loads(rsllm_command("bench", "--json", model_file, "-p", "128", "-n", "10").stdout)
    prefill, decode = report["rows"]
    assert prefill["tokens_per_second"] == pytest.approx(1000)
    assert prefill["gigabytes_per_second"] is None
    assert decode["gigabytes_per_second"] == pytest.approx(100 * 1000 / 1e9)
    assert decode["bandwidth_share"] == pytest.approx(100 * 1000 / 2e10)


def test_doctor(rsllm_command: Run) -> None:
    text = rsllm_command("doctor").stdout
    assert "avx2 (the best of what the CPU offers)" in text
    assert "no GPU backend" in text
    report = json.loads(rsllm_command("doctor", "--json").stdout)
    assert report["cpu"]["features"] == {"avx2": True, "avx512f": False}
    assert report["memory"]["total"] > 0


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0s"),
        (999, "999ns"),
        (1_500, "1.5µs"),
        (45_600_000, "45.6ms"),
        (130_000_000, "130ms"),
        (1_234_567_890, "1.23456789s"),
        (123_000_000_000, "2m3s"),
        (3_600_000_000_000, "1h0m0s"),
    ],
)
def test_durations_read_as_go_writes_them(nanoseconds: int, text: str) -> None:
    assert common.format_duration(nanoseconds) == text


@pytest.mark.parametrize(("count", "text"), [(4096, "4096"), (134_515_008, "134.5M"), (1_240_000_000, "1.24B")])
def test_counts(count: int, text: str) -> None:
    assert common.format_count(count) == text


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (["m", "--truncate=false", "x"], ["m", "--no-truncate", "x"]),
        (["m", "--truncate=TRUE", "--verbose=1"], ["m", "--truncate", "--verbose"]),
        (["m", "--verbose=false", "--insecure=0", "--nowordwrap=f"], ["m"]),
        (["m", "--no-truncate=false"], ["m", "--truncate"]),
        (["m", "--think=false", "--format=true"], ["m", "--think=false", "--format=true"]),
        (["m", "--verbose=perhaps", "--", "--verbose=true"], ["m", "--verbose=perhaps", "--", "--verbose=true"]),
    ],
)
def test_flags_may_be_written_as_go_does(written: list[str], meant: list[str]) -> None:
    from rsllm.cli.main import _without_values
    from rsllm.cli.run import command

    assert _without_values(command, written) == meant
