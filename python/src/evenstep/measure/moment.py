"""Points in time on a device: the clock on CPUs, events on GPUs, which are waited for only when read."""

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch


class Timer(Protocol):
    """Measures times on one device. Tests provide their own device."""

    def now(self) -> Any:
        """Returns the current moment: the time at which the device has done all work that it was given so far."""

    def between(self, begun: Any, end: Any) -> float:
        """Returns the seconds between two moments of this timer. May wait until the device has reached them."""


class HostTimer:
    """Measures times on CPUs, with a monotonic clock in seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Uses a clock."""
        self._clock = clock

    def now(self) -> float:
        """Returns the time."""
        return self._clock()

    def between(self, begun: float, end: float) -> float:
        """Returns the difference."""
        return end - begun


class CudaTimer:
    """Measures times on a GPU, with events on the current stream of the calling thread."""

    def __init__(self, device: torch.device) -> None:
        """Measures on a device."""
        self._device = device

    def now(self) -> torch.cuda.Event:
        """Records an event, which takes microseconds and waits for nothing."""
        # A thread that waits for a blocking event sleeps. For others it would use a whole core.
        event = torch.cuda.Event(enable_timing=True, blocking=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def between(self, begun: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Returns the seconds between two events; waits for the second one."""
        # The current device of a new thread is GPU 0. A call to CUDA would occupy memory there.
        with torch.cuda.device(self._device):
            end.synchronize()
            return float(begun.elapsed_time(end)) / 1e3


def timer_of(device: torch.device) -> Timer:
    """Returns the timer of a device."""
    return CudaTimer(device) if device.type == "cuda" else HostTimer()


def peak_memory_bytes(device: torch.device) -> int | None:
    """Returns the peak memory of tensors on the GPU in bytes.

    None on CPUs, whose memory is shared with other data, and if the script's own allocator does not count it.
    """
    if device.type != "cuda":
        return None
    try:
        # The same as max_memory_allocated, which would flatten and sort all statistics of the allocator in each step.
        peak: int = torch.cuda.memory_stats_as_nested_dict(device)["allocated_bytes"]["all"]["peak"]
    except (RuntimeError, KeyError):
        return None
    return peak
