"""Readings of the machine from `/proc`: pressure, CPU time, runnable and blocked tasks, memory."""

import os
from dataclasses import dataclass

from evenstep.measure.drivers.counter import Counter, Lookback
from evenstep.measure.drivers.procfs import ProcFile


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """CPU time of all cores since boot, in ticks; steal is the time taken by the hypervisor."""

    busy: int
    idle: int
    iowait: int
    steal: int


class Host:
    """Reads the machine; shares are over the window since its previous reading."""

    def __init__(self) -> None:
        """Starts without a reading."""
        self._pressures = [
            (f"psi_{resource}_some", ProcFile(f"/proc/pressure/{resource}"), Counter())
            for resource in ("cpu", "memory", "io")
        ]
        self._stat = ProcFile("/proc/stat")
        self._loadavg = ProcFile("/proc/loadavg")
        self._meminfo = ProcFile("/proc/meminfo")
        self._cpu_times = Lookback[CpuTimes]()
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self.busy_s: float | None = None
        """CPU time of all cores together at the previous reading, in seconds since boot."""

    def read(self, now: float, window_s: float | None, readings: dict[str, float]) -> None:
        """Adds the available readings to `readings`; `now` in seconds, `window_s` since the previous reading."""
        for name, file, counter in self._pressures:
            waited_us = counter.advance(pressure_total_us(file.read()))
            if waited_us is not None and window_s:
                # The counter is read slightly after `now`, so a window of constant waiting may exceed 1.
                readings[name] = min(waited_us / 1e6 / window_s, 1.0)
        times, blocked = parse_stat(self._stat.read())
        self.busy_s = None if times is None else times.busy / self._ticks_per_s
        then = self._cpu_times.advance(now, times)
        if times is not None and then is not None:
            busy = busy_share(times, then[1])
            if busy is not None:
                readings["cpu_busy"] = busy
        if blocked is not None:
            readings["procs_blocked"] = float(blocked)
        running = parse_running(self._loadavg.read())
        if running is not None:
            readings["procs_running"] = float(running)
        used = parse_memory_used(self._meminfo.read())
        if used is not None:
            readings["memory_used"] = used


def pressure_total_us(text: bytes | None) -> int | None:
    """Returns the time that some task waited, in microseconds, from a file of `/proc/pressure`."""
    if text is None or not text.startswith(b"some "):
        return None
    at = text.find(b"total=")
    return None if at < 0 else _whole(text[at + 6 : text.find(b"\n")])


def parse_stat(text: bytes | None) -> tuple[CpuTimes | None, int | None]:
    """Returns the CPU times of all cores and the number of tasks blocked on I/O, from `/proc/stat`."""
    if text is None:
        return None, None
    times = None
    if text.startswith(b"cpu "):
        # Guest time is included in user time.
        fields = text[: text.find(b"\n")].split()[1:9]
        if len(fields) == 8 and all(map(bytes.isdigit, fields)):
            user, nice, system, idle, iowait, irq, softirq, steal = map(int, fields)
            times = CpuTimes(user + nice + system + irq + softirq, idle, iowait, steal)
    # The line is near the end, after interrupt lines that may be long.
    at = text.rfind(b"\nprocs_blocked ")
    return times, None if at < 0 else _whole(text[at + 15 : text.find(b"\n", at + 15)])


def busy_share(now: CpuTimes, then: CpuTimes) -> float | None:
    """Returns the busy share of all cores' time between two readings, 0 to 1.

    Idle and I/O wait time sometimes decrease by a tick; such a decrease counts as 0.
    """
    busy, steal = now.busy - then.busy, now.steal - then.steal
    total = busy + steal + max(now.idle - then.idle, 0) + max(now.iowait - then.iowait, 0)
    return busy / total if busy >= 0 and steal >= 0 and total > 0 else None


def parse_running(text: bytes | None) -> int | None:
    """Returns the number of runnable tasks, including the reader, from `/proc/loadavg`."""
    fields = (text or b"").split()
    return _whole(fields[3].partition(b"/")[0]) if len(fields) > 3 else None


def parse_memory_used(text: bytes | None) -> float | None:
    """Returns the share of memory that is not available, 0 to 1, from `/proc/meminfo`."""
    total, available = _kilobytes(text, b"MemTotal:"), _kilobytes(text, b"MemAvailable:")
    if not total or available is None:
        return None
    return min(max(1.0 - available / total, 0.0), 1.0)


def _kilobytes(text: bytes | None, name: bytes) -> int | None:
    at = -1 if text is None else text.find(name)
    if text is None or at < 0:
        return None
    return _whole(text[at + len(name) : text.find(b"kB", at)].strip())


def _whole(text: bytes) -> int | None:
    return int(text) if text.isdigit() else None
