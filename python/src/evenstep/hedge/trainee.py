"""The model that hedged steps train, with the reduction of incomplete gradients by DDP or FSDP switched off."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from evenstep.errors import UnsupportedError
from evenstep.gradients import fsdp, ranks
from evenstep.run.losses import Loss


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A model and the reduction of its loss."""

    model: torch.nn.Module
    loss: Loss = "mean"
    #: Whether the user passed another communication hook.
    has_inner: bool = False

    def check(self, world_size: int) -> None:
        """Checks that hedged steps can train the model.

        Raises:
            UnsupportedError: with several ranks the model is not DDP, ranks would wait for each other within a pass, or
                no parameter is trained.
        """
        if not self.parameters():
            raise UnsupportedError(f"job.steps with {type(self.model).__name__}: no parameter requires a gradient")
        if self.is_sharded:
            fsdp.check_hedged(self.model, self.loss)
        elif world_size > 1 and not isinstance(self.model, DistributedDataParallel):
            raise UnsupportedError(
                f"job.steps with {type(self.model).__name__}: must be DistributedDataParallel, or made with "
                "fully_shard, with several ranks; with other wrappers that reduce gradients themselves use job.loader"
            )
        if isinstance(self.model, DistributedDataParallel):
            ranks.check_group(self.model)
            if self.model.static_graph:
                raise UnsupportedError(
                    "job.steps with static_graph=True: DDP completes a static graph in its first reduction, and hedged "
                    "steps sum gradients without DDP; remove static_graph"
                )
        if self.has_inner:
            raise UnsupportedError(
                "job.steps sums gradients once, after the last pass, and without DDP: it cannot use "
                "wrap(inner=..); remove inner"
            )
        if any(isinstance(module, torch.nn.SyncBatchNorm) for module in self.model.modules()):
            raise UnsupportedError(
                "SyncBatchNorm waits for all ranks in each pass, but ranks have different numbers of passes: use "
                "torch.nn.BatchNorm, or job.loader"
            )

    @property
    def is_sharded(self) -> bool:
        """Whether the model is made with ``fully_shard``."""
        return bool(fsdp.modules(self.model))

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The process group of the model; None if this process is alone."""
        model = self.model
        if self.is_sharded:
            return dist.group.WORLD
        return model.process_group if isinstance(model, DistributedDataParallel) else None

    def parameters(self) -> list[torch.nn.Parameter]:
        """The trained parameters that DDP or FSDP would reduce, in the order of the module."""
        if self.is_sharded:
            return fsdp.parameters(self.model)
        model, ignored = self.model, set[str]()
        if isinstance(model, DistributedDataParallel):
            model, ignored = model.module, set(model.parameters_to_ignore)
        named = model.named_parameters()
        return [parameter for name, parameter in named if parameter.requires_grad and name not in ignored]

    def buffers(self) -> list[torch.Tensor]:
        """The floating-point buffers that DDP keeps the same on all ranks: batch norm's running statistics."""
        model = self.model
        if not isinstance(model, DistributedDataParallel) or not model.broadcast_buffers:
            return []
        named = model.module.named_buffers()
        return [
            buffer for name, buffer in named
            if buffer.is_floating_point() and name not in model.parameters_to_ignore
        ]  # fmt: skip

    @contextmanager
    def without_sync(self) -> Iterator[Sequence[torch.nn.Parameter] | None]:
        """Context manager that switches off communication in passes, whose number differs between ranks.

        Like DDP's ``no_sync``, but it also covers the first forward pass, which would broadcast buffers. It yields the
        parameters that passes use, if they are not those of :meth:`parameters`.
        """
        model = self.model
        if self.is_sharded:
            with fsdp.gathered(model) as computing:
                yield computing
            return
        if not isinstance(model, DistributedDataParallel):
            yield None
            return
        backward, forward = model.require_backward_grad_sync, model.require_forward_param_sync
        model.require_backward_grad_sync = model.require_forward_param_sync = False
        try:
            yield None
        finally:
            model.require_backward_grad_sync, model.require_forward_param_sync = backward, forward
