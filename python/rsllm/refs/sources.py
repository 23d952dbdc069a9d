"""References that are no names, and the names that they get in the store.

============================  ====================================================================
reference                     becomes
============================  ====================================================================
`pypi:package[==version]`     `pypi/library/package:version`, `:latest` where none is given
`file:path`                   `file/library/<stem of the file>:latest`
`demo`                        `demo:latest`, the pinned demo model
============================  ====================================================================
"""

from __future__ import annotations

import re
from pathlib import Path

from rsllm.refs import is_demo
from rsllm.store.name import DEFAULT_NAMESPACE, DEFAULT_TAG, ModelName

__all__ = ["is_source", "source_name"]

_SHARD = re.compile(r"(?P<stem>.+)-\d{5}-of-\d{5}", re.ASCII)
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+", re.ASCII)
_LONGEST = 80


def is_source(reference: str) -> bool:
    """Whether it is a reference of this module, and no name."""
    return is_demo(reference) or reference.startswith(("pypi:", "file:"))


def source_name(reference: str) -> ModelName:
    """The name that a reference gets in the store; raises `ModelNameError`."""
    if is_demo(reference):
        return ModelName.parse("demo")
    kind, _, rest = reference.partition(":")
    if kind == "pypi":
        package, _, version = rest.partition("==")
        model, tag = re.sub(r"[-_.]+", "-", package.strip()).lower(), version.strip() or DEFAULT_TAG
    else:
        stem = Path(rest).name
        stem = stem[:-5] if stem.lower().endswith(".gguf") else stem
        shard = _SHARD.fullmatch(stem)
        model, tag = shard["stem"] if shard else stem, DEFAULT_TAG
    return ModelName(kind, DEFAULT_NAMESPACE, _spelled(model), _spelled(tag)).validated()


def _spelled(text: str) -> str:
    """Without what names must not have in them."""
    return _NOT_IN_NAMES.sub("-", text).lstrip("-.")[:_LONGEST]
