"""Draft models: the text is the same with and without, and one that does not fit is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rsllm
from rsllm.config import config
from rsllm.errors import GgufError, OptionError
from rsllm.options import validate
from rsllm.runner.policy import RunnerOptions
from rsllm.runner.pool import RunnerPool
from rsllm.runner.scheduler import Settings
from rsllm.store.create import create
from rsllm.store.name import ModelName
from rsllm.store.request import CreateRequest
from rsllm.store.store import Store
from tests.support.twin import f32_twin

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(300)]

PROMPT = "Once upon a time there was a fox who"


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> Iterator[rsllm.Model]:
    """A model that reads five times as much as its draft model, which is the same in fewer bits."""
    with rsllm.load(f32_twin(smollm2_path), context=512, draft=smollm2_path) as model:
        yield model


def test_guesses_come_true_and_change_nothing(model: rsllm.Model) -> None:
    accepted = []
    cases: list[Any] = [{"temperature": 0}, {"temperature": 0.8}, {"temperature": 1.5, "top_k": 0}]
    for options in cases:
        plain = model.generate(PROMPT, seed=3, max_tokens=100, max_draft=0, **options)
        drafted = model.generate(PROMPT, seed=3, max_tokens=100, **options)
        assert (drafted.text, drafted.tokens) == (plain.text, plain.tokens)
        assert plain.stats.drafted_tokens == 0
        assert drafted.stats.accepted_tokens <= drafted.stats.drafted_tokens
        assert drafted.stats.warnings == ()
        accepted.append(drafted.stats.accepted_tokens)
    # Whether guesses pay is measured, so on a busy machine there may be few; the first is always tried.
    assert accepted[0] > 0


def test_it_is_part_of_the_report(model: rsllm.Model, smollm2_path: Path) -> None:
    draft = model.info()["draft"]
    assert (draft["architecture"], draft["context"], draft["parameters"]) == ("llama", 512, 134_515_008)
    with rsllm.load(smollm2_path, context=512) as alone:
        assert alone.info()["draft"] is None
        assert model.info()["kv_bytes"] == 2 * alone.info()["kv_bytes"]


def test_a_constrained_text_can_be_guessed_too(model: rsllm.Model) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}}, "required": ["name"]}
    options: Any = {"schema": schema, "temperature": 0.7, "seed": 4, "max_tokens": 60}
    plain = model.generate("A person as JSON: ", max_draft=0, **options)
    assert model.generate("A person as JSON: ", **options).text == plain.text


def test_what_cannot_draft_is_an_error_that_names_it(smollm2_path: Path, gemma3_path: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"draft model .*gemma.*: it has 262144 tokens, the model 49152"):
        rsllm.load(smollm2_path, draft=gemma3_path)
    with pytest.raises(FileNotFoundError):
        rsllm.load(smollm2_path, draft=tmp_path / "none.gguf")
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(smollm2_path.read_bytes()[:1000])
    with pytest.raises(GgufError, match="damaged"):
        rsllm.load(smollm2_path, draft=damaged)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """The store that names are looked up in."""
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    config.cache_clear()
    yield Store(tmp_path)
    config.cache_clear()


def test_the_draft_model_of_a_modelfile_is_used(smollm2_path: Path, gemma3_path: Path, store: Store) -> None:
    files = {path.name: store.add_blob(path)[0] for path in (f32_twin(smollm2_path), smollm2_path, gemma3_path)}
    large, small, other = files
    for name, draft in (("fits", small), ("does-not", other)):
        request = CreateRequest(files={large: files[large]}, draft_files={draft: files[draft]})
        for _ in create(store, ModelName.parse(name), request):
            pass
    with rsllm.load("fits", context=256) as model:
        assert model.info()["draft"]["name"]
        assert not any("draft" in warning for warning in model.info()["warnings"])
    with rsllm.load("does-not", context=256) as model:
        assert model.info()["draft"] is None
        assert any("no draft model is used" in warning for warning in model.info()["warnings"])


async def test_a_runner_has_one(smollm2_path: Path, gemma3_path: Path) -> None:
    large = f32_twin(smollm2_path)

    async def run(draft: Path | None, max_draft: int) -> tuple[str, int]:
        options = RunnerOptions(context=256, draft=None if draft is None else str(draft))
        async with pool.use(large, options=options) as model:
            ids = await model.tokenize([(PROMPT, True)], add_special=True)
            sampling = validate({"temperature": 0, "max_tokens": 60, "max_draft": max_draft})
            generation = await model.generate(ids, sampling)
            text = "".join([token async for token in generation])
            assert generation.stats is not None
            return text, generation.stats.accepted_tokens

    async with RunnerPool(Settings(max_loaded=1)) as pool:
        expected, accepted = await run(None, 0)
        assert accepted == 0
        text, accepted = await run(smollm2_path, 7)
        assert text == expected and accepted > 0  # the first guess is always tried
        assert pool.status()[0].info["draft"]["context"] == 256
        # One that does not fit is no reason to refuse the model.
        text, _ = await run(gemma3_path, 7)
        assert text == expected
        info = pool.status()[0].info
        assert info["draft"] is None and any("no draft model" in warning for warning in info["warnings"])
