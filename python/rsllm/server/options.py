"""Ollama's options, from a request and from a model's parameters, as options of this engine.

What cannot be had here is answered with a warning and never dropped in silence: retired names that old clients send,
settings that this engine makes for itself, a context longer than the model can use. Wrong types and values out of range
are a 400 that names the option.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rsllm.errors import OptionError
from rsllm.options import MAX_DRAFT, OPTIONS, validate
from rsllm.runner import policy
from rsllm.runner.policy import RunnerOptions
from rsllm.server.errors import ApiError

__all__ = ["LOADING", "SAMPLING", "Options", "read"]

log = logging.getLogger("rsllm.server")

DEFAULT_NUM_KEEP = 4
FILL_CONTEXT = -2
_THREADS_LIMIT = 4096
_INT_LIMIT = 2**31 - 1

# What this engine decides for itself, and why a value has no effect.
_OWN = {
    "num_batch": "the engine chooses how many tokens it computes at once",
    "main_gpu": "this build has no GPU backend",
}
# Members of `rsllm.options` that have a field of their own in a request.
_FIELDS = {"schema": "format", "logprobs": "logprobs"}


@dataclass(frozen=True)
class Options:
    """What a request asks of the engine."""

    sampling: dict[str, Any]
    """Complete, as `rsllm.options.validate` returns it."""
    runner: RunnerOptions
    num_keep: int = DEFAULT_NUM_KEEP
    fills_context: bool = False
    """The answer is to be as long as the context has room for, whatever may happen then: `num_predict` -2."""
    warnings: list[str] = field(default_factory=list)


def read(
    request: Mapping[str, Any],
    parameters: Mapping[str, Any],
    *,
    environment_context: int | None = None,
    training_context: int | None = None,
    schema: Any = None,
    logprobs: int | None = None,
) -> Options:
    """Options of `request` over the model's `parameters`; raises `ApiError` and `OptionError`.

    >>> read({"num_predict": 8, "mirostat": 1}, {"temperature": 0.5}).warnings
    ["unknown option 'mirostat' was ignored"]
    """
    given = {
        **{name: value for name, value in parameters.items() if value is not None},
        **{name: value for name, value in request.items() if value is not None},
    }
    taken = _Taken({"schema": schema, "logprobs": logprobs})
    for name, value in given.items():
        taken.take(name, value)
    context = policy.context_size(
        _context("num_ctx", request), _context("num_ctx", parameters), environment_context, training_context
    )
    if context.reason.endswith(("cannot be used",)) or "lowered" in context.reason:
        taken.warnings.append(f"context: {context.reason}")
    for warning in taken.warnings:
        log.warning("%s", warning)
    return Options(
        sampling=_validated(taken.sampling),
        runner=RunnerOptions(context=context.tokens, threads=taken.threads(), mmap=taken.loading.get("use_mmap")),
        num_keep=taken.num_keep,
        fills_context=given.get("num_predict", given.get("max_tokens")) == FILL_CONTEXT,
        warnings=taken.warnings,
    )


@dataclass
class _Taken:
    """Options by what they are for, each converted."""

    sampling: dict[str, Any]
    loading: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    num_keep: int = DEFAULT_NUM_KEEP

    def take(self, name: str, value: Any) -> None:
        """The next one; raises `ApiError`."""
        if name in SAMPLING:
            ours, convert = SAMPLING[name]
            self.sampling[ours] = convert(name, value)
        elif name in LOADING:
            self.loading[name] = LOADING[name](name, value)
        elif name == "num_keep":
            self.num_keep = max(0, _integer(name, value))
        elif name == "num_gpu":
            if _integer(name, value) > 0:
                text = "option 'num_gpu' has no effect: this build has no GPU backend, all runs on the CPU"
                self.warnings.append(text)
        elif name == "draft_num_predict":
            self.sampling["max_draft"] = self._guesses(_integer(name, value))
        elif name in _OWN:
            _integer(name, value)
            self.warnings.append(f"option {name!r} has no effect: {_OWN[name]}")
        elif name in _FIELDS:
            raise ApiError(400, f"option {name!r} is the field {_FIELDS[name]!r} of a request")
        else:
            self.warnings.append(f"unknown option {name[:60]!r} was ignored")

    def _guesses(self, wanted: int) -> int:
        """Most tokens of a guess; a step verifies no more than it has room for."""
        if wanted > MAX_DRAFT:
            self.warnings.append(f"option 'draft_num_predict' {wanted} is more than a step verifies: {MAX_DRAFT}")
        return max(0, min(wanted, MAX_DRAFT))

    def threads(self) -> int | None:
        """How many are wanted; raises `OptionError`."""
        threads = self.loading.get("num_thread") or None
        if threads is not None and not 0 < threads <= _THREADS_LIMIT:
            raise OptionError(f"option num_thread must be from 0 to {_THREADS_LIMIT}, not {threads}", name="num_thread")
        return threads


def _validated(sampling: dict[str, Any]) -> dict[str, Any]:
    try:
        return validate(sampling)
    except OptionError as error:
        # The name by which the client knows it.
        theirs = {ours: name for name, (ours, _) in SAMPLING.items() if ours != name}
        name = error.name or ""
        if name == "schema":
            raise ApiError(400, f"invalid format: {error}") from None
        if name in theirs:
            raise OptionError(str(error).replace(name, theirs[name], 1), name=theirs[name]) from None
        raise


def _context(name: str, options: Mapping[str, Any]) -> int | None:
    value = options.get(name)
    number = None if value is None else _integer(name, value)
    return number or None  # 0: automatic


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value or abs(value) > 2**63:
        raise ApiError(400, f'option "{name}" must be of type integer')
    return int(value)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ApiError(400, f'option "{name}" must be of type float32')
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ApiError(400, f'option "{name}" must be of type boolean')
    return value


def _texts(name: str, value: Any) -> list[str]:
    if not isinstance(value, list):
        raise ApiError(400, f'option "{name}" must be of type array')
    if not all(isinstance(text, str) for text in value):
        raise ApiError(400, f'option "{name}" must be of type an array of strings')
    return [text for text in value if text]  # an empty one would end every answer at once


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ApiError(400, f'option "{name}" must be of type string')
    return value


def _or_none(name: str, value: Any) -> int | None:
    """A negative number stands for none."""
    number = _integer(name, value)
    return None if number < 0 else number


def _or_zero(name: str, value: Any) -> int:
    return max(0, min(_integer(name, value), _INT_LIMIT))


def _biases(name: str, value: Any) -> dict[int | str, Any]:
    if not isinstance(value, dict):
        raise ApiError(400, f'option "{name}" must be of type object')
    # JSON has no other keys than texts; digits are an id, as in every protocol.
    return {int(key) if key.isascii() and key.isdecimal() else key: bias for key, bias in value.items()}


SAMPLING: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "num_predict": ("max_tokens", _or_none),
    "max_tokens": ("max_tokens", _or_none),
    "seed": ("seed", _or_none),
    "top_k": ("top_k", _or_zero),
    "repeat_last_n": ("repeat_last_n", _integer),
    "stop": ("stop", _texts),
    "ignore_eos": ("ignore_eos", _flag),
    "max_draft": ("max_draft", _integer),
    "logit_bias": ("logit_bias", _biases),
    "regex": ("regex", _text),
    "grammar": ("grammar", _text),
    **{
        name: (name, _number)
        for name, option in OPTIONS.items()
        if isinstance(option.default, float)
    },
}  # fmt: skip
LOADING: dict[str, Callable[[str, Any], Any]] = {"num_ctx": _integer, "num_thread": _integer, "use_mmap": _flag}
