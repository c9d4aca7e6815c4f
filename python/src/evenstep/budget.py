"""What evenstep may cost beside the training, and how often ranks exchange for it."""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable

#: The part of the time that exchanges may take of a core. Less than half of what a step may lose (0.5 %): the rest is
#: for what a step does itself, and for whatever else our threads disturb.
SHARE = 0.002

#: At first ranks exchange after each iteration: that is when the predictor learns most, and plans gain most.
WARM_UP = 16

#: Ratios this far above a whole number are that number, but for rounding.
_ROUNDING = 1e-6

#: Exchanges that a cost and a duration are the median of: the first ones open connections and files.
_REMEMBERED = 5


class Budget:
    """Says after how many iterations ranks exchange next, from what earlier exchanges cost."""

    def __init__(self, iterations_max: int, share: float = SHARE, clock: Callable[[], float] = time.monotonic) -> None:
        """Has seen nothing yet.

        Args:
            iterations_max: the most iterations between two exchanges; at least 1.
            share: CPU time that exchanges may take, over wall time.
            clock: counts seconds and never goes back.
        """
        self._iterations_max = iterations_max
        self._share = share
        self._clock = clock
        self._exchanges = 0
        self._last: tuple[int, float, float] | None = None
        self._costs_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._iterations_s: deque[float] = deque(maxlen=_REMEMBERED)

    def iterations(self, iteration: int, cpu_s: float) -> int:
        """Iterations until the next exchange, at that of ``iteration``; ``cpu_s`` is what all so far have cost."""
        now = self._clock()
        if self._last:
            last, then, before_s = self._last
            self._costs_s.append(cpu_s - before_s)
            self._iterations_s.append((now - then) / max(1, iteration - last))
        self._last = iteration, now, cpu_s
        self._exchanges += 1
        if self._exchanges < WARM_UP:
            return 1
        allowed_s = self._share * statistics.median(self._iterations_s)
        cost_s = statistics.median(self._costs_s)
        if cost_s >= allowed_s * self._iterations_max:
            return self._iterations_max
        return max(1, math.ceil(cost_s / allowed_s - _ROUNDING))
