"""Measures the compute time of a rank without code in the training loop and without waiting for a device."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from evenstep.moment import Moment, between, now, peak_memory_bytes


class Sensor:
    """Measures an iteration's time from the first forward pass to the last gradient, without data waits.

    On CPUs it uses the monotonic clock. On GPUs it uses two events on the current stream, which are read once the
    device has passed them, without synchronization.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Creates the sensor of one rank; ``clock`` is monotonic, in seconds."""
        self._clock = clock
        self._device = torch.device("cpu")
        #: Whether an iteration starts when its batch arrives, because forward passes cannot be observed.
        self._from_arrival = False
        self._begun: Moment | None = None
        self._waited = 0.0
        self._waited_before = 0.0
        self._pauses: list[tuple[Moment, Moment]] = []

    def loader_waited(self, seconds: float) -> None:
        """Records that the training waited for its data."""
        if self._begun is None:
            self._waited_before += seconds
        else:
            self._waited += seconds

    def iteration_begins(self) -> None:
        """Discards forward passes since the last iteration's gradients: they do not belong to this iteration.

        The loop may have skipped a step (a loss that is not finite), or only evaluated the model (a first pass for lazy
        modules).
        """
        if not self._from_arrival:
            self._begun = None
            self._pauses = []
            self._waited, self._waited_before = 0.0, self._waited + self._waited_before

    def batch_arrived(self) -> None:
        """Records that the training got its batch."""
        if self._from_arrival and self._begun is None:
            self._begun = now(self._device, self._clock)

    def measure_from_arrival(self, device: torch.device) -> None:
        """Measures from the batch's arrival, starting with the next iteration: forward passes are not observable."""
        self._from_arrival, self._device = True, device

    def forward_begins(self, device: torch.device) -> None:
        """Records the begin of a forward pass on a device; only the first of an iteration counts."""
        if self._begun is None:
            self._device = device
            self._begun = now(self._device, self._clock)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Context manager for waits for other ranks, which are not compute time."""
        begun = now(self._device, self._clock)
        yield
        if self._begun is not None:
            self._pauses.append((begun, now(self._device, self._clock)))

    def computed(self) -> tuple[Callable[[], float], float]:
        """Records that the last gradient is complete.

        Returns:
            a function that returns the compute time in seconds once the device is done, and the seconds of waiting for
                data. The time is 0 if no forward pass was observed; such an iteration does not measure the speed.
        """
        begun, end, waited, pauses = self._begun, now(self._device, self._clock), self._waited, self._pauses
        loader_wait = waited + self._waited_before
        self._begun, self._waited, self._waited_before, self._pauses = None, 0.0, 0.0, []

        def compute_time_s() -> float:
            paused = sum(between(*pause) for pause in pauses)
            return 0.0 if begun is None else max(0.0, between(begun, end) - waited - paused)

        return compute_time_s, loader_wait

    def peak_memory_bytes(self) -> int | None:
        """Returns the peak memory of tensors on the GPU in bytes; None on CPUs."""
        return peak_memory_bytes(self._device)
