"""`rsllm create`: from the Modelfile and its files to a model, with a server in a thread."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import rsllm.cli.main
from rsllm import gguf, shards
from rsllm.config import config
from rsllm.store.modelfile import parse
from rsllm.store.name import ModelName
from tests.server.conftest import Bench
from tests.support.background import serving_in_thread
from tests.support.tiny_models import SHAPES, write


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bench]:
    """A server with an empty store; commands ask it, and start in a folder with `tiny.gguf`."""
    made = Bench(tmp_path / "server")
    folder = tmp_path / "work"
    folder.mkdir()
    write(folder / "tiny.gguf", SHAPES["llama"])
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RSLLM_SERVER", "never")
    with serving_in_thread(lambda: made.app) as port:
        monkeypatch.setenv("OLLAMA_HOST", f"127.0.0.1:{port}")
        config.cache_clear()
        yield made
    config.cache_clear()


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(rsllm.cli.main.cli, list(arguments), input=stdin, prog_name="rsllm")


def created(server: Bench, *arguments: str, stdin: str | None = None) -> Any:
    result = run("create", "mine", *arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return server.store.find(ModelName.parse("mine"))


def test_from_a_modelfile(server: Bench) -> None:
    Path("Modelfile").write_text('FROM ./tiny.gguf\nSYSTEM """Be nice."""\nPARAMETER stop "<|eot_id|>"')
    model = created(server)
    assert (model.system, model.parameters) == ("Be nice.", {"stop": ["<|eot_id|>"]})
    assert model.weights.read_bytes() == Path("tiny.gguf").read_bytes()
    digest = model.digest
    # From another model, from standard input, and with events for scripts.
    result = run("create", "child", "-f", "-", "--json", stdin="FROM mine\nPARAMETER mirostat 1\nSYSTEM Other.")
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert [events[0]["status"], events[-1]["status"]] == ["gathering model components", "success"]
    assert "warning: parameter mirostat is deprecated" in result.stderr
    assert server.store.find(ModelName.parse("child")).system == "Other."
    # What show says of it makes it again.
    recipe = run("show", "--modelfile", "mine").stdout
    assert run("create", "again", "-f", "-", stdin=recipe).exit_code == 0
    assert server.store.find(ModelName.parse("again")).digest == digest


def test_without_a_modelfile_the_folder_is_the_model(server: Bench) -> None:
    assert created(server).config["model_family"] == "llama"


def test_any_part_of_a_split_file(server: Bench) -> None:
    model = gguf.open("tiny.gguf")
    parts = shards.plan(model, max_tensors=12)
    for number in range(len(parts)):
        data = b"".join(shards.shard(model, parts, number))
        Path(shards.shard_name("split", number + 1, len(parts))).write_bytes(data)
    text = 'FROM "./split-00002-of-00002.gguf"'
    assert created(server, "-f", "-", stdin=text).weights.stat().st_size == Path("tiny.gguf").stat().st_size
    Path("split-00001-of-00002.gguf").unlink()
    refused = run("create", "mine", "-f", "-", stdin=text)
    assert "a part of the split model is missing: split-00001-of-00002.gguf" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "text", "code", "message"),
    [
        (("a@b", "-f", "-"), "FROM x", 2, "invalid model name"),
        (("m", "-f", "nowhere"), "", 1, "specified Modelfile wasn't found"),
        (("m", "-f", "-"), "SYSTEM x", 1, "no FROM line"),
        (("m", "-f", "-"), "FROM ./nothing.gguf", 1, "names a file that is not there"),
        (("m", "-f", "-"), "FROM ./tiny.gguf\nADAPTER ./tiny.gguf", 1, "name the same file"),
        (("m", "-f", "-"), "FROM ./tiny.gguf\nADAPTER other", 1, "ADAPTER wants a file"),
        (("m", "-f", "-"), "FROM a\nFROM b", 1, "two models are named with FROM"),
        (("m", "-f", "-"), "FROM ./tiny.gguf\nPARAMETER num_ctx x", 1, "invalid int value [x]"),
        (("m", "-f", "-", "-q", "q4_K_M"), "FROM ./tiny.gguf", 1, "cannot be quantized yet"),
        (("m", "-f", "-"), "FROM ./tiny.gguf\nTEMPLATE {{ .Prompt", 1, "template error"),
        (("m", "-f", "-"), "FROM ./empty/", 1, "no Modelfile or safetensors files found"),
    ],
)
def test_mistakes(server: Bench, arguments: tuple[str, ...], text: str, code: int, message: str) -> None:
    Path("empty").mkdir()
    result = run("create", *arguments, stdin=text)
    assert (result.exit_code, message in result.stderr) == (code, True), result.output
    assert server.store.names() == []


def test_links_that_lead_out_of_the_folder(server: Bench, tmp_path: Path) -> None:
    (tmp_path / "secret.gguf").write_bytes(b"GGUF")
    Path("sub").mkdir()
    Path("sub/x.gguf").symlink_to(tmp_path / "secret.gguf")
    assert "insecure path: x.gguf" in run("create", "m", "-f", "-", stdin="FROM ./sub").stderr


def test_a_modelfile_of_a_terminal_in_utf_16(server: Bench) -> None:
    Path("Modelfile").write_bytes("FROM ./tiny.gguf\r\nSYSTEM é\r\n".encode("utf-16"))
    assert created(server).system == "é"


def test_progress_of_an_upload(server: Bench) -> None:
    from rsllm.cli import create
    from rsllm.cli.ondemand import connect

    request: dict[str, Any] = {"model": "m"}
    files = create.gather(parse("FROM ./tiny.gguf"), Path(), request)
    with connect() as client:
        events = list(create.sent(client, request, files))
    copying = [event for event in events if event["status"].startswith("copying file sha256:")]
    assert copying[-1]["completed"] == copying[-1]["total"] == Path("tiny.gguf").stat().st_size


def test_everything_in_a_modelfile_is_kept(server: Bench) -> None:
    parameters = {"temperature": 0.5, "top_k": 7, "top_p": 0.8, "num_ctx": 64, "repeat_penalty": 1.1, "seed": 42}
    lines = [f"PARAMETER {name} {value}" for name, value in parameters.items()]
    texts = [
        "TEMPLATE {{ .Prompt }}",
        "RENDERER qwen3",
        "PARSER qwen3",
        "LICENSE MIT",
        "SYSTEM Be nice.",
        "REQUIRES 0.9",
    ]
    model = created(server, "-f", "-", stdin="\n".join(["FROM ./tiny.gguf", *texts, *lines, "MESSAGE user hi"]))
    assert model.parameters == parameters
    assert (model.template, model.system, model.licenses) == ("{{ .Prompt }}", "Be nice.", ["MIT"])
    said = [model.config[name] for name in ("renderer", "parser", "requires")]
    assert (said, model.messages) == (["qwen3", "qwen3", "0.9"], [{"role": "user", "content": "hi"}])


def test_devices_and_pipes_are_no_models(server: Bench, tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/random", "/dev/zero", str(tmp_path / "pipe"), "/proc/self/mem"):
        result = run("create", "m", "-f", "-", stdin=f"FROM {path}")
        assert result.exit_code == 1, path
        assert result.stderr.startswith("Error: "), path
    assert server.store.names() == []
