"""The log of the server: lines for people or JSON for machines, each with the id of its request.

A line is a time (UTC), a level, a logger, the id of the request that it belongs to (`-` where there is none), a
message, and named values. RSLLM_LOG_FORMAT chooses between `text`, where the values follow the message as `name=value`,
and `json`, an object a line. What clients send is never logged but for names (of models, paths, options), and no
character of those can begin a new line.

A log that is a file is one of limited size: it is put aside when it is full, and the oldest of those goes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rsllm.server.trace import request_id

__all__ = ["LOG_BYTES", "LOG_FILES", "JsonFormatter", "RotatingFile", "TextFormatter", "logging_to"]

LOG_BYTES = 5 << 20
LOG_FILES = 3
# Their news is ours to tell: requests, starts and ends have lines of their own.
_NOISY = ("httpx2", "httpcore2", "asyncio", "uvicorn.error")


class TextFormatter(logging.Formatter):
    """`2026-01-02T03:04:05.678Z INFO rsllm.server 1f2e3d4c5b6a GET /api/tags 200 outcome=ok total_ms=1.2`"""

    def format(self, record: logging.LogRecord) -> str:
        parts = [_time(record), record.levelname, record.name, _request(record), _one_line(record.getMessage())]
        parts += [f"{name}={_value(value)}" for name, value in _fields(record).items()]
        return "\n".join([" ".join(parts), *_traceback(self, record)])


class JsonFormatter(logging.Formatter):
    """The same as an object; a traceback is its member `traceback`."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "request_id": _request(record),
            "message": record.getMessage(),
            **_fields(record),
        }
        if lines := _traceback(self, record):
            entry["traceback"] = "\n".join(lines)
        return json.dumps(entry, ensure_ascii=True, default=str)


class RotatingFile(logging.handlers.RotatingFileHandler):
    """A file that is put aside when it is full, also for what is written to standard output and error.

    A server that a command has started has its log as those two, so that what Python itself or a library in C has to
    say at the end is in it. When the file is put aside they must follow, or they would fill the old one for ever.
    """

    def __init__(self, path: Path, limit_bytes: int = LOG_BYTES, files: int = LOG_FILES) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._followers = [number for number in (1, 2) if _is_open_at(number, path)]
        super().__init__(path, maxBytes=limit_bytes, backupCount=files - 1, encoding="utf-8")

    def doRollover(self) -> None:
        super().doRollover()
        if self.stream is not None:
            for number in self._followers:
                os.dup2(self.stream.fileno(), number)


@contextlib.contextmanager
def logging_to(file: Path | None, *, form: str = "text", detail: int = 0) -> Iterator[None]:
    """Log to a file, or else to standard error, for as long as the block lasts.

    With `detail` 1 what the server does is logged step by step, with 2 what its libraries do as well.
    """
    handler = logging.StreamHandler(sys.stderr) if file is None else RotatingFile(file)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    handler.addFilter(_add_request)
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG if detail else logging.INFO)
    for noisy in _NOISY:
        logging.getLogger(noisy).setLevel(logging.DEBUG if detail > 1 else logging.WARNING)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
        handler.close()


def _add_request(record: logging.LogRecord) -> bool:
    # Here and not in the formatter: it is the context of whoever logs that counts.
    if not hasattr(record, "request"):
        record.request = request_id.get()
    return True


def _request(record: logging.LogRecord) -> str:
    return str(getattr(record, "request", "-"))


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, Mapping) else {}


def _time(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _value(value: Any) -> str:
    text = str(value)
    plain = text.isprintable() and not set(text) & set(' "=')
    return text if text and plain else json.dumps(text)


def _one_line(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    lines = []
    if record.exc_info and record.exc_info[0] is not None:
        lines += formatter.formatException(record.exc_info).splitlines()
    if record.stack_info:
        lines += record.stack_info.splitlines()
    return lines


def _is_open_at(number: int, path: Path) -> bool:
    """Whether a file descriptor leads to the file of this path."""
    try:
        return os.path.samestat(os.fstat(number), path.stat())
    except OSError:
        return False
