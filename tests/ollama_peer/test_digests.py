"""The same Modelfile has the same manifest, to the byte, whichever of the two programs makes the model.

What differs, and why, so that nobody looks for it in the digests:

- Ollama writes new weights from a GGUF that it is given (through `llama-quantize`), we keep the file as it is. Its own
  output it leaves as it is, and that is what these models are made from.
- Ollama recognises the chat template of some files and adds a Go template with its stop words as layers; we use the
  file's own template, and the layers of others where there are any (the last test).
- Ollama drops characters that Go does not print (no-break spaces, joiners of emoji) from a Modelfile, we control
  characters alone.
- `general.file_type` 0 is F32 here and unknown there.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rsllm.store.manifest import Manifest, MediaType
from rsllm.store.name import ModelName
from tests.ollama_peer.servers import Server, manifest_of

pytestmark = pytest.mark.timeout(120)

MODELFILES = {
    "plain": "FROM {weights}\n",
    "parameters": """FROM {weights}
PARAMETER temperature 0.5
PARAMETER stop "<a>"
PARAMETER stop b & c
PARAMETER num_ctx 64
PARAMETER top_p 1
PARAMETER seed 7
PARAMETER temperature 0.7
""",
    "floats": """FROM {weights}
PARAMETER temperature 1e-7
PARAMETER top_p 0.1
PARAMETER min_p 0.05
PARAMETER repeat_penalty 1.1
PARAMETER presence_penalty 0.333333343
PARAMETER frequency_penalty -1.5
""",
    "texts": '''FROM {weights}
SYSTEM """You are "x"
and <y> & 'z'."""
TEMPLATE """{{{{ .System }}}} {{{{ .Prompt }}}}"""
LICENSE MIT
LICENSE """
Long
licence
"""
MESSAGE user hi
MESSAGE assistant """hello
there"""
MESSAGE system be é<
''',
    "configuration": "FROM {weights}\nRENDERER qwen3-coder\nPARSER qwen3-coder\nREQUIRES v0.14.0\n",
    "lower-case": 'from {weights}\n# comment\n  parameter num_predict -1\n\nsystem "quoted"\nmessage user hi\n',
    "empty": 'FROM {weights}\nSYSTEM ""\n',
    "child": "FROM texts\nSYSTEM other\nPARAMETER temperature 1\n",
    "grandchild": "FROM child\nPARAMETER stop x\nLICENSE Apache\nMESSAGE user again\n",
    "more-parameters": "FROM parameters\nPARAMETER top_k 3\nPARAMETER stop z\n",
    "other-renderer": "FROM configuration\nRENDERER qwen3-vl-instruct\nSYSTEM x\n",
}


@pytest.fixture(scope="module")
def normal(ollama: Server, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights as Ollama writes them."""
    recipe = tmp_path_factory.mktemp("normal") / "Modelfile"
    recipe.write_text(f"FROM {tiny}\n")
    ollama.ollama("create", "normal", "-f", str(recipe)).ok()
    return ollama.store.find(ModelName.parse("normal")).weights


@pytest.fixture(scope="module")
def recipes(ollama: Server, rsllm: Server, normal: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All models, made by both; the folder of their Modelfiles."""
    folder = tmp_path_factory.mktemp("recipes")
    for name, text in MODELFILES.items():
        (folder / f"{name}.txt").write_text(text.format(weights=normal))
        ollama.ollama("create", name, "-f", str(folder / f"{name}.txt")).ok()
        rsllm.rsllm("create", name, "-f", str(folder / f"{name}.txt")).ok()
    return folder


@pytest.mark.parametrize("name", MODELFILES)
def test_manifests_are_the_same_to_the_byte(ollama: Server, rsllm: Server, recipes: Path, name: str) -> None:
    theirs, ours = manifest_of(ollama.store, name), manifest_of(rsllm.store, name)
    assert json.loads(ours.raw) == json.loads(theirs.raw)
    assert ours.raw == theirs.raw
    for layer in theirs.all_layers:
        assert rsllm.store.blob_path(layer.digest).read_bytes() == ollama.store.blob_path(layer.digest).read_bytes()


@pytest.mark.parametrize("name", MODELFILES)
def test_our_modelfile_makes_the_same_model_again(rsllm: Server, recipes: Path, name: str) -> None:
    recipe = rsllm.rsllm("show", "--modelfile", name).ok()
    rsllm.rsllm("create", "again", "-f", "-", stdin=recipe).ok()
    made, before = manifest_of(rsllm.store, "again"), manifest_of(rsllm.store, name)
    if "{weights}" not in MODELFILES[name]:  # its layers say where they are from, and lie in the order of their making
        assert sorted(_layers(made)) == sorted(_layers(before))
    else:
        assert made.raw == before.raw


def _layers(manifest: Manifest) -> list[tuple[str, str]]:
    return [(layer.media_type, str(layer.digest)) for layer in manifest.all_layers]


@pytest.mark.parametrize("name", ["texts", "parameters", "grandchild"])
def test_the_modelfiles_that_each_prints_make_that_model_at_the_other(
    ollama: Server, rsllm: Server, recipes: Path, tmp_path: Path, name: str
) -> None:
    for source, target in ((ollama.ollama, rsllm.rsllm), (rsllm.rsllm, ollama.ollama)):
        (tmp_path / "printed").write_text(source("show", "--modelfile", name).ok())
        target("create", "printed", "-f", str(tmp_path / "printed")).ok()
    # Ollama prints the template that it uses where a model has none.
    for server, default in ((ollama, None), (rsllm, "{{ .Prompt }}")):
        made, before = (server.store.find(ModelName.parse(one)) for one in ("printed", name))
        assert (made.system, made.licenses, made.messages) == (before.system, before.licenses, before.messages)
        assert made.parameters == before.parameters
        assert made.weights == before.weights
        assert made.template == (before.template or default)


def test_what_ollama_does_to_weights_and_templates(
    ollama: Server, rsllm: Server, smollm2_path: Path, tmp_path: Path
) -> None:
    (tmp_path / "Modelfile").write_text(f"FROM {smollm2_path}\n")
    for create in (ollama.ollama, rsllm.rsllm):
        create("create", "smollm2", "-f", str(tmp_path / "Modelfile")).ok()
    ours, theirs = (server.store.find(ModelName.parse("smollm2")) for server in (rsllm, ollama))
    assert ours.weights.read_bytes() == smollm2_path.read_bytes()
    assert [layer.media_type for layer in ours.manifest.layers] == [MediaType.MODEL]
    assert [layer.media_type for layer in theirs.manifest.layers] == [
        MediaType.MODEL,
        MediaType.TEMPLATE,
        MediaType.PARAMS,
    ]
    assert ours.config == theirs.config
    assert ours.weights.name != theirs.weights.name
