"""Readings of this process without an agent, directly from `/proc`; the names and units are the same."""

from evenstep.measure.drivers.counter import Lookback
from evenstep.measure.drivers.host import Host
from evenstep.measure.drivers.names import NAMES
from evenstep.measure.drivers.process import Process


class FromProc:
    """Reads this process and its machine; shares and rates are over the window since its previous reading."""

    def __init__(self) -> None:
        """Starts without a reading; the first one has only values that need no window."""
        self._host = Host()
        self._process = Process()
        self._cpu_s = Lookback[tuple[float, float]]()
        self._last: float | None = None

    def read(self, now: float) -> dict[str, float]:
        """Returns the available readings at `now` (seconds of a monotonic clock), in the order of `NAMES`."""
        window_s = None if self._last is None or now <= self._last else now - self._last
        self._last = now
        readings: dict[str, float] = {}
        self._host.read(now, window_s, readings)
        self._process.read(window_s, readings)
        other = self._other_cpu(now)
        if other is not None:
            readings["other_cpu"] = other
        return {name: readings[name] for name in NAMES if name in readings}

    def _other_cpu(self, now: float) -> float | None:
        """Returns the CPU time of everything else on the machine, in cores; the machine's time is in ticks."""
        busy_s, own_s = self._host.busy_s, self._process.cpu_s
        then = self._cpu_s.advance(now, None if busy_s is None else (busy_s, own_s))
        if busy_s is None or then is None:
            return None
        window_s, (busy_then_s, own_then_s) = then
        # On an idle machine, rounding to ticks can make it slightly negative.
        return max(((busy_s - busy_then_s) - (own_s - own_then_s)) / window_s, 0.0)
