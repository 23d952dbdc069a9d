"""Long work on a terminal: a line for what is being done, a bar for each file. In a pipe it is silent."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["follow"]

Event = dict[str, Any]


def follow(events: Iterable[Event], *, as_json: bool = False) -> None:
    """Show the progress of pull, push or create until its end; as JSON, each event is a line on standard output."""
    if as_json:
        for event in events:
            click.echo(json.dumps(event, ensure_ascii=False))
        return
    with _display() as display:
        for event in events:
            if display is not None:
                display.show(event)


@contextmanager
def _display() -> Iterator[_Display | None]:
    if sys.stderr is None or sys.stderr.closed or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    from rsllm.config import config

    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
        console=Console(stderr=True, no_color=config().no_color or None, highlight=False),
        expand=True,
    )
    with progress:
        yield _Display(progress)


class _Display:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: dict[str, TaskID] = {}
        self._last = ""

    def show(self, event: Event) -> None:
        """One event: with a digest it moves a bar, otherwise it is a line."""
        status, digest, total = str(event.get("status", "")), event.get("digest"), event.get("total")
        if digest and total is not None:
            key = f"{status} {digest}"
            if key not in self._bars:
                self._bars[key] = self._progress.add_task(status, total=total)
            self._progress.update(self._bars[key], completed=event.get("completed") or 0, total=total)
        elif status and status != self._last:
            self._progress.console.print(status, markup=False)
        self._last = status
