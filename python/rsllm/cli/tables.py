"""How lists look: columns as Ollama aligns them, sizes, and times in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

__all__ = ["ago", "columns", "from_now", "human_bytes", "human_duration", "parse_time"]

_UNITS = ("B", "KB", "MB", "GB", "TB", "PB", "EB")
_FOREVER_SECONDS = 20 * 365 * 24 * 3600


def columns(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table: left aligned, four spaces between the columns, the header always there."""
    cells = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    return "\n".join(
        "".join(cell.ljust(width + 4) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    )


def human_bytes(count: int) -> str:
    """A size in powers of 1000.

    >>> human_bytes(999), human_bytes(2_019_393_189), human_bytes(98_000_000), human_bytes(1_500)
    ('999 B', '2 GB', '98 MB', '1.5 KB')
    """
    value, unit = float(count), 0
    while value >= 1000 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    if value >= 10 or unit == 0:
        return f"{int(value)} {_UNITS[unit]}"
    text = f"{value:.1f}".removesuffix(".0")
    return f"{text} {_UNITS[unit]}"


def human_duration(seconds: float) -> str:
    """A time in words, as Ollama rounds it.

    >>> human_duration(0.2), human_duration(65), human_duration(7200), human_duration(3 * 86400)
    ('Less than a second', 'About a minute', '2 hours', '3 days')
    """
    whole = int(seconds)
    if whole < 2:
        return "Less than a second" if whole < 1 else "1 second"
    minutes, hours = whole // 60, round(whole / 3600)
    days = int(seconds / 3600 / 24)
    for holds, text in (
        (whole < 60, f"{whole} seconds"),
        (minutes == 1, "About a minute"),
        (minutes < 60, f"{minutes} minutes"),
        (hours == 1, "About an hour"),
        (hours < 48, f"{hours} hours"),
        (days < 14, f"{days} days"),
        (days < 60, f"{days // 7} weeks"),
        (days < 730, f"{days // 30} months"),
    ):
        if holds:
            return text
    return f"{days // 365} years"


def ago(then: datetime | None, now: datetime) -> str:
    """How long ago something was."""
    if then is None or then.year <= 1970:
        return "Never"
    seconds = (now - then).total_seconds()
    return f"{human_duration(seconds)} ago" if seconds >= 0 else f"{human_duration(-seconds)} from now"


def from_now(then: datetime | None, now: datetime) -> str:
    """How long a model stays."""
    if then is None:
        return "Never"
    seconds = (then - now).total_seconds()
    if seconds > _FOREVER_SECONDS:
        return "Forever"
    return f"{human_duration(seconds)} from now" if seconds > 0 else "Stopping..."


def parse_time(text: str) -> datetime | None:
    """A time as RFC 3339, with any number of digits after the second; `None` where it is none."""
    before, dot, rest = text.partition(".")
    if dot:
        digits = len(rest) - len(rest.lstrip("0123456789"))
        text = f"{before}.{rest[: min(digits, 6)]:0<6}{rest[digits:]}"
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None else time.astimezone()
