"""Points in time on a device: the clock on CPUs, events on GPUs, which are waited for only when read."""

from collections.abc import Callable

import torch

#: Seconds of a clock, or an event on a GPU's current stream.
Moment = float | torch.cuda.Event


def now(device: torch.device, clock: Callable[[], float]) -> Moment:
    """Returns the current moment on a device."""
    if device.type != "cuda":
        return clock()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def between(begun: Moment, end: Moment) -> float:
    """Returns the seconds between two moments on one device; 0 if they are of different kinds. May wait."""
    if isinstance(begun, float) or isinstance(end, float):
        return end - begun if isinstance(begun, float) and isinstance(end, float) else 0.0
    end.synchronize()
    return float(begun.elapsed_time(end)) / 1e3


def peak_memory_bytes(device: torch.device) -> int | None:
    """Returns the peak memory of tensors on the GPU in bytes; None on CPUs, whose memory is shared with other data."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
