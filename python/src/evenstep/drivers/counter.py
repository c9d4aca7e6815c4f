"""Differences of counters that only rise. What is not known is `None`, never 0."""

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")

TICK_LOOKBACK_S = 0.1
"""CPU times of the machine count in ticks of 10 ms: their differences look back at least this far."""

SNAPSHOT_SPACING_S = 0.012
"""Snapshots closer together are not kept: the look-back is at most this much longer."""


class Counter:
    """A counter of the kernel's that only rises while whatever it belongs to lives."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        """Has seen nothing yet."""
        self._last: float | None = None

    def advance(self, value: float | None) -> float | None:
        """Remembers `value` and gives how far it rose since the last one."""
        last, self._last = self._last, value
        if last is None or value is None or value < last:
            return None
        return value - last


class Lookback(Generic[T]):
    """Past values of a coarse counter, to difference over at least `TICK_LOOKBACK_S`."""

    __slots__ = ("_snapshots",)

    def __init__(self) -> None:
        """Has seen nothing yet."""
        self._snapshots: deque[tuple[float, T]] = deque()

    def advance(self, now: float, value: T | None) -> tuple[float, T] | None:
        """Remembers `value` at `now` (seconds); gives the youngest that is old enough, with its age.

        A value that is missing forgets all: a difference over it would span a time that nobody watched.
        """
        snapshots = self._snapshots
        if value is None:
            snapshots.clear()
            return None
        # The second stays old enough for ever, so nothing will look back past it again.
        while len(snapshots) > 1 and now - snapshots[1][0] >= TICK_LOOKBACK_S:
            snapshots.popleft()
        base = None
        if snapshots and now - snapshots[0][0] >= TICK_LOOKBACK_S:
            at, then = snapshots[0]
            base = (now - at, then)
        if not snapshots or now - snapshots[-1][0] >= SNAPSHOT_SPACING_S:
            snapshots.append((now, value))
        return base
