"""Which exception is which answer: statuses and bodies of errors, in one place.

The body is `{"error": text}`, as Ollama's clients know it, with members of ours: `kind`, the class of `rsllm.errors`,
`hint`, what to do about it, where a prompt is too long `prompt_tokens` and `context`, and where it is our failure
`request_id`, by which the log has more of it. A mistake of the client is 400 even where Ollama says 500; 500 is for our
own failures.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import sys
import tempfile
from dataclasses import dataclass, field
from typing import Any

from rsllm import errors as rsllm_errors
from rsllm.errors import RsllmError
from rsllm.server import trace as tracing

__all__ = ["Answer", "ApiError", "answer"]

log = logging.getLogger("rsllm.server")

_BUSY = "server busy, please try again.  maximum pending requests exceeded"

# By class name, so that a class that a part brings along needs no import here; a subclass takes its parent's status.
STATUSES: dict[str, int] = {
    "OptionError": 400,
    "ContextLengthError": 400,
    "TemplateError": 400,
    "TokenizerError": 400,
    "DigestMismatchError": 400,
    "ModelfileError": 400,
    "ModelNotFoundError": 404,
    # What another server did is no failure of this one; where it is the asker's doing, it is his mistake.
    "AddressRefusedError": 400,
    "RegistryAuthError": 401,
    "DownloadError": 502,
    "EngineClosedError": 503,
    "QueueFullError": 503,
    "StoreFullError": 507,
    "RequestTimeoutError": 504,
}
_RETRY_SECONDS = {"QueueFullError": 1, "EngineClosedError": 5}


class ApiError(RsllmError):
    """An answer that is an error, said by a route itself."""

    def __init__(self, status: int, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status


@dataclass(frozen=True)
class Answer:
    """A status, a body and headers."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)


def answer(error: BaseException, *, hidden: str | None = None) -> Answer:
    """What the client is told; `hidden` is a folder whose name it is not.

    >>> answer(rsllm_errors.ModelNotFoundError("model 'x' not found")).body["error"]
    "model 'x' not found"
    """
    trace = tracing.current()
    if trace is not None:
        trace.error = type(error).__name__
    names = [kind.__name__ for kind in type(error).__mro__]
    status = next((STATUSES[name] for name in names if name in STATUSES), 500)
    if isinstance(error, ApiError):
        status, text = error.status, str(error)
    elif isinstance(error, rsllm_errors.QueueFullError):
        text = _BUSY
    elif isinstance(error, RsllmError):
        text = str(error)
    elif isinstance(error, OSError):  # its file is nobody's business
        log.error("%s", error)
        text = error.strerror or type(error).__name__
    else:
        log.error("an internal error", exc_info=error)
        text = f"internal error: {type(error).__name__}"
    if status >= 500 and isinstance(error, RsllmError):
        log.error("%s: %s", type(error).__name__, error)
    body: dict[str, Any] = {"error": without_folders(text, hidden)}
    if isinstance(error, RsllmError):
        if error.hint:
            body["hint"] = without_folders(error.hint, hidden)
        if not isinstance(error, ApiError):
            body["kind"] = type(error).__name__
    if isinstance(error, rsllm_errors.ContextLengthError):
        body |= {"prompt_tokens": error.prompt_tokens, "context": error.context}
    if status >= 500 and trace is not None:
        body["request_id"] = trace.id
    retry = next((_RETRY_SECONDS[name] for name in names if name in _RETRY_SECONDS), None)
    return Answer(status, body, {} if retry is None else {"retry-after": str(retry)})


def without_folders(text: str, hidden: str | None) -> str:
    """The text without the folders of this machine in it: the hidden one, the user's, Python's, where we lie.

    >>> without_folders("/store/blobs/x is cut short", "/store")
    'blobs/x is cut short'
    """
    folders = {*_private_folders(), *((hidden, os.path.realpath(hidden)) if hidden else ())}
    for folder in sorted(folders, key=len, reverse=True):
        folder = folder.rstrip("/") + "/"
        if folder != "/" and folder in text:
            # Not the middle of a longer path, nor of an address.
            text = re.sub(rf"(?<![\w/.:-]){re.escape(folder)}", "", text)
    return text


@functools.cache
def _private_folders() -> frozenset[str]:
    import rsllm

    package = os.path.dirname(os.path.dirname(rsllm.__file__))
    return frozenset({package, sys.prefix, sys.base_prefix, tempfile.gettempdir(), os.path.expanduser("~")})
