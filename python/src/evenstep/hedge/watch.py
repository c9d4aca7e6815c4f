"""What the passes of an iteration take: forward and backward, without loading, claims or waiting."""

import threading
import time
from collections.abc import Callable

import torch

from evenstep.moment import Moment, between, now, peak_memory_bytes


class Watch:
    """Times each pass from when the training gets its batch until it asks for the next one.

    On CPUs by the monotonic clock. On GPUs by two events each on the current stream; they are waited for only when a
    time is asked for.
    """

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.perf_counter) -> None:
        """Of passes on a device."""
        self.samples = 0
        self.passes = 0
        self._device = device
        self._clock = clock
        self._begun: Moment | None = None
        self._open: list[tuple[Moment, Moment]] = []
        self._total_s = 0.0
        #: The training asks, and the thread that reports.
        self._asked = threading.Lock()

    def begin(self) -> None:
        """A pass begins."""
        self._begun = now(self._device, self._clock)

    def end(self, samples: int) -> None:
        """The pass over so many samples has ended."""
        if self._begun is not None:
            self._open.append((self._begun, now(self._device, self._clock)))
            self._begun = None
            self.samples += samples
            self.passes += 1

    def total_s(self) -> float:
        """Seconds of all passes so far; waits until the device has done them."""
        with self._asked:
            while self._open:
                self._total_s += between(*self._open.pop(0))
            return self._total_s

    def pace_s(self) -> float | None:
        """Seconds for a sample so far; None before the first. Waits until the device has done them."""
        return self.total_s() / self.samples if self.samples else None

    def peak_memory_bytes(self) -> int | None:
        """The most that tensors held on the GPU so far; None on CPUs."""
        return peak_memory_bytes(self._device)
