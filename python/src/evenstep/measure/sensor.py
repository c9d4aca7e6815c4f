"""Measures the compute time of a rank without code in the training loop and without waiting for a device.

It is a sum of spans on the device's own clock. A request for data ends a span, and its arrival begins the next one: a
GPU computes while the loop waits for data. So does a wait for other ranks. Waits for a device are not billed to
exchanges.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from evenstep.measure.moment import HostTimer, Timer, peak_memory_bytes, timer_of

#: Maximum number of spans of an iteration before the older half of them is added up, which waits for the device.
_SPANS_MAX = 4096


class Sensor:
    """Measures an iteration's time from the first forward pass to the last gradient, without data waits.

    Moments of the device delimit spans of computing: an iteration has one span, and a wait for data or for other ranks
    ends it and begins the next one. A GPU computes while the training waits for data, so the duration of the wait says
    nothing about it.
    """

    def __init__(self, timer_of: Callable[[torch.device], Timer] = timer_of) -> None:
        """Creates the sensor of one rank; ``timer_of`` returns the timer of a device."""
        self._timer_of = timer_of
        #: The device that computes; None until it is known.
        self.device: torch.device | None = None
        self._timer: Timer = HostTimer()
        #: Whether an iteration starts when its batch arrives, because forward passes cannot be observed.
        self._from_arrival = False
        #: Whether an iteration has begun, and whether the training waits for other ranks.
        self._is_measuring = self._is_paused = False
        self._loader_wait_s = 0.0
        #: Begin of the open span, the closed spans, and the seconds of those before them.
        self._begun: Any = None
        self._spans: list[tuple[Any, Any]] = []
        self._earlier_s = 0.0

    def loader_begins(self) -> None:
        """Records that the training requests its next batch."""
        self._close()

    def loader_ends(self, seconds: float) -> None:
        """Records that the training waited for its batch for this time."""
        self._loader_wait_s += seconds
        # Another thread may read batches while this one waits for other ranks.
        if self._is_measuring and not self._is_paused:
            self._begun = self._timer.now()

    def iteration_begins(self) -> None:
        """Discards forward passes since the last iteration's gradients: they do not belong to this iteration.

        The loop may have skipped a step (a loss that is not finite), or only evaluated the model (a first pass for lazy
        modules).
        """
        if not self._from_arrival:
            self._discard()

    def batch_arrived(self) -> None:
        """Records that the training got its batch."""
        if self._from_arrival:
            self._begin()

    def measure_from_arrival(self, device: torch.device) -> None:
        """Measures from the batch's arrival, starting with the next iteration: forward passes are not observable."""
        self._from_arrival = True
        self.computes_on(device)

    def computes_on(self, device: torch.device) -> None:
        """Sets the device; it cannot change within an iteration."""
        if not self._is_measuring and device != self.device:
            self.device, self._timer = device, self._timer_of(device)

    def forward_begins(self, device: torch.device) -> None:
        """Records the begin of a forward pass on a device; only the first of an iteration counts."""
        self.computes_on(device)
        self._begin()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Context manager for waits for other ranks, which are not compute time."""
        is_paused = self.pause()
        try:
            yield
        finally:
            if is_paused:
                self.resume()

    def pause(self) -> bool:
        """Begins a wait for other ranks; returns whether :meth:`resume` must end it. Waits within a wait do nothing."""
        if self._is_paused or not self._is_measuring:
            return False
        self._close()
        self._is_paused = True
        return True

    def resume(self) -> None:
        """Ends a wait for other ranks."""
        self._is_paused = False
        if self._is_measuring:
            self._begun = self._timer.now()

    def computed(self) -> tuple[Callable[[], float], float]:
        """Records that the last gradient is complete.

        Returns:
            a function that returns the compute time in seconds once the device is done, and the seconds of waiting for
                data. The time is 0 if no forward pass was observed; such an iteration does not measure the speed.
        """
        self._close()
        timer, spans, earlier_s, loader_wait_s = self._timer, self._spans, self._earlier_s, self._loader_wait_s
        self._discard()
        self._loader_wait_s = 0.0
        return lambda: sum((timer.between(*span) for span in spans), earlier_s), loader_wait_s

    def peak_memory_bytes(self) -> int | None:
        """Returns the peak memory of tensors on the GPU in bytes; None on CPUs."""
        return None if self.device is None else peak_memory_bytes(self.device)

    def _begin(self) -> None:
        if not self._is_measuring:
            self._is_measuring = True
            self._begun = None if self._is_paused else self._timer.now()

    def _close(self) -> None:
        """Ends the open span; without one, does nothing."""
        if self._begun is not None:
            self._spans.append((self._begun, self._timer.now()))
            self._begun = None
            if len(self._spans) == _SPANS_MAX:
                older, self._spans = self._spans[: _SPANS_MAX // 2], self._spans[_SPANS_MAX // 2 :]
                self._earlier_s += sum(self._timer.between(*span) for span in older)

    def _discard(self) -> None:
        self._is_measuring, self._begun, self._spans, self._earlier_s = False, None, [], 0.0
