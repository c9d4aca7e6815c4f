"""Readings of this process from its clocks and `/proc`: CPU time, waiting for a core, context switches."""

import os
import resource
import time

from evenstep.measure.drivers.counter import Counter
from evenstep.measure.drivers.procfs import ProcFile

THREADS_MAX = 1024
"""Maximum number of threads for which `run_queue_wait` is read."""

THREAD_HANDLES_MAX = 128
"""Maximum number of threads whose files stay open; above it they are opened for each reading."""


class Process:
    """Reads this process; rates are over the window since its previous reading."""

    def __init__(self) -> None:
        """Starts without a reading."""
        self._cpu_ns = Counter()
        self._voluntary = Counter()
        self._involuntary = Counter()
        self._threads = Threads()
        self.cpu_s = 0.0
        """CPU time of this process at the previous reading, in seconds."""

    def read(self, window_s: float | None, readings: dict[str, float]) -> None:
        """Adds the available readings to `readings`; `window_s` is the time since the previous reading."""
        cpu_ns = time.process_time_ns()
        self.cpu_s = cpu_ns / 1e9
        usage = resource.getrusage(resource.RUSAGE_SELF)
        wait_ns = self._threads.wait_ns()
        rises = (
            ("own_cpu", self._cpu_ns.advance(cpu_ns), 1e-9),
            ("run_queue_wait", wait_ns, 1e-9),
            ("voluntary_switches_per_s", self._voluntary.advance(usage.ru_nvcsw), 1.0),
            ("involuntary_switches_per_s", self._involuntary.advance(usage.ru_nivcsw), 1.0),
        )
        for name, rise, unit in rises:
            if rise is not None and window_s:
                readings[name] = rise * unit / window_s


class Threads:
    """The time that this process's threads waited, runnable, for a core. Threads may start and end.

    The sum excludes a thread's wait between the last reading and its end, which is unknown.
    """

    def __init__(self) -> None:
        """Starts without a reading."""
        self._directory = f"/proc/{os.getpid()}/task"
        self._known: dict[str, tuple[ProcFile, int]] = {}
        self._listed_before = False

    def wait_ns(self) -> int | None:
        """Returns the wait of all threads since the previous call, in nanoseconds; `None` at the first call."""
        try:
            threads = os.listdir(self._directory)  # noqa: PTH208  # Only the names are needed, and this is cheaper.
        except OSError:
            threads = []
        if not 0 < len(threads) <= THREADS_MAX:
            self._known.clear()
            self._listed_before = False
            return None
        known, self._known = self._known, {}
        rise = 0
        for thread in threads:
            file, last = known.get(thread) or (ProcFile(f"{self._directory}/{thread}/schedstat"), -1)
            waited = parse_wait_ns(file.read())
            if len(threads) > THREAD_HANDLES_MAX:
                file.close()
            if waited is None:
                # The thread ended between the listing and the reading.
                continue
            if last < 0:
                # A thread in the first listing existed before; a thread found later started within a window.
                last = 0 if self._listed_before else waited
            rise += max(waited - last, 0)
            self._known[thread] = (file, waited)
        first, self._listed_before = not self._listed_before, True
        return None if first or not self._known else rise


def parse_wait_ns(text: bytes | None) -> int | None:
    """Returns the second field of `schedstat`: time run, time waited runnable (nanoseconds), times scheduled."""
    fields = (text or b"").split()
    return int(fields[1]) if len(fields) == 3 and all(map(bytes.isdigit, fields)) else None
