"""Measures the passes of an iteration: forward and backward, without loading, claims or waiting."""

import threading
from collections.abc import Callable
from typing import Any

import torch

from evenstep.measure.moment import Timer, peak_memory_bytes, timer_of


class PassTimer:
    """Times each pass from the moment the training gets its batch until it requests the next one.

    On CPUs it uses the monotonic clock. On GPUs it uses two events per pass on the current stream, and waits for them
    only when a time is requested.
    """

    def __init__(self, device: torch.device, timer_of: Callable[[torch.device], Timer] = timer_of) -> None:
        """Measures passes on a device; ``timer_of`` returns its timer."""
        self.samples = 0
        self.passes = 0
        self._device = device
        self._timer = timer_of(device)
        self._begun: Any = None
        self._open: list[tuple[Any, Any]] = []
        self._total_s = 0.0
        #: Held by the training and by the thread that reports.
        self._asked = threading.Lock()

    def begin(self) -> None:
        """Records the start of a pass."""
        self._begun = self._timer.now()

    def end(self, samples: int) -> None:
        """Records the end of a pass over ``samples`` samples."""
        if self._begun is not None:
            self._open.append((self._begun, self._timer.now()))
            self._begun = None
            self.samples += samples
            self.passes += 1

    def total_s(self) -> float:
        """Returns the seconds of all passes up to now; waits until the device has finished them."""
        with self._asked:
            while self._open:
                self._total_s += self._timer.between(*self._open.pop(0))
            return self._total_s

    def pace_s(self) -> float | None:
        """Returns the seconds per sample up to now; None before the first pass. Waits for the device."""
        return self.total_s() / self.samples if self.samples else None

    def peak_memory_bytes(self) -> int | None:
        """Returns the peak memory of tensors on the GPU in bytes; None on CPUs."""
        return peak_memory_bytes(self._device)
