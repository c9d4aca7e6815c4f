"""The running statistics of batch norm, as means over the samples of all ranks."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from torch.futures import Future


def needs_two_samples(model: torch.nn.Module) -> bool:
    """Returns whether a model has batch norm, which cannot normalise over a single value."""
    return any(isinstance(module, _BatchNorm) for module in model.modules())


class RunningStatistics:
    """The running statistics of a DDP model.

    DDP distributes those of rank 0, which describe only its own batch, or none. Here they become the mean over ranks,
    weighted by samples: the mean of the whole batch, and the mean variance within the ranks' batches.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        """Finds the layers; none if DDP does not distribute buffers."""
        self._layers = [
            layer
            for layer in (model.module.modules() if model.broadcast_buffers else ())
            if isinstance(layer, _NormBase) and layer.running_mean is not None
        ]

    def begin(self, weight: float, group: dist.ProcessGroup) -> "PendingStatistics | None":
        """Starts to sum the statistics over ranks; returns None if no layer has any.

        All ranks must call it in the same order relative to other collectives of the group.

        Args:
            weight: this rank's part of the samples.
            group: the process group of the model.
        """
        layers = [layer for layer in self._layers if layer.training]
        if not layers:
            return None
        buffers = [getattr(layer, name) for layer in layers for name in ("running_mean", "running_var")]
        flat = torch.cat([buffer.flatten().to(buffers[0].device) for buffer in buffers])
        # 0 times NaN is not 0.
        flat = flat * weight if weight else torch.zeros_like(flat)
        return PendingStatistics(group.allreduce([flat]), flat, buffers)


@dataclass(frozen=True, slots=True)
class PendingStatistics:
    """Statistics that are being summed over ranks."""

    work: dist.Work
    flat: torch.Tensor
    buffers: list[torch.Tensor]

    def store(self) -> None:
        """Stores the sums in the layers; requires that the communication is complete."""
        parts = self.flat.split([buffer.numel() for buffer in self.buffers])
        # Backward passes have saved these buffers but do not use them: this is no new version.
        targets = [buffer.data for buffer in self.buffers]
        torch._foreach_copy_(targets, [part.view_as(to) for part, to in zip(parts, targets, strict=True)])

    def stored_with(self, gradients: "Future[torch.Tensor]") -> "Future[torch.Tensor]":
        """Returns the future of a bucket's gradients, which also stores the statistics."""

        def both(done: "Future[list[Future[Any]]]") -> torch.Tensor:
            gradient: torch.Tensor
            gradient, _ = (future.value() for future in done.value())
            self.store()
            return gradient

        return torch.futures.collect_all([gradients, self.work.get_future()]).then(both)
