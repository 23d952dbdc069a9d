"""The command line as people run it: real processes, real models, no terminal unless a test makes one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import assets

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
GREEDY = ("--temperature", "0", "--num-predict", "12", "--num-ctx", "512")


def rsllm(*arguments: str, stdin: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rsllm", *arguments],
        capture_output=True,
        text=True,
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        timeout=150,
        cwd=ROOT,
        env={**os.environ, **environment},
    )


def test_run_answers(smollm2_path: Path) -> None:
    run = rsllm("run", str(smollm2_path), "What is the capital of France?", *GREEDY)
    assert run.returncode == 0, run.stderr
    assert "Paris" in run.stdout
    assert run.stderr == ""


def test_run_raw_from_standard_input_with_timings(smollm2_path: Path) -> None:
    run = rsllm("run", "--raw", "--verbose", str(smollm2_path), *GREEDY, stdin="The capital of France is")
    assert run.returncode == 0
    assert "Paris" in run.stdout
    labels = [line.split(":")[0] for line in run.stderr.strip().splitlines()]
    for label in (
        "total duration",
        "load duration",
        "prompt eval count",
        "prompt eval rate",
        "eval count",
        "eval rate",
    ):
        assert label in labels
    assert "eval count:           12 token(s)" in run.stderr


def test_the_demo_is_fetched_once_and_runs() -> None:
    cache = {"RSLLM_CACHE": str(assets.cache_dir() / "rsllm-cache")}
    first = rsllm("run", "demo", "Why is the sky blue?", *GREEDY, **cache)
    assert first.returncode == 0, first.stderr
    assert len(first.stdout) > 10
    assert first.stderr == ""
    # What is in the cache needs no index: one that does not exist is never asked.
    again = rsllm("run", "demo", "Why is the sky blue?", *GREEDY, **cache, PIP_INDEX_URL="http://127.0.0.1:1/")
    assert again.stdout == first.stdout


def test_a_reader_that_goes_away_ends_the_command_quietly(smollm2_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "rsllm", "run", "--raw", str(smollm2_path), "Once", "--num-ctx", "256"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(60) != 0
    process.stderr.close()


def test_ctrl_c_exits_with_130(smollm2_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "rsllm", "run", "--raw", str(smollm2_path), "Once", "-o", "ignore_eos=true"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdout is not None
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in errors


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("run", "no-such-file.gguf", "hi"), 1, "no such model file"),
        (("run", str(ROOT / "pyproject.toml"), "hi"), 1, "Error: "),
        (("run", "demo", "hi", "--temperature", "hot"), 2, "--temperature"),
        (("frob",), 2, "frob"),
    ],
)
def test_mistakes_are_one_error_and_no_traceback(arguments: tuple[str, ...], code: int, message: str) -> None:
    run = rsllm(*arguments)
    assert run.returncode == code
    assert run.stderr.startswith("Error: ")
    assert message in run.stderr
    assert "Traceback" not in run.stderr


def test_show(smollm2_path: Path) -> None:
    report = json.loads(rsllm("show", "--json", str(smollm2_path)).stdout)
    assert report["model"]["architecture"] == "llama"
    assert report["model"]["quantization"] == "Q4_1"
    assert report["model"]["parameters"] == 134_515_008
    assert len(report["tensors"]) == 272
    assert "context length      8192" in rsllm("show", str(smollm2_path)).stdout


def test_tokenize_round_trip(smollm2_path: Path) -> None:
    text = "Hello, wörld 😀\n"
    report = json.loads(rsllm("tokenize", "--json", str(smollm2_path), stdin=text).stdout)
    pieces = [entry["piece"] for entry in report["tokens"]]
    joined = b"".join(piece.encode() if isinstance(piece, str) else bytes(piece) for piece in pieces)
    assert joined.decode() == text
    assert report["count"] == len(pieces)


def test_bench(smollm2_path: Path) -> None:
    run = rsllm("bench", "--json", "-p", "16", "-n", "2", "-d", "0,16", "-t", "1", "-r", "1", str(smollm2_path))
    assert run.returncode == 0, run.stderr
    rows = json.loads(run.stdout)["rows"]
    assert [(row["test"], row["depth"]) for row in rows] == [
        ("prefill 16", 0),
        ("decode 2", 0),
        ("prefill 16", 16),
        ("decode 2", 16),
    ]
    assert all(row["tokens_per_second"] > 0 for row in rows)
    assert rows[1]["bandwidth_share"] > 0


def test_doctor() -> None:
    report = json.loads(rsllm("doctor", "--json").stdout)
    assert report["cpu"]["isa"] in report["cpu"]["available_isas"]
    assert report["cpu"]["reason"]
    assert "Q4_K" in report["cpu"]["kernels"]
    assert "Kernels" in rsllm("doctor").stdout
