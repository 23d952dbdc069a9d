"""How a download is shown: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from typing import Protocol, TextIO

__all__ = ["Bar", "Progress", "Quiet", "default_progress", "format_bytes"]

_REDRAW_SECONDS = 0.1


class Progress(Protocol):
    """Who wants to know how a download goes. Bytes; a total of `None` is not known yet."""

    def start(self, label: str, total: int | None) -> None: ...
    def update(self, done: int, total: int | None) -> None: ...
    def finish(self) -> None: ...


class Quiet:
    """Says nothing."""

    def start(self, label: str, total: int | None) -> None: ...
    def update(self, done: int, total: int | None) -> None: ...
    def finish(self) -> None: ...


class Bar:
    """One line that is drawn over and over."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._label = ""
        self._started = 0.0
        self._drawn = 0.0

    def start(self, label: str, total: int | None) -> None:
        self._label = label
        self._started = time.monotonic()
        self._drawn = 0.0
        self.update(0, total)

    def update(self, done: int, total: int | None) -> None:
        now = time.monotonic()
        if now - self._drawn < _REDRAW_SECONDS:
            return
        self._drawn = now
        self._stream.write("\r" + self.line(done, total, shutil.get_terminal_size().columns) + "\x1b[K")
        self._stream.flush()

    def finish(self) -> None:
        self._stream.write("\r\x1b[K")
        self._stream.flush()

    def line(self, done: int, total: int | None, columns: int) -> str:
        """The line, no wider than the terminal."""
        seconds = time.monotonic() - self._started
        rate = f"{format_bytes(round(done / seconds))}/s" if seconds > 0.5 and done else ""
        if not total:
            return f"{self._label}  {format_bytes(done)}  {rate}"[: columns - 1]
        share = min(done / total, 1.0)
        right = f" {share:4.0%}  {format_bytes(done)} of {format_bytes(total)}  {rate:>10}"
        width = min(columns - len(self._label) - len(right) - 4, 40)
        if width < 5:
            return f"{self._label}{right}"[: columns - 1]
        filled = round(share * width)
        return f"{self._label} [{'#' * filled}{'.' * (width - filled)}]{right}"


def default_progress() -> Progress:
    """A bar where standard error is a terminal."""
    return Bar(sys.stderr) if sys.stderr is not None and sys.stderr.isatty() else Quiet()


def format_bytes(count: float) -> str:
    """A size in decimal units: `93 MB`, `2 GB`, `4.7 GB`."""
    units = ["B", "KB", "MB", "GB", "TB"]
    while count >= 1000 and len(units) > 1:
        count /= 1000
        del units[0]
    unit = units[0]
    return f"{count:.1f}".removesuffix(".0") + f" {unit}" if count < 10 else f"{count:.0f} {unit}"
