"""rsllm runs large language models on the machine in front of you.

>>> import rsllm
>>> model = rsllm.load("demo")
>>> for token in model.stream("The capital of France is", max_tokens=8):
...     print(token, end="")

`load` gives a `Model`; `rsllm.gguf` reads model files; `rsllm.errors` is the tree of exceptions, whose root is
`RsllmError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rsllm import errors
from rsllm._core import __version__
from rsllm.errors import RsllmError
from rsllm.model import BenchResult, Model, load
from rsllm.streams import AsyncTokenStream, Logprob, Reply, Stats, Token, TokenStream

if TYPE_CHECKING:
    from rsllm import gguf

__all__ = [
    "AsyncTokenStream",
    "BenchResult",
    "Logprob",
    "Model",
    "Reply",
    "RsllmError",
    "Stats",
    "Token",
    "TokenStream",
    "__version__",
    "errors",
    "gguf",
    "load",
]


def __getattr__(name: str) -> Any:
    # `rsllm.gguf` needs numpy, which takes longer to import than everything else together.
    if name == "gguf":
        from importlib import import_module

        return import_module("rsllm.gguf")
    raise AttributeError(f"module 'rsllm' has no attribute {name!r}")
