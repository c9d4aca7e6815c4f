"""Measures the passes of an iteration: forward and backward, without loading, claims or waiting."""

import threading
import time
from collections.abc import Callable

import torch

from evenstep.moment import Moment, between, now, peak_memory_bytes


class PassTimer:
    """Times each pass from the moment the training gets its batch until it requests the next one.

    On CPUs it uses the monotonic clock. On GPUs it uses two events per pass on the current stream, and waits for them
    only when a time is requested.
    """

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.perf_counter) -> None:
        """Measures passes on a device."""
        self.samples = 0
        self.passes = 0
        self._device = device
        self._clock = clock
        self._begun: Moment | None = None
        self._open: list[tuple[Moment, Moment]] = []
        self._total_s = 0.0
        #: Held by the training and by the thread that reports.
        self._asked = threading.Lock()

    def begin(self) -> None:
        """Records the start of a pass."""
        self._begun = now(self._device, self._clock)

    def end(self, samples: int) -> None:
        """Records the end of a pass over ``samples`` samples."""
        if self._begun is not None:
            self._open.append((self._begun, now(self._device, self._clock)))
            self._begun = None
            self.samples += samples
            self.passes += 1

    def total_s(self) -> float:
        """Returns the seconds of all passes up to now; waits until the device has finished them."""
        with self._asked:
            while self._open:
                self._total_s += between(*self._open.pop(0))
            return self._total_s

    def pace_s(self) -> float | None:
        """Returns the seconds per sample up to now; None before the first pass. Waits for the device."""
        return self.total_s() / self.samples if self.samples else None

    def peak_memory_bytes(self) -> int | None:
        """Returns the peak memory of tensors on the GPU in bytes; None on CPUs."""
        return peak_memory_bytes(self._device)
