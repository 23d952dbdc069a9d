"""One store, a server of each program on it: what either writes, the other uses unchanged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rsllm.store.manifest import MediaType
from rsllm.store.name import ModelName
from tests.ollama_peer.servers import Server, manifest_of, ollama_server
from tests.support.stores import add_model, age, blobs

pytestmark = pytest.mark.timeout(120)

RECIPE = '''FROM {weights}
TEMPLATE """{{{{ if .System }}}}<s>{{{{ .System }}}}{{{{ end }}}}{{{{ .Prompt }}}}"""
SYSTEM You are terse.
PARAMETER temperature 0
PARAMETER num_predict 4
PARAMETER stop "<s>"
LICENSE """MIT
and more
of it"""
MESSAGE user hi
MESSAGE assistant hello
'''


@pytest.fixture(scope="module")
def models(ollama: Server, shared: Server, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """`theirs` by Ollama, `ours` by us; `Mixed/Case:Q8` and `hf.co/a/b:Q4` are copies by each."""
    recipe = tmp_path_factory.mktemp("recipe") / "Modelfile"
    recipe.write_text(RECIPE.format(weights=tiny))
    ollama.ollama("create", "theirs", "-f", str(recipe)).ok()
    shared.rsllm("create", "ours", "-f", str(recipe)).ok()
    ollama.ollama("cp", "theirs", "Mixed/Case:Q8").ok()
    shared.rsllm("cp", "ours", "hf.co/a/b:Q4").ok()


@pytest.fixture(scope="module")
def real(
    ollama: Server, shared: Server, models: None, smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A real model by each."""
    recipe = tmp_path_factory.mktemp("recipe") / "Modelfile"
    recipe.write_text(f'FROM {smollm2_path}\nTEMPLATE "{{{{ .Prompt }}}}"\n')
    ollama.ollama("create", "smol-theirs", "-f", str(recipe)).ok()
    shared.rsllm("create", "smol-ours", "-f", str(recipe)).ok()


def test_the_lists_agree(ollama: Server, shared: Server, models: None) -> None:
    theirs, ours = (
        {one["name"]: {**one, "modified_at": one["modified_at"][:19]} for one in server.get("/api/tags")["models"]}
        for server in (ollama, shared)
    )
    assert ours == theirs
    assert set(ours) == {"theirs:latest", "ours:latest", "Mixed/Case:Q8", "hf.co/a/b:Q4"}
    table = shared.ollama("list").ok()
    assert _cells(table) == _cells(ollama.ollama("list").ok()) == _cells(ollama.rsllm("list").ok())
    assert _cells(shared.rsllm("list").ok()) == _cells(table)


@pytest.mark.parametrize("name", ["theirs", "ours"])
@pytest.mark.parametrize("verbose", [False, True])
def test_what_show_tells_agrees(ollama: Server, shared: Server, models: None, name: str, verbose: bool) -> None:
    theirs, ours = (server.post("/api/show", model=name, verbose=verbose) for server in (ollama, shared))
    for both in (theirs, ours):
        both["modelfile"] = _known(both["modelfile"])
        both["parameters"] = sorted(both["parameters"].splitlines())
        both["modified_at"] = both["modified_at"][:19]
    assert theirs["details"].items() <= ours.pop("details").items(), "we tell the lengths as well"
    for key in set(ours) | (set(theirs) - {"details"}):
        assert ours.get(key) == theirs.get(key), key


@pytest.mark.parametrize("name", ["theirs", "ours"])
@pytest.mark.parametrize("flag", ["", "--license", "--modelfile", "--parameters", "--system", "--template"])
def test_what_the_show_command_prints_agrees(
    ollama: Server, shared: Server, models: None, name: str, flag: str
) -> None:
    flags = [flag] if flag else []
    printed = [_known(done.ok()) for server in (ollama, shared) for done in server.both("show", name, *flags)]
    assert all(sorted(text.split()) == sorted(printed[0].split()) for text in printed)


@pytest.mark.parametrize("name", ["smol-theirs", "smol-ours", "SMOL-ours"])
def test_both_run_what_either_made(ollama: Server, shared: Server, real: None, name: str) -> None:
    asked: dict[str, Any] = {
        "model": name,
        "prompt": "The capital of France is",
        "stream": False,
        "options": {"temperature": 0, "num_predict": 2, "seed": 1},
    }
    theirs, ours = (server.post("/api/generate", **asked) for server in (ollama, shared))
    assert "Paris" in ours["response"]
    # The same template over the same tokenizer is the same prompt, and two greedy tokens are not far enough
    # for rounding to lead elsewhere.
    for key in ("response", "prompt_eval_count", "eval_count", "done_reason"):
        assert ours[key] == theirs[key], key


def test_either_finds_the_other_ones_copies_and_removals_in_any_case(
    ollama: Server, shared: Server, models: None
) -> None:
    shared.rsllm("cp", "THEIRS", "copied").ok()
    ollama.ollama("show", "Copied").ok()
    ollama.ollama("rm", "copied").ok()
    assert shared.rsllm("show", "copied").error == "model 'copied:latest' not found"
    ollama.ollama("cp", "Ours", "back").ok()
    shared.rsllm("rm", "back").ok()
    assert ollama.ollama("show", "back").error == "model 'back:latest' not found"


def test_removing_a_model_leaves_what_the_other_programs_need(
    ollama: Server, shared: Server, models: None, tiny: Path, tmp_path: Path
) -> None:
    (tmp_path / "Modelfile").write_text(f"FROM {tiny}\nSYSTEM only here\n")
    shared.rsllm("create", "mine", "-f", str(tmp_path / "Modelfile")).ok()
    system = manifest_of(shared.store, "mine").of_type(MediaType.SYSTEM)[0]
    weights = shared.store.find(ModelName.parse("mine")).weights
    assert weights == shared.store.find(ModelName.parse("ours")).weights
    ollama.ollama("rm", "mine").ok()
    assert not shared.store.has_blob(system.digest) and weights.exists()
    ollama.ollama("create", "mine", "-f", str(tmp_path / "Modelfile")).ok()
    shared.rsllm("rm", "mine").ok()
    assert not shared.store.has_blob(system.digest)
    assert shared.store.find(ModelName.parse("theirs")).weights.exists()


def test_the_whole_store_is_whole(ollama: Server, shared: Server, real: None) -> None:
    assert "6 models" in _doctor(shared)


def test_ollamas_housekeeping_spares_ours(ollama_program: Path, tmp_path: Path, tiny: Path) -> None:
    """It starts on a store that we have used: models, locks, and a download that is not finished."""
    from rsllm.store.store import Store

    store = Store(tmp_path / "models")
    add_model(store, "kept", tiny.read_bytes(), system=b"be brief")
    orphan, _ = store.add_blob([b"nobody needs this"])
    partial = store.layout.blobs / f"sha256-{'1' * 64}-partial"
    for path in (partial, partial.with_name(partial.name + "-0")):
        path.write_bytes(b"{}")
    before = manifest_of(store, "kept").raw
    needed = {digest.file_name for digest in manifest_of(store, "kept").digests}
    for name in blobs(store):
        if not name.startswith(partial.name):
            age(store.layout.blobs / name, 7200)
    with ollama_server(tmp_path / "home", store.root) as server:
        assert [one["name"] for one in server.get("/api/tags")["models"]] == ["kept:latest"]
        assert not store.has_blob(orphan), "what no model needs is pruned"
        assert manifest_of(store, "kept").raw == before
        assert needed <= blobs(store)
        assert partial.exists(), "a download of this hour can be resumed"
        server.ollama("cp", "kept", "other").ok()
    assert [entry.name.short for entry in store.names()] == ["kept:latest", "other:latest"]


def test_the_key_that_ollama_made_is_ours(ollama: Server) -> None:
    from rsllm.registry.keys import load_or_create

    path = Path(ollama.environment["HOME"]) / ".ollama" / "id_ed25519"
    before = path.read_bytes()
    public = path.with_suffix(".pub").read_text().split()[1]
    assert load_or_create(path).authorization(b"challenge").partition(":")[0] == public
    assert path.read_bytes() == before


def _doctor(server: Server) -> str:
    command = [sys.executable, "-m", "rsllm", "doctor", "--store"]
    done = subprocess.run(command, env=server.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _cells(table: str) -> list[list[str]]:
    """Rows without the time."""
    return sorted(line.split()[:4] for line in table.splitlines()[1:])


def _known(text: str) -> str:
    """A Modelfile without what says who printed it, and its parameters in order: Ollama's have none."""
    lines = [line.rstrip() for line in text.replace('"ollama show"', '"rsllm show"').splitlines() if line.strip()]
    parameters = iter(sorted(line for line in lines if line.startswith("PARAMETER")))
    return "\n".join(next(parameters) if line.startswith("PARAMETER") else line for line in lines)
