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
from rsllm.errors import RsllmError

if TYPE_CHECKING:
    from rsllm import gguf
    from rsllm._core import __version__
    from rsllm.model import BenchResult, Model, load
    from rsllm.streams import AsyncTokenStream, Logprob, Reply, Stats, Token, TokenStream

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

# Imported when they are asked for: a command, a server or a runner, each a process of its own, needs few of them.
_MODULES = {
    "__version__": "_core",
    **dict.fromkeys(("BenchResult", "Model", "load"), "model"),
    **dict.fromkeys(("AsyncTokenStream", "Logprob", "Reply", "Stats", "Token", "TokenStream"), "streams"),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name != "gguf" and name not in _MODULES:
        raise AttributeError(f"module 'rsllm' has no attribute {name!r}")
    try:
        module = import_module(f"rsllm.{_MODULES.get(name, name)}")
    except ImportError as error:
        if (explained := errors.CoreImportError.of(error)) is None:
            raise
        raise explained from error
    value = globals()[name] = module if name == "gguf" else getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
