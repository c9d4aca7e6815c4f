"""How long a rank computes, without a timer of the user's and without waiting for a device."""

import time
from collections.abc import Callable

import torch

from evenstep.moment import Moment, between, now, peak_memory_bytes


class Sensor:
    """Forward and backward of an iteration: from its first forward pass to its last gradient, less waiting for data.

    On CPUs by the monotonic clock. On GPUs by two events on the current stream, which are read once the device has
    passed them: nothing is synchronised for it.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Of one rank; ``clock`` is monotonic, in seconds."""
        self._clock = clock
        self._device = torch.device("cpu")
        #: Whether an iteration begins when its batch arrives: where nobody sees forward passes.
        self._from_arrival = False
        self._begun: Moment | None = None
        self._waited = 0.0
        self._waited_before = 0.0

    def loader_waited(self, seconds: float) -> None:
        """The training waited for its data."""
        if self._begun is None:
            self._waited_before += seconds
        else:
            self._waited += seconds

    def iteration_begins(self) -> None:
        """What was seen of forward passes since the last iteration's gradients is not of this one.

        It was skipped, or looked at: a first pass that shapes lazy modules, a loss that was not finite.
        """
        if not self._from_arrival:
            self._begun = None
            self._waited, self._waited_before = 0.0, self._waited + self._waited_before

    def batch_arrived(self) -> None:
        """The training has got its batch."""
        if self._from_arrival and self._begun is None:
            self._begun = now(self._device, self._clock)

    def measure_from_arrival(self, device: torch.device) -> None:
        """From the next iteration on its begin is that its batch arrives: nobody sees forward passes on this device."""
        self._from_arrival, self._device = True, device

    def forward_begins(self, device: torch.device) -> None:
        """A forward pass begins on a device; the first of an iteration counts."""
        if self._begun is None:
            self._device = device
            self._begun = now(self._device, self._clock)

    def computed(self) -> tuple[Callable[[], float], float]:
        """The last gradient is there.

        Returns:
            what gives the compute time in seconds, once the device is done, and the seconds of waiting for data. The
            time is 0 where no forward pass was seen: such an iteration says nothing of the speed.
        """
        begun, end, waited = self._begun, now(self._device, self._clock), self._waited
        loader_wait = waited + self._waited_before
        self._begun, self._waited, self._waited_before = None, 0.0, 0.0
        return (lambda: 0.0 if begun is None else max(0.0, between(begun, end) - waited)), loader_wait

    def peak_memory_bytes(self) -> int | None:
        """The most that tensors held on the GPU so far; None on CPUs."""
        return peak_memory_bytes(self._device)
