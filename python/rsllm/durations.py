"""Durations as Go writes them, since Ollama's clients and variables do: `300ms`, `1.5h`, `1h30m`, `-1s`, `0`."""

from __future__ import annotations

import re

__all__ = ["DurationError", "parse_duration"]

# A duration is a signed 64-bit count of nanoseconds.
_LIMIT_NANOSECONDS = 2**63
_UNITS = {
    "ns": 1,
    "us": 10**3,
    "\u00b5s": 10**3,  # micro sign
    "\u03bcs": 10**3,  # Greek mu
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?([^0-9.]*)")
# Longer numbers overflow anyway; Go keeps as many digits of a fraction as fit.
_DIGITS = 20


class DurationError(ValueError):
    """A text is no duration; the message is the one that Go gives."""


def parse_duration(text: str) -> float:
    """Seconds of a duration.

    A decimal number with a unit, or several one after the other; a sign before all of it. Only `0` needs no unit.

    >>> parse_duration("1h30m")
    5400.0
    """
    rest = text[1:] if text[:1] in ("+", "-") else text
    sign = -1 if text.startswith("-") else 1
    if rest == "0":
        return 0.0
    if not rest:
        raise DurationError(f'time: invalid duration "{text}"')
    total = 0
    while rest:
        match = _PART.match(rest)
        assert match is not None, "every part of the pattern may be empty"
        whole, fraction, unit = match[1], match[2] or "", match[3]
        if not whole and not fraction:
            raise DurationError(f'time: invalid duration "{text}"')
        if not unit:
            raise DurationError(f'time: missing unit in duration "{text}"')
        if unit not in _UNITS:
            raise DurationError(f'time: unknown unit "{unit}" in duration "{text}"')
        if len(whole.lstrip("0")) > _DIGITS:
            raise DurationError(f'time: invalid duration "{text}"')
        fraction = fraction[:_DIGITS]
        total += (int(whole or "0") * 10 ** len(fraction) + int(fraction or "0")) * _UNITS[unit] // 10 ** len(fraction)
        rest = rest[match.end() :]
    if total >= _LIMIT_NANOSECONDS and not (sign < 0 and total == _LIMIT_NANOSECONDS):
        raise DurationError(f'time: invalid duration "{text}"')
    return sign * total / 1e9
