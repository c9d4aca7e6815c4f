"""The number of items of an iteration, such as tokens, over which a loss is a mean."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True, slots=True)
class Total:
    """A number of items that is being summed over ranks."""

    #: A float64 scalar.
    items: torch.Tensor
    #: The communication; None if this process is alone.
    work: Any

    def wait(self) -> torch.Tensor:
        """Returns the number over all ranks, at least a tiny one: 0 items have no mean."""
        if self.work is not None:
            self.work.wait()
        return self.items.where(self.items > 0, 1.0)

    def divide(self, gradient: torch.Tensor) -> torch.Tensor:
        """Divides a gradient in place."""
        total = self.wait()
        if gradient.element_size() < torch.float32.itemsize:
            # A number of tokens does not fit into 16 bits.
            return gradient.copy_(gradient.float().div_(total))
        return gradient.div_(total)


def total(counts: Sequence[Any], device: torch.device, *groups: dist.ProcessGroup | None) -> Total:
    """Starts to sum the numbers of this rank's micro-batches over ranks.

    Args:
        counts: a number or a tensor for each micro-batch with samples.
        device: the device for the communication.
        groups: the ranks: successive sums over these groups; None if this process is alone.
    """
    items = torch.zeros((), dtype=torch.float64, device=device)
    for count in counts:
        items += count.to(device) if isinstance(count, torch.Tensor) else count
    total = Total(items, None)
    for group in filter(None, groups):
        if total.work is not None:
            total.work.wait()
        total = Total(items, dist.all_reduce(items, group=group, async_op=True))
    return total
