"""The model that hedged steps train, and how DDP is kept from reducing what is not complete."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from evenstep import hook
from evenstep.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class Trainee:
    """A model, and what the loss is of its batch."""

    model: torch.nn.Module
    loss: hook.Loss = "mean"
    #: Whether a communication hook of the user's is to have the gradients.
    has_inner: bool = False

    def check(self, world_size: int) -> None:
        """Refuses what hedged steps would train wrongly.

        Raises:
            UnsupportedError: it is not DDP although ranks are several, ranks would wait for each other in a pass, or
                nothing of it is trained.
        """
        if not self.parameters():
            raise UnsupportedError(f"job.steps with {type(self.model).__name__}: no parameter of it is trained")
        if world_size > 1 and not isinstance(self.model, DistributedDataParallel):
            raise UnsupportedError(
                f"job.steps with {type(self.model).__name__}: must be DistributedDataParallel where ranks are several; "
                "with others that reduce gradients themselves use job.loader"
            )
        if self.has_inner:
            raise UnsupportedError(
                "job.steps sums gradients once, after the last pass, and not by DDP: wrap(inner=..) would not be asked"
            )
        if any(isinstance(module, torch.nn.SyncBatchNorm) for module in self.model.modules()):
            raise UnsupportedError(
                "SyncBatchNorm waits for all ranks in each pass, and ranks have different numbers of them: use "
                "torch.nn.BatchNorm, or job.loader"
            )

    @property
    def group(self) -> dist.ProcessGroup | None:
        """Who trains together; None: this process alone."""
        model = self.model
        return model.process_group if isinstance(model, DistributedDataParallel) else None

    def parameters(self) -> list[torch.nn.Parameter]:
        """Those that are trained and that DDP would reduce, in the order of the module."""
        model, ignored = self.model, set[str]()
        if isinstance(model, DistributedDataParallel):
            model, ignored = model.module, set(model.parameters_to_ignore)
        named = model.named_parameters()
        return [parameter for name, parameter in named if parameter.requires_grad and name not in ignored]

    def buffers(self) -> list[torch.Tensor]:
        """Floating-point buffers that DDP would keep alike on all ranks: batch norm's running statistics."""
        model = self.model
        if not isinstance(model, DistributedDataParallel) or not model.broadcast_buffers:
            return []
        named = model.module.named_buffers()
        return [
            buffer for name, buffer in named
            if buffer.is_floating_point() and name not in model.parameters_to_ignore
        ]  # fmt: skip

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """DDP talks to no other rank in here, in forward or backward passes: ranks have different numbers of them.

        As its own ``no_sync``, and of the first forward pass too, which would broadcast buffers.
        """
        model = self.model
        if not isinstance(model, DistributedDataParallel):
            yield
            return
        backward, forward = model.require_backward_grad_sync, model.require_forward_param_sync
        model.require_backward_grad_sync = model.require_forward_param_sync = False
        try:
            yield
        finally:
            model.require_backward_grad_sync, model.require_forward_param_sync = backward, forward
