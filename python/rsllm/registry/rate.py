"""Rate and time left of a transfer, from the progress it reports.

>>> rate = Rate()
>>> rate.update(0, now=10.0); rate.update(5_000_000, now=12.0)
>>> rate.bytes_per_second, rate.seconds_left(10_000_000)
(2500000.0, 2.0)

The rate is that of the last few seconds, so what a resumed transfer had already does not count, and a stall shows.
"""

from __future__ import annotations

from collections import deque

__all__ = ["Rate"]

_WINDOW_SECONDS = 5.0


class Rate:
    """Feed it `completed` as it comes; `now` is in seconds of any clock that does not jump."""

    def __init__(self, window_seconds: float = _WINDOW_SECONDS) -> None:
        self._window = window_seconds
        self._samples: deque[tuple[float, int]] = deque()

    def update(self, completed: int, *, now: float) -> None:
        """Note that `completed` bytes are there."""
        if self._samples and completed < self._samples[-1][1]:
            self._samples.clear()  # it began anew
        self._samples.append((now, completed))
        while len(self._samples) > 2 and self._samples[0][0] < now - self._window:
            self._samples.popleft()

    @property
    def bytes_per_second(self) -> float | None:
        """The rate; `None` before two moments are known."""
        if len(self._samples) < 2 or self._samples[-1][0] <= self._samples[0][0]:
            return None
        (start, before), (end, after) = self._samples[0], self._samples[-1]
        return (after - before) / (end - start)

    def seconds_left(self, total: int) -> float | None:
        """Seconds until `total` bytes are there at this rate; `None` where nothing moves."""
        rate = self.bytes_per_second
        return None if not rate else max(0, total - self._samples[-1][1]) / rate
