"""The examples in docstrings, run on a real model. Where an example shows a result, it must be that one."""

from __future__ import annotations

import doctest
import importlib
import io
import pkgutil
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import rsllm
from rsllm.chat.template import ChatTemplate
from rsllm.config import config
from rsllm.options import validate
from tests.support import assets

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(120)]

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(rsllm.__path__, "rsllm.")
    if module.name not in ("rsllm._core", "rsllm.__main__")
)


@pytest.fixture(scope="module")
def names(smollm2_path: Path) -> Iterator[dict[str, object]]:
    """What examples may use without making it: a model, and a conversation with it."""
    with rsllm.load(smollm2_path, context=512) as model:
        chat = model.chat()
        yield {"rsllm": rsllm, "model": model, "chat": chat, "ChatTemplate": ChatTemplate, "validate": validate}


@pytest.mark.parametrize("module", ["rsllm", *MODULES])
def test_examples(
    module: str,
    names: dict[str, object],
    smollm2_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "model.gguf").symlink_to(smollm2_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RSLLM_CACHE", str(assets.cache_dir() / "rsllm-cache"))
    config.cache_clear()
    imported = importlib.import_module(module)
    for test in doctest.DocTestFinder(exclude_empty=True).find(imported, extraglobs=names):
        scope = {**test.globs}
        for example in test.examples:
            printed = io.StringIO()
            with redirect_stdout(printed):
                exec(compile(example.source, f"<{test.name}>", "single"), scope)
            if example.want:
                assert printed.getvalue() == example.want, f"{test.name}, line {example.lineno}"
        made = scope.get("model")
        if isinstance(made, rsllm.Model) and made is not names["model"]:
            made.close()
    config.cache_clear()
