"""Compares ranks: their calls always; early in a training, parameters before passes and gradients before steps."""

import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from evenstep.burst_parallel.block import Block
from evenstep.errors import DivergedError

#: Ranks compare values in the first three passes and steps, then at powers of two up to this one.
COMPARED_MAX = 1024

#: Maximum difference of sums, in roundings of the norm: different devices round differently.
_ROUNDINGS = 64


class Replicas:
    """The blocks of a model, and the number of its training passes and optimizer steps."""

    def __init__(
        self, blocks: Sequence[Block], parameters: Iterable[nn.Parameter], world_size: int, device: torch.device
    ) -> None:
        """Begins to compare, before each step of an optimizer that has one of these parameters."""
        self._blocks, self._world_size, self._device = blocks, world_size, device
        self._counts = {"parameters": 0, "gradients": 0, "samples": 0}
        known = {id(parameter): weakref.ref(parameter) for parameter in parameters}
        reference = weakref.ref(self)

        def step_begins(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            replicas = reference()
            given = (parameter for group in optimizer.param_groups for parameter in group["params"])
            own = any(id(each) in known and known[id(each)]() is each for each in given)
            # Steps within a backward pass have another order on each rank.
            in_backward = torch._C._current_graph_task_id() >= 0  # noqa: SLF001  # PyTorch has no public way to ask.
            if replicas and own and not in_backward:
                replicas.compare("gradients")

        weakref.finalize(self, register_optimizer_step_pre_hook(step_begins).remove)

    def compare(self, what: Literal["parameters", "gradients", "samples"], given: int = 0) -> list[int]:
        """Compares the ranks of each block, and returns the number that each rank gives. All ranks call it together.

        Raises:
            DivergedError: they differ by more than rounding, or in their number of passes and steps.
        """
        at = self._counts[what]
        self._counts[what] += 1
        if self._world_size == 1:
            return [given]
        often = what != "samples" and at <= COMPARED_MAX and (at <= 2 or not at & (at - 1))
        own = torch.zeros(2 + len(self._blocks), 2, dtype=torch.float64)
        own[:2] = torch.tensor([*self._counts.values(), given]).view(2, 2)
        own = own.to(self._device)
        with torch.no_grad():
            for number, block in enumerate(self._blocks, 2):
                for parameter in block.parameters if often and block.held and not block.alone else ():
                    value = parameter if what == "parameters" else parameter.grad
                    if value is not None and value.is_floating_point():
                        norm = torch.linalg.vector_norm(value, dtype=torch.float64)
                        rounding = torch.finfo(value.dtype).eps * norm
                        own[number] += torch.stack((value.sum(dtype=torch.float64), rounding))
            all_ranks = [torch.empty_like(own) for _ in range(self._world_size)]
            dist.all_gather(all_ranks, own)
        values = torch.stack(all_ranks).cpu()
        if not torch.equal(values[:, 0], values[:1, 0].expand(self._world_size, 2)):
            raise DivergedError(
                f"ranks differ in their numbers of [training passes, optimizer steps]: {values[:, 0].int().tolist()}. "
                "They must step together, and the optimizer of each must have all model.parameters(). GradScaler, "
                "which skips steps by the gradients of one rank, is not supported"
            )
        if not torch.equal(others := values[:, 1, 0], others[:1].expand(self._world_size)):
            raise DivergedError(
                f"ranks differ in their number of evaluation passes and calls of targets: {others.int().tolist()}. All "
                "ranks must call them together"
            )
        for number, block in enumerate(self._blocks, 2):
            totals, roundings = values[[*block.members], number].unbind(1)
            finite = totals.isfinite()
            far = finite.all() and float(totals.max() - totals.min()) > _ROUNDINGS * float(roundings.max())
            if far or (finite.any() and not finite.all()):
                advice = (
                    "give all ranks the same optimizer and the same checkpoint"
                    if what == "parameters"
                    else "clip with model.clip_grad_norm_, because PyTorch's function sees only the blocks of a rank; "
                    "checkpoint activations with use_reentrant=False"
                )
                raise DivergedError(
                    f"ranks {', '.join(map(str, block.members))} have different {what} of layers {block.first!r} to "
                    f"{block.last!r} in number {at + 1}: {advice}"
                )
        return [int(number) for number in values[:, 1, 1]]
