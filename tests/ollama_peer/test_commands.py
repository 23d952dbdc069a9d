"""Each program's commands at the other's server: `rsllm` in place of `ollama`, and the reverse."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ollama_peer.servers import Done, Server, manifest_of
from tests.support.registry import MISSING, docker_registry

pytestmark = pytest.mark.timeout(120)

Command = Callable[..., Done]


@pytest.fixture(scope="module")
def ollama(ollama: Server, smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Server:
    return _filled(ollama, smollm2_path, tmp_path_factory.mktemp("recipe"))


@pytest.fixture(scope="module")
def rsllm(rsllm: Server, smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Server:
    return _filled(rsllm, smollm2_path, tmp_path_factory.mktemp("recipe"))


def _filled(server: Server, weights: Path, folder: Path) -> Server:
    """With `m`, a model that answers in a few words."""
    recipe = folder / "Modelfile"
    recipe.write_text(
        f'FROM {weights}\nTEMPLATE "{{{{ .System }}}}{{{{ .Prompt }}}}"\nPARAMETER temperature 0\n'
        "PARAMETER num_predict 2\nPARAMETER seed 1\nLICENSE MIT\n"
    )
    command = server.ollama if server.kind == "rsllm" else server.rsllm
    command("create", "m", "-f", str(recipe)).ok()
    return server


@pytest.fixture(params=["ollama at rsllm", "rsllm at ollama", "ollama at ollama"])
def meeting(request: pytest.FixtureRequest, ollama: Server, rsllm: Server) -> tuple[Command, Server]:
    """A command and a server; the last pair is what the others are measured by."""
    program, _, server = str(request.param).partition(" at ")
    served = {"ollama": ollama, "rsllm": rsllm}[server]
    return {"ollama": served.ollama, "rsllm": served.rsllm}[program], served


def test_list_show_cp_rm(meeting: tuple[Command, Server]) -> None:
    command, _ = meeting
    assert command("cp", "m", "copy/of:it").ok().strip() == "copied 'm' to 'copy/of:it'"
    rows = [line.split() for line in command("list").ok().splitlines()]
    assert rows[0] == ["NAME", "ID", "SIZE", "MODIFIED"]
    assert [row[0] for row in rows[1:]] == ["copy/of:it", "m:latest"]
    assert rows[1][1:4] == rows[2][1:4] and rows[1][2:4] == ["98", "MB"]
    assert [line.split()[0] for line in command("list", "COPY").ok().splitlines()[1:]] == ["copy/of:it"]
    shown = command("show", "copy/of:it").ok()
    for line in ("architecture llama", "parameters 134.52M", "quantization Q4_1", "context length 8192"):
        assert line in re.sub(r" +", " ", shown)
    assert command("show", "--license", "m").ok().strip() == "MIT"
    assert "FROM " in command("show", "--modelfile", "m").ok()
    assert command("show", "m", "--template").ok().strip() == "{{ .System }}{{ .Prompt }}"
    assert "seed" in command("show", "m", "--parameters").ok()
    assert command("show", "m", "--system").ok().strip() == ""
    assert "general.architecture" in command("show", "-v", "m").ok()
    assert "only one of" in command("show", "m", "--system", "--license").error
    assert command("rm", "copy/of:it").ok().strip() == "deleted 'copy/of:it'"
    assert command("rm", "copy/of:it").error == "model 'copy/of:it' not found"
    assert "not found" in command("show", "copy/of:it").error
    assert "not found" in command("cp", "copy/of:it", "x").error


def test_run_ps_stop(meeting: tuple[Command, Server]) -> None:
    command, server = meeting
    said = command("run", "m", "The capital of France is", "--verbose")
    assert said.ok().strip().startswith("Paris")
    for line in ("total duration:", "load duration:", "prompt eval count:    5 token(s)", "eval rate:"):
        assert line in said.err
    (loaded,) = command("ps").ok().splitlines()[1:]
    assert loaded.split()[0] == "m:latest" and "100%" in loaded and "from now" in loaded
    assert command("ps", "x").ok().splitlines()[1:] == []
    said = command("run", "m", "Paris?", "--verbose", stdin="The capital of France is")
    assert said.code == 0 and "prompt eval count:    7 token(s)" in said.err, said.err
    assert command("run", "m", "--format", "json", "A list:").ok().strip()[:1] in ("{", "")
    assert command("stop", "m").ok() == ""
    assert _eventually_gone(command)
    assert "couldn't find model" in command("stop", "nothing").error
    assert command("run", "m", "", "--keepalive", "1m").ok().strip() == ""
    assert command("ps").ok().count("m:latest") == 1
    command("stop", "m").ok()
    assert server.get("/api/version")["version"] == "0.33.0"


def _eventually_gone(command: Command) -> bool:
    for _ in range(100):
        if len(command("ps").ok().splitlines()) == 1:
            return True
        time.sleep(0.1)
    return False


def test_create_of_a_name_and_of_a_modelfile_that_show_printed(meeting: tuple[Command, Server], tmp_path: Path) -> None:
    command, server = meeting
    (tmp_path / "Modelfile").write_text("FROM m\nSYSTEM Be brief.\nPARAMETER top_k 3\n")
    command("create", "child", "-f", str(tmp_path / "Modelfile")).ok()
    assert command("show", "child", "--system").ok().strip() == "Be brief."
    assert server.post("/api/show", model="child")["details"]["parent_model"] == "m:latest"
    (tmp_path / "printed").write_text(command("show", "--modelfile", "child").ok())
    command("create", "printed", "-f", str(tmp_path / "printed")).ok()
    theirs, ours = manifest_of(server.store, "child"), manifest_of(server.store, "printed")
    assert theirs.digests == ours.digests
    assert "no FROM line" in command("create", "bad", "-f", str(_written(tmp_path, "SYSTEM x\n"))).error
    unknown = command("create", "bad", "-f", str(_written(tmp_path, "FROM m\nPARAMETER nothing 1\n"))).error
    assert "unknown parameter 'nothing'" in unknown
    command("rm", "child", "printed").ok()


def _written(folder: Path, text: str) -> Path:
    path = folder / "other"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    import shutil

    if shutil.which("docker-registry") is None:
        pytest.skip(MISSING)
    with docker_registry(tmp_path_factory.mktemp("registry")) as host:
        yield host


def test_push_and_pull(meeting: tuple[Command, Server], registry: str, request: pytest.FixtureRequest) -> None:
    command, server = meeting
    name = f"{registry}/team/{request.node.callspec.id.replace(' ', '-')}:v1"
    command("cp", "m", name).ok()
    before = manifest_of(server.store, name)
    command("push", "--insecure", name).ok()
    command("rm", name).ok()
    command("pull", "--insecure", name).ok()
    after = manifest_of(server.store, name)
    assert after.all_layers == before.all_layers
    if server.kind == "rsllm":  # Ollama writes a manifest anew when it pushes, without the end of its line
        assert after.raw == before.raw
    command("rm", name).ok()
    assert "file does not exist" in command("pull", "--insecure", f"{registry}/team/nothing").error


def test_what_is_wrong_is_said_alike(meeting: tuple[Command, Server]) -> None:
    command, _ = meeting
    assert command("show").code != 0
    assert command("nonsense").code != 0
    assert "invalid" in command("create", "a b", "-f", "/dev/null").error
    assert "invalid value for --think" in command("run", "m", "--think=perhaps", "hi").error
    assert "does not support thinking" in command("run", "m", "--think", "hi").err
