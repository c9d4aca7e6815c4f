"""The buffers of DDP models with uneven batches: means over all samples, or from the rank with most of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parallel import DistributedDataParallel

from evenstep.run.step import Step


def needs_two_samples(model: torch.nn.Module) -> bool:
    """Returns whether a model has batch norm, which cannot normalise over a single value."""
    return any(isinstance(module, _BatchNorm) for module in model.modules())


class Kept:
    """Copies of the buffers of models, which passes that do not count change."""

    def __init__(self, models: Iterable[torch.nn.Module]) -> None:
        """Copies the buffers."""
        modules = [module for model in models for module in model.modules()]
        self._kept = [
            (module, name, buffer, None if buffer is None else buffer.detach().clone())
            for module in modules
            for name, buffer in module._buffers.items()  # noqa: SLF001  # Only it has those that are None.
        ]

    def restore(self) -> None:
        """Gives the modules the same tensors, with the same values; a pass may have replaced tensors."""
        for module, name, buffer, copy in self._kept:
            if buffer is not None and copy is not None:
                # Backward passes have saved it.
                buffer.data.copy_(copy)
            module._buffers[name] = buffer  # noqa: SLF001


class Buffers:
    """The buffers of a DDP model that its forward passes change.

    DDP distributes those of rank 0, which describe only its own batch, or none. Running statistics of batch norm become
    the mean over ranks instead, weighted by samples: the mean of the whole batch, and the mean variance within the
    ranks' batches. A mean of other buffers may have no meaning, so the rank with most samples sends its own to all.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        """Finds the buffers; none if DDP does not distribute them."""
        self._layers: list[_NormBase] = []
        #: The modules and names of other buffers.
        self._others: list[tuple[torch.nn.Module, str]] = []
        for path, module in model.module.named_modules() if model.broadcast_buffers else ():
            if isinstance(module, _NormBase):
                self._layers += [module] if module.running_mean is not None else []
                continue
            names = [name for name, _ in module.named_buffers(recurse=False)]
            ignored = model.parameters_to_ignore
            self._others += [(module, name) for name in names if f"{path}.{name}".lstrip(".") not in ignored]

    def begin(self, step: Step, group: dist.ProcessGroup, source: int, copies: int) -> "list[Pending]":
        """Starts to communicate; all ranks must call it in the same order relative to other collectives of the group.

        Args:
            step: this rank's part of the iteration.
            group: the process group of the model.
            source: the rank that sends its buffers.
            copies: number of ranks of the group that have the same samples.
        """
        begun = []
        layers = [layer for layer in self._layers if layer.training]
        if layers:
            buffers = [getattr(layer, name) for layer in layers for name in ("running_mean", "running_var")]
            flat = torch.cat([buffer.flatten().to(buffers[0].device) for buffer in buffers])
            # 0 times NaN is not 0.
            flat = flat * (step.weight / copies) if step.weight else torch.zeros_like(flat)
            begun.append(Pending(group.allreduce([flat]), flat, flat.split([at.numel() for at in buffers]), buffers))
        if self._others:
            known = (getattr(module, name) for module, name in self._others)
            buffers = [buffer.detach() for buffer in known if buffer is not None]
            # Of any types, in one message.
            plain = [buffer.resolve_conj().resolve_neg() for buffer in buffers]
            rows = [buffer.reshape(-1).view(torch.uint8).to(buffers[0].device) for buffer in plain]
            flat = torch.cat(rows)
            work: Any = dist.broadcast(flat, source, group, async_op=True)
            begun.append(Pending(work, flat, flat.split([len(row) for row in rows]), buffers))
        return begun


@dataclass(frozen=True, slots=True)
class Pending:
    """Buffers that are being communicated."""

    work: dist.Work
    flat: torch.Tensor
    parts: tuple[torch.Tensor, ...]
    buffers: list[torch.Tensor]

    def store(self) -> None:
        """Waits for the other ranks, and stores the result in the buffers."""
        self.work.wait()
        # Backward passes have saved these buffers but do not use them: this is no new version.
        targets = [buffer.data for buffer in self.buffers]
        is_bytes = self.flat.dtype == torch.uint8
        # Views of other types must be aligned.
        parts = [
            (part.clone().view(to.dtype) if is_bytes else part).view_as(to)
            for part, to in zip(self.parts, targets, strict=True)
        ]
        torch._foreach_copy_(targets, parts)
