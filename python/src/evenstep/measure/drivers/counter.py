"""Differences of monotonic counters. An unknown value is `None`, never 0."""

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")

TICK_LOOKBACK_S = 0.1
"""Minimum window for CPU times of the machine, in seconds: they count in ticks of 10 ms."""

SNAPSHOT_SPACING_S = 0.012
"""Minimum distance of stored snapshots, in seconds; the window is at most this much longer."""


class Counter:
    """A kernel counter that only rises during the lifetime of its object."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        """Starts without a value."""
        self._last: float | None = None

    def advance(self, value: float | None) -> float | None:
        """Stores `value` and returns its increase since the previous one."""
        last, self._last = self._last, value
        if last is None or value is None or value < last:
            return None
        return value - last


class Lookback(Generic[T]):
    """Past values of a coarse counter, for differences over at least `TICK_LOOKBACK_S`."""

    __slots__ = ("_snapshots",)

    def __init__(self) -> None:
        """Starts without values."""
        self._snapshots: deque[tuple[float, T]] = deque()

    def advance(self, now: float, value: T | None) -> tuple[float, T] | None:
        """Stores `value` at `now` (seconds) and returns the newest value that is old enough, with its age.

        A missing value clears the history: a difference across it would include time without readings.
        """
        snapshots = self._snapshots
        if value is None:
            snapshots.clear()
            return None
        # The second value remains old enough, so the first is never needed again.
        while len(snapshots) > 1 and now - snapshots[1][0] >= TICK_LOOKBACK_S:
            snapshots.popleft()
        base = None
        if snapshots and now - snapshots[0][0] >= TICK_LOOKBACK_S:
            at, then = snapshots[0]
            base = (now - at, then)
        if not snapshots or now - snapshots[-1][0] >= SNAPSHOT_SPACING_S:
            snapshots.append((now, value))
        return base
