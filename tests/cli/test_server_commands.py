"""Commands that ask a server, with one in a thread whose runners run no model."""

from __future__ import annotations

import base64
import io
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result

from rsllm.cli.ondemand import connect
from rsllm.cli.repl import Repl
from rsllm.cli.sessions import ServerSession
from rsllm.cli.settings import Settings
from rsllm.client import Client
from rsllm.config import config
from rsllm.errors import DownloadError
from rsllm.store.manifest import MediaType
from rsllm.store.name import ModelName
from rsllm.store.progress import Progress
from tests.cli.conftest import reader_of
from tests.server.conftest import Bench
from tests.server.test_thinking import thinker
from tests.support.background import serving_in_thread

Run = Callable[..., Result]
GOLDEN = Path(__file__).parent.parent / "golden" / "output"


@pytest.fixture
def server(core: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bench]:
    """A server with the model `tiny`; commands ask it."""
    made = Bench(tmp_path / "server")
    made.add()
    with serving_in_thread(lambda: made.app) as port:
        monkeypatch.setenv("OLLAMA_HOST", f"127.0.0.1:{port}")
        config.cache_clear()
        yield made


def golden(name: str, text: str) -> None:
    """`RSLLM_UPDATE_GOLDEN=1 pytest tests/cli` writes the files anew; look at the difference."""
    text = re.sub(r"\b[0-9a-f]{12}\b", "0123456789ab", text)
    text = re.sub(r"(Less than a second|\d+ seconds?) ago", "Less than a second ago", text)
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("RSLLM_UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.fixture
def bodies(server: Bench, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Bodies of the requests that come."""
    from rsllm.server.body import Body

    seen: list[dict[str, Any]] = []
    parse = Body.parse

    def remember(data: bytes) -> Body:
        seen.append(json.loads(data))
        return parse(data)

    monkeypatch.setattr(Body, "parse", remember)
    return seen


def test_list_ps_cp_rm_and_stop(server: Bench, rsllm_command: Run) -> None:
    text = ""
    for line in (
        "list", "cp tiny other:1b", "ls oth", "ps", "run tiny --keepalive -1s hi", "ps", "stop tiny",
        "rm other:1b tiny", "list",
    ):  # fmt: skip
        result = rsllm_command(*line.split(), stdin="")
        assert result.exit_code == 0, result.stderr
        text += f"$ rsllm {line}\n{result.stdout}{result.stderr}"
    golden("models", text)


def test_lists_as_json(server: Bench, rsllm_command: Run) -> None:
    (model,) = json.loads(rsllm_command("list", "--json").stdout)["models"]
    assert model["name"] == "tiny:latest"
    assert json.loads(rsllm_command("ps", "--json").stdout) == {"models": []}
    assert json.loads(rsllm_command("list", "--json", "nosuch").stdout) == {"models": []}


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("stop nosuch", 1, 'couldn\'t find model "nosuch" to stop'),
        ("rm nosuch", 1, "model 'nosuch' not found"),
        ("cp nosuch x", 1, 'model "nosuch" not found'),
        ("cp tiny a@b", 1, 'destination "a@b" is invalid'),
        ("run tiny hi --kv-type f16", 2, "--kv-type is a setting of the server"),
        ("run tiny hi --keepalive soon", 2, "--keepalive"),
        ("run tiny hi --format xml", 2, "neither json nor a JSON schema"),
        ("run tiny hi --think=loud", 2, "invalid value for --think"),
        ("run tiny hi --system x --raw", 2, "--system needs the chat template"),
    ],
)
def test_mistakes(server: Bench, rsllm_command: Run, line: str, code: int, message: str) -> None:
    result = rsllm_command(*line.split(), stdin="")
    assert message in result.stderr
    assert result.exit_code == code
    assert result.stderr.startswith("Error: ")


def test_without_a_server(core: Any, rsllm_command: Run) -> None:
    for line in ("list", "run nosuch hi", "pull x", "rm x"):
        result = rsllm_command(*line.split(), stdin="")
        assert result.exit_code == 1
        assert "could not connect to a server at http://127.0.0.1:1" in result.stderr
        assert "`rsllm serve`" in result.stderr
    assert rsllm_command("ps").stdout.startswith("NAME")
    assert "no server is running" in rsllm_command("stop", "x").stderr.lower()


def test_run_streams_the_answer(server: Bench, rsllm_command: Run, bodies: list[dict[str, Any]]) -> None:
    result = rsllm_command("run", "tiny", "Why", "is it?", stdin="é\n")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "ab" * 4 + "\n", "")
    assert bodies == [{"model": "tiny", "prompt": "é\n Why is it?"}]


def test_run_sends_its_options(server: Bench, rsllm_command: Run, bodies: list[dict[str, Any]]) -> None:
    flags = (
        "--temperature 0.5 --top-k -1 --seed -1 --num-predict 3 --stop x --stop y -o ignore_eos=true -o num_predict=2 "
        "--num-ctx 99 --threads 1 --no-mmap --keepalive 10m --system S"
    )
    result = rsllm_command("run", "tiny", "hi", *flags.split(), '--format={"type":"object"}', stdin="")
    assert result.exit_code == 0, result.stderr
    assert bodies == [
        {
            "model": "tiny",
            "prompt": "hi",
            "system": "S",
            "keep_alive": "10m",
            "format": {"type": "object"},
            "options": {
                "temperature": 0.5,
                "top_k": 0,
                "seed": -1,
                "num_predict": 2,
                "stop": ["x", "y"],
                "ignore_eos": True,
                "num_ctx": 99,
                "num_thread": 1,
                "use_mmap": False,
            },
        }
    ]


def test_an_empty_prompt_preloads(server: Bench, rsllm_command: Run, bodies: list[dict[str, Any]]) -> None:
    result = rsllm_command("run", "tiny", "", stdin="")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    assert bodies == [{"model": "tiny", "stream": False}]
    assert "tiny:latest" in rsllm_command("ps").stdout


def test_thinking_of_a_model_that_does_not_think_is_left_out_and_said(
    server: Bench, rsllm_command: Run, bodies: list[dict[str, Any]]
) -> None:
    result = rsllm_command("run", "tiny", "hi", "--think", stdin="")
    assert (result.exit_code, result.stdout) == (0, "ab" * 4 + "\n")
    assert result.stderr == 'warning: model "tiny" does not support thinking output\n'
    assert [body.get("think") for body in bodies] == [True, None]


def test_run_prints_timings_and_warnings(server: Bench, rsllm_command: Run) -> None:
    server.add(layers={MediaType.PARAMS: '{"mirostat": 1}'})
    result = rsllm_command("run", "tiny", "hi", "--verbose", stdin="")
    assert result.stderr.startswith("Warning: unknown option 'mirostat' was ignored\n")
    labels = [line.partition(":")[0] for line in result.stderr.strip().splitlines()[2:]]
    assert labels == [
        *("total duration", "load duration", "prompt eval count", "prompt eval duration", "prompt eval rate"),
        *("eval count", "eval duration", "eval rate"),
    ]


def test_run_pulls_what_is_missing(server: Bench, rsllm_command: Run) -> None:
    async def pull(store: Any, name: Any, *, insecure: bool, typed: bool) -> AsyncIterator[Progress]:
        assert insecure
        yield Progress("pulling manifest")
        server.add("new", {"text": "new"})
        yield Progress("success")

    server.services.pull = pull
    result = rsllm_command("run", "new", "hi", "--insecure", stdin="")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "new" * 4 + "\n", "")


def test_run_of_what_nobody_has(server: Bench, rsllm_command: Run) -> None:
    async def pull(store: Any, name: Any, *, insecure: bool, typed: bool) -> AsyncIterator[Progress]:
        yield Progress("pulling manifest")
        raise DownloadError("pull model manifest: file does not exist")

    server.services.pull = pull
    result = rsllm_command("run", "nosuch", "hi", stdin="")
    assert (result.exit_code, result.stderr) == (1, "Error: pull model manifest: file does not exist\n")


def test_an_error_in_the_middle_of_an_answer(server: Bench, rsllm_command: Run) -> None:
    server.add(behaviour={"crash_after": 1, "delay": 0.02})
    result = rsllm_command("run", "tiny", "hi", stdin="")
    assert result.exit_code == 1
    assert result.stdout.startswith("ab")
    assert "stopped unexpectedly: signal SIGKILL" in result.stderr


def test_a_model_that_only_embeds_prints_its_vector(server: Bench, rsllm_command: Run) -> None:
    from tests.server.conftest import METADATA

    server.add("bert", {"text": "b"}, metadata={**METADATA, "fake.pooling_type": 1})
    result = rsllm_command("run", "bert", "hi", "--dimensions", "2", stdin="")
    assert (result.exit_code, json.loads(result.stdout)) == (0, [0.0, 0.0])


def test_pictures_are_sent_to_models_that_see(
    rsllm_command: Run, server: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    able = ["completion"]

    def generate(self: Client, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        asked.append(request)
        yield {"response": "a cat", "done": True}

    monkeypatch.setattr(Client, "generate", generate)
    monkeypatch.setattr(Client, "show", lambda self, model: {"capabilities": able})
    picture = tmp_path / "a b.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n and so on")
    prompt = "what is " + str(picture).replace(" ", r"\ ")
    blind = rsllm_command("run", "tiny", prompt, stdin="")
    assert (blind.exit_code, blind.stdout, asked) == (2, "", [])
    assert blind.stderr.startswith(f"Error: the model cannot look at images: {picture}\n")
    able.append("vision")
    seen = rsllm_command("run", "tiny", prompt, stdin="piped /etc/passwd.png")
    assert (seen.exit_code, seen.stdout, seen.stderr) == (0, "a cat\n", f"Added image '{picture}'\n")
    (request,) = asked
    assert request["prompt"] == "piped /etc/passwd.png what is"
    assert [base64.b64decode(image) for image in request["images"]] == [picture.read_bytes()]
    assert rsllm_command("run", "tiny", "what is /no/such.png", stdin="").exit_code == 0
    assert "images" not in asked[-1]


@pytest.mark.parametrize("command", ["pull", "push"])
def test_transfers_are_silent_in_a_pipe_and_tell_all_as_json(server: Bench, rsllm_command: Run, command: str) -> None:
    async def transfer(store: Any, name: Any, *, insecure: bool, typed: bool) -> AsyncIterator[Progress]:
        yield Progress("moving", "sha256:00", 10, 5)
        yield Progress("success")

    setattr(server.services, command, transfer)
    result = rsllm_command(command, "me/model")
    assert (result.exit_code, result.stderr) == (0, "")
    assert ("https://ollama.com/me/model" in result.stdout) == (command == "push")
    lines = [json.loads(line) for line in rsllm_command(command, "--json", "me/model").stdout.splitlines()]
    assert lines == [
        {"status": "moving", "digest": "sha256:00", "total": 10, "completed": 5},
        {"status": "success"},
    ]


# The conversation.


@pytest.fixture
def talk(server: Bench, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., str]]:
    """Runs a conversation of the given lines; returns what was printed."""

    def run(*lines: str | BaseException, **settings: Any) -> str:
        with connect() as client:
            Repl(ServerSession(client, "tiny", Settings(**settings)), read=reader_of(lines)).run()
        captured = capsys.readouterr()
        return captured.out + captured.err

    yield run


def test_a_conversation_keeps_its_history(talk: Callable[..., str], bodies: list[dict[str, Any]]) -> None:
    output = talk("hi", "more", "/clear", "again", system="S")
    assert output.count("ab" * 4) == 3
    assert "Cleared session context" in output
    chats = [body["messages"] for body in bodies if "messages" in body]
    system, answer = {"role": "system", "content": "S"}, {"role": "assistant", "content": "ab" * 4}
    assert chats[1] == [system, {"role": "user", "content": "hi"}, answer, {"role": "user", "content": "more"}]
    assert chats[2] == [system, {"role": "user", "content": "again"}]


def test_settings_of_a_conversation(talk: Callable[..., str], bodies: list[dict[str, Any]]) -> None:
    output = talk(
        "/set parameter num_ctx 128", "/set parameter temperature 0", "/set parameter num_ctx many", "/set format json",
        "/set format xml", "/set nothink", "/set wordwrap", "/show parameters", "hi", "/set noformat", "hi",
    )  # fmt: skip
    assert "Set parameter 'num_ctx' to '128'" in output
    assert "Couldn't set parameter: \"num_ctx cannot be 'many'\"" in output
    assert "Set format to 'json' mode." in output
    assert "Invalid or missing format." in output
    assert "Set 'nothink' mode." in output
    assert "Set 'wordwrap' mode." in output
    assert re.search(r"User defined parameters:\n  temperature +0.0\n  num_ctx +128", output)
    first, second = (body for body in bodies if "messages" in body)
    assert (first["format"], first["think"], first["options"]) == ("json", False, {"temperature": 0.0, "num_ctx": 128})
    assert "format" not in second


def test_load_and_list(server: Bench, talk: Callable[..., str], bodies: list[dict[str, Any]]) -> None:
    server.add("second", {"text": "2"})
    output = talk("/list", "/load nosuch", "/load second", "hi", "/load")
    assert "second:latest" in output
    assert "Couldn't find model 'nosuch'" in output
    assert "Loading model 'second'" in output
    assert "2222" in output
    assert "Usage:\n  /load <modelname>" in output


def test_the_conversation_that_a_model_starts_with(server: Bench, talk: Callable[..., str]) -> None:
    history = json.dumps([{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}])
    server.add(layers={MediaType.MESSAGES: history})
    assert ">>> 1\n2\n" in talk("/bye")


def test_an_error_keeps_the_conversation(talk: Callable[..., str], bodies: list[dict[str, Any]]) -> None:
    output = talk("/set parameter num_ctx -1", "hi", "/set parameter num_ctx 64", "hi")
    assert "Error: num_ctx of the request must be a positive whole number" in output
    assert "ab" * 4 in output
    assert [len(body["messages"]) for body in bodies if "messages" in body] == [1, 1]


def test_thinking_of_another_server_is_shown_apart(capsys: pytest.CaptureFixture[str]) -> None:
    events = [
        {"message": {"content": "", "thinking": "hm"}},
        {"message": {"content": "4"}},
        {"message": {"content": ""}, "done": True, "eval_count": 1, "eval_duration": 10**9},
    ]
    client: Any = SimpleNamespace(chat=lambda request: iter(events))
    for hidden, text in ((False, "Thinking...\nhm\n...done thinking.\n\n4\n"), (True, "4\n")):
        from rsllm.cli.run import stream_to

        session = ServerSession(client, "m")
        stream_to(session.answer("2+2"), hide_thinking=hidden)
        assert capsys.readouterr().out == text
        assert session.timings == [
            ("eval count", "1 token(s)"),
            ("eval duration", "1s"),
            ("eval rate", "1.00 tokens/s"),
        ]


class Terminal(io.StringIO):
    """Says that it is one."""

    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from rsllm.cli.progress import follow

    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    follow(
        [
            {"status": "pulling manifest"},
            {"status": "pulling [b]0123", "digest": "sha256:00", "total": 100},
            {"status": "pulling [b]0123", "digest": "sha256:00", "total": 100, "completed": 100},
            {"status": "success"},
        ]
    )
    text = screen.getvalue()
    assert "pulling manifest" in text
    assert "pulling [b]0123" in text
    assert "100%" in text
    assert "success" in text


def test_names_of_the_store_complete(server: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from rsllm.cli.common import complete_models

    monkeypatch.setenv("OLLAMA_MODELS", str(server.store.root))
    config.cache_clear()
    found = complete_models(None, None, "TI")  # type: ignore[arg-type]
    assert [(item.type, item.value) for item in found] == [("file", "TI"), ("plain", "tiny:latest")]


def test_help_of_a_command_by_name(rsllm_command: Run) -> None:
    assert rsllm_command("help", "run").stdout == rsllm_command("run", "--help").stdout
    assert rsllm_command("help").stdout == rsllm_command("--help").stdout
    assert rsllm_command("start", "--help").stdout.startswith("Usage: rsllm start")
    assert rsllm_command("help", "nosuch").exit_code == 2


def test_saving_a_conversation(server: Bench, talk: Callable[..., str]) -> None:
    output = talk("/set system S", "/set parameter seed 7", "hi", "/save mine", "/save a@b", "/save")
    assert "Created new model 'mine'" in output
    assert "error: The model name 'a@b' is invalid" in output
    assert "Usage:\n  /save <modelname>" in output
    stored = server.store.find(ModelName.parse("mine"))
    assert (stored.system, stored.parameters) == ("S", {"seed": 7})
    assert stored.messages == [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ab" * 4}]


THINK = "Thinking...\nHm, so\n...done thinking.\n\nYes.\n"


@pytest.mark.parametrize(
    ("flags", "sent", "printed"),
    [
        ([], None, THINK),
        (["--think"], True, THINK),
        (["--think=high"], "high", THINK),
        (["--think=low"], "low", THINK),
        (["--hidethinking"], None, "Yes.\n"),
        (["--think", "--hidethinking"], True, "Yes.\n"),
    ],
)
def test_thoughts_stand_apart_or_are_hidden(
    server: Bench, rsllm_command: Run, bodies: list[dict[str, Any]], flags: list[str], sent: Any, printed: str
) -> None:
    thinker(server)
    result = rsllm_command("run", "tiny", *flags, "hi", stdin="")
    assert (result.exit_code, result.stdout, result.stderr) == (0, printed, "")
    assert bodies[-1].get("think") == sent


def test_a_model_that_is_told_not_to_think(
    server: Bench, rsllm_command: Run, bodies: list[dict[str, Any]], talk: Callable[..., str]
) -> None:
    thinker(server, says=["Yes", "."])
    assert rsllm_command("run", "tiny", "--think=false", "hi", stdin="").stdout == "Yes.\n"
    assert bodies[-1]["think"] is False
    talk("/set think high", "hi", "/set nothink", "hi", "/set think", "hi")
    assert [body["think"] for body in bodies if "messages" in body] == ["high", False, True]
