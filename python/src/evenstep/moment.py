"""Moments on a device: the clock on CPUs, events on GPUs, which nothing waits for until a time is asked for."""

from collections.abc import Callable

import torch

#: Seconds of a clock, or an event on a GPU's current stream.
Moment = float | torch.cuda.Event


def now(device: torch.device, clock: Callable[[], float]) -> Moment:
    """This moment on a device."""
    if device.type != "cuda":
        return clock()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def between(begun: Moment, end: Moment) -> float:
    """Seconds between two moments on one device; waits until it has passed them. 0 where they are of two kinds."""
    if isinstance(begun, float) or isinstance(end, float):
        return end - begun if isinstance(begun, float) and isinstance(end, float) else 0.0
    end.synchronize()
    return float(begun.elapsed_time(end)) / 1e3


def peak_memory_bytes(device: torch.device) -> int | None:
    """The most that tensors held on the GPU so far; None on CPUs, where other things share the memory."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
