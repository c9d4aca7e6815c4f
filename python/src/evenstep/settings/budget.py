"""The overhead budget: how often ranks exchange reports and plans."""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable

#: Maximum CPU time of exchanges, as a fraction of one core. It is less than half of the 0.5 % that a step may lose: the
#: remainder covers the work inside the step and the disturbance by evenstep's threads.
SHARE = 0.002

#: Number of iterations at the start after each of which ranks exchange: the predictor learns most then, and plans
#: improve most.
WARM_UP = 16

#: Ratios above a whole number by at most this much are rounding errors and are rounded down.
_ROUNDING = 1e-6

#: Number of recent exchanges whose median cost and duration count: the first ones also open connections and files.
_REMEMBERED = 5


class Budget:
    """Computes the number of iterations until the next exchange from the cost of earlier exchanges."""

    def __init__(self, iterations_max: int, share: float = SHARE, clock: Callable[[], float] = time.monotonic) -> None:
        """Starts without measurements.

        Args:
            iterations_max: maximum number of iterations between two exchanges; at least 1.
            share: maximum ratio of the exchanges' CPU time to wall time.
            clock: monotonic clock in seconds.
        """
        self._iterations_max = iterations_max
        self._share = share
        self._clock = clock
        self._exchanges = 0
        self._last: tuple[int, float, float] | None = None
        self._costs_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._iterations_s: deque[float] = deque(maxlen=_REMEMBERED)

    def iterations(self, iteration: int, cpu_s: float) -> int:
        """Returns the number of iterations from ``iteration`` to the next exchange.

        Args:
            iteration: the iteration of the current exchange.
            cpu_s: CPU time of all exchanges up to now, in seconds.
        """
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
