"""Exceptions across the border of a process: taken apart on one side, rebuilt as the same class on the other.

Classes of `rsllm.errors` travel with their attributes, errors of the operating system with number, text and file. Of
Python's own classes only those travel that say something about a request; anything else arrives as a `RunnerError`
that names the class, since a child's `KeyError` is not one of the caller's.
"""

from __future__ import annotations

import inspect
from typing import Any

from rsllm import errors
from rsllm.errors import RsllmError, RunnerCrashedError, RunnerError
from rsllm.runner.protocol import Fault

__all__ = ["from_fault", "to_fault"]

_BUILTIN: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in (TypeError, ValueError, OverflowError, MemoryError)
}
# Far longer than any message of ours; a bound so that an error about a huge frame is not a huge frame.
_TEXT_LIMIT = 10_000


def to_fault(error: BaseException) -> Fault:
    """The exception taken apart."""
    kind = type(error).__name__
    if isinstance(error, RsllmError):
        names = _keywords(type(error))
        return Fault(kind, str(error)[:_TEXT_LIMIT], {name: _json(getattr(error, name, None)) for name in names})
    if isinstance(error, OSError):
        fields = {"errno": error.errno, "filename": None if error.filename is None else str(error.filename)}
        return Fault("OSError", str(error.strerror or error)[:_TEXT_LIMIT], fields)
    if isinstance(error, UnicodeError):  # its constructor takes five arguments; text is what is wrong
        return Fault("TokenizerError", f"the text is not valid Unicode: {error}"[:_TEXT_LIMIT], {})
    return Fault(kind, str(error)[:_TEXT_LIMIT], {})


def from_fault(fault: Fault) -> Exception:
    """The exception rebuilt. A fault that makes no sense is still an exception, and never runs anything."""
    if fault.kind in errors.__all__:
        kind = getattr(errors, fault.kind)
        known = _keywords(kind)
        made = kind(fault.message, **{name: value for name, value in fault.fields.items() if name in known})
        assert isinstance(made, RsllmError), "the module exports nothing else"
        if isinstance(made, RunnerCrashedError):  # JSON has no tuples
            lines = fault.fields.get("last_lines")
            made.last_lines = tuple(str(line) for line in lines) if isinstance(lines, list) else ()
        return made
    if fault.kind == "OSError":
        number, filename = fault.fields.get("errno"), fault.fields.get("filename")
        if not isinstance(number, int):
            return OSError(fault.message)
        return OSError(number, fault.message, filename) if filename is not None else OSError(number, fault.message)
    if fault.kind in _BUILTIN:
        return _BUILTIN[fault.kind](fault.message)
    return RunnerError(f"{fault.kind}: {fault.message}" if fault.message else fault.kind)


def _keywords(kind: type[RsllmError]) -> set[str]:
    parameters = inspect.signature(kind).parameters.values()
    return {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}


def _json(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_json(item) for item in value]
    return str(value)
