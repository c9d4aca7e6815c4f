"""How long a rank computes, without a timer of the user's and without waiting for a device."""

import time
from collections.abc import Callable

import torch


class Sensor:
    """Forward and backward of an iteration: from its first forward pass to its last gradient, less waiting for data.

    On CPUs by the monotonic clock. On GPUs by two events on the current stream, which are read once the device has
    passed them: nothing is synchronised for it.
    """

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.perf_counter) -> None:
        """Of a rank that computes on ``device``; ``clock`` is monotonic, in seconds."""
        self._clock = clock
        self._device = device if device.type == "cuda" else None
        self._begun: float | torch.cuda.Event | None = None
        self._waited = 0.0
        self._waited_before = 0.0

    def loader_waited(self, seconds: float) -> None:
        """The training waited for its data."""
        if self._begun is None:
            self._waited_before += seconds
        else:
            self._waited += seconds

    def forward_begins(self) -> None:
        """A forward pass begins; the first of an iteration counts."""
        if self._begun is None:
            self._begun = self._now()

    def computed(self) -> tuple[Callable[[], float], float]:
        """The last gradient is there.

        Returns:
            what gives the compute time in seconds, once the device is done, and the seconds of waiting for data.
        """
        begun, end, waited = self._begun, self._now(), self._waited
        loader_wait = waited + self._waited_before
        self._begun, self._waited, self._waited_before = None, 0.0, 0.0
        if begun is None:
            # No forward pass was seen: nothing is known, and a time of 0 is refused nowhere but says nothing.
            return (lambda: 0.0), loader_wait
        return (lambda: max(0.0, _between(begun, end) - waited)), loader_wait

    def peak_memory_bytes(self) -> int | None:
        """The most that tensors held on the GPU so far; None on CPUs, where other things share the memory."""
        return torch.cuda.max_memory_allocated(self._device) if self._device else None

    def _now(self) -> "float | torch.cuda.Event":
        if self._device is None:
            return self._clock()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event


def _between(begun: "float | torch.cuda.Event", end: "float | torch.cuda.Event") -> float:
    if isinstance(begun, float) and isinstance(end, float):
        return end - begun
    assert isinstance(begun, torch.cuda.Event)  # noqa: S101: both come from one sensor.
    assert isinstance(end, torch.cuda.Event)  # noqa: S101
    end.synchronize()
    return begun.elapsed_time(end) / 1e3
