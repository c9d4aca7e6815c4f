"""Log lines of rank 0 about changed shares."""

import logging
import time
from collections.abc import Callable

from evenstep._native import Plan

log = logging.getLogger("evenstep")

#: Minimum time between two lines, in seconds.
INTERVAL_S = 60.0

#: Number of ranks whose batches a line lists. With more ranks it has their range.
_LISTED_MAX = 16


class ShareLog:
    """Logs the local batches when they have changed, at most one line per :data:`INTERVAL_S`."""

    def __init__(self, first: Plan, clock: Callable[[], float] = time.monotonic, *, noun: str = "rank") -> None:
        """Starts with the first plan, which is not logged; ``clock`` is monotonic, in seconds."""
        self._noun, self._clock = noun, clock
        #: The plan of the last line and its local batches.
        self._told, self._batches = first, first.batches
        self._quiet_until = -float("inf")

    def see(self, iteration: int, plan: Plan) -> None:
        """Logs the plan in force from an iteration on if its local batches differ from the last line.

        A change within the interval is logged after it, if the batches still differ then.
        """
        if plan is self._told or self._clock() < self._quiet_until:
            return
        before, self._told, self._batches = self._batches, plan, plan.batches
        if self._batches == before:
            return
        self._quiet_until = self._clock() + INTERVAL_S
        noun, now, past = self._noun, self._text(self._batches), self._text(before)
        log.info("iteration %s: local batches by %s: %s; before: %s", iteration, noun, now, past)

    def _text(self, batches: list[int]) -> str:
        if len(batches) <= _LISTED_MAX:
            return ", ".join(map(str, batches))
        smallest, largest = min(batches), max(batches)
        return (
            f"{smallest} ({self._noun} {batches.index(smallest)}) to {largest} ({self._noun} "
            f"{batches.index(largest)}), {len(batches)} {self._noun}s"
        )
