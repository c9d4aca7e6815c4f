"""Trains with a limit of memory."""

from typing import Any

import torch

from gpu_check.sizes import GLOBAL_BATCH
from gpu_check.training import Net, Seat, resumable

#: Memory of one sample in rank 1, and of its process, in bytes. An even share needs more.
SAMPLE_BYTES = 128 << 20


class Limited(Net):
    """A network that needs memory for each sample."""

    def __init__(self, seat: Seat) -> None:
        """Limits the memory of rank 1 to a little less than an even share needs."""
        super().__init__()
        self.seat, self.samples_max = seat, GLOBAL_BATCH // seat.ranks - 1
        if seat.rank == 1 and seat.device.type == "cuda":
            whole = torch.cuda.get_device_properties(seat.device).total_memory
            limit = (self.samples_max + 0.5) * SAMPLE_BYTES + (256 << 20)
            torch.cuda.set_per_process_memory_fraction(min(1.0, limit / whole), seat.device)

    def forward(self, x: torch.Tensor) -> Any:
        """Allocates memory for the samples."""
        if self.seat.rank == 1 and torch.is_grad_enabled():
            if self.seat.device.type == "cuda":
                torch.empty(len(x) * SAMPLE_BYTES + (256 << 20) - (32 << 20), dtype=torch.uint8, device=x.device)
            elif len(x) > self.samples_max:
                raise torch.OutOfMemoryError(f"imposed: {len(x)} samples")
        return super().forward(x)


def rank(seat: Seat) -> dict[str, Any]:
    """Trains until the end."""
    return resumable(seat, Limited(seat))
