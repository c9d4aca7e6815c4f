"""Compares ranks: their calls always; early in a training, parameters before passes and gradients before steps.

Ranks wait for the comparison of a call only before they exchange anything else: its time is mostly that of computation.
"""

import weakref
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from evenstep.burst_parallel.block import Block, gathered
from evenstep.errors import DivergedError, UnsupportedError
from evenstep.start.group import time_limit

#: Ranks compare values in the first three passes and steps, then at powers of two up to this one.
COMPARED_MAX = 1024

#: Maximum difference of sums, in roundings of the norm: different devices round differently.
_ROUNDINGS = 64

#: Maximum length of values in an error.
_SHOWN = 300

Call = Literal["training passes", "backward passes", "optimizer steps", "other calls"]

#: The values that ranks compare in a call.
_COMPARED = {"training passes": "parameters", "optimizer steps": "gradients"}


def check_equal(all_ranks: Sequence[Mapping[str, Any]]) -> None:
    """Compares facts that all ranks must have in common.

    Raises:
        DivergedError: they differ.
    """
    first = all_ranks[0]
    for other, facts in enumerate(all_ranks):
        if different := [what for what, value in facts.items() if value != first.get(what)]:
            values = " and ".join(str(each.get(different[0])) for each in (first, facts))
            shown = f", not {values}" if len(values) <= _SHOWN else ""
            raise DivergedError(
                f"evenstep.burst: ranks 0 and {other} have a different {' and '.join(different)}: it must be the "
                f"same{shown}"
            )


class Replicas:
    """The blocks of a model, and the numbers of its calls."""

    def __init__(
        self, blocks: Sequence[Block], parameters: Iterable[nn.Parameter], world_size: int, device: torch.device
    ) -> None:
        """Begins to compare, before steps of an optimizer that has one of these parameters."""
        self._blocks, self._world_size, self.device = blocks, world_size, device
        #: Of this model alone: nothing else can come between the calls that are compared.
        self.group: Any = dist.new_group(None, time_limit(), "gloo") if world_size > 1 else None
        self._open: Callable[[], Any] | None = None
        self._counts: dict[Call, int] = {
            "training passes": 0,
            "backward passes": 0,
            "optimizer steps": 0,
            "other calls": 0,
        }
        known = {id(parameter): weakref.ref(parameter) for parameter in parameters}
        reference = weakref.ref(self)

        def step_begins(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            replicas = reference()
            given = (parameter for group in optimizer.param_groups for parameter in group["params"])
            own = any(id(each) in known and known[id(each)]() is each for each in given)
            if own and isinstance(optimizer, torch.optim.LBFGS):
                raise UnsupportedError(
                    "LBFGS combines the gradients of all blocks, and a rank has only its own: use another optimizer"
                )
            # Steps within a backward pass have another order on each rank.
            in_backward = torch._C._current_graph_task_id() >= 0  # noqa: SLF001  # PyTorch has no public way to ask.
            if replicas and own and not in_backward:
                replicas.compare("optimizer steps")

        weakref.finalize(self, register_optimizer_step_pre_hook(step_begins).remove)

    def compare(self, call: Call, number: float = 0.0, **facts: Any) -> list[float]:
        """Compares the ranks of each block, and returns the number that each rank gives. All ranks call it together.

        A step between those whose gradients are compared is only counted: the next call finds that a rank skipped it.

        Raises:
            DivergedError: they differ by more than rounding, or in their facts or numbers of calls.
        """
        result: list[float] = []
        self.begin(call, number, result.extend, **facts)
        self.settle()
        return result

    def settle(self) -> None:
        """Ends the comparison that has begun. Ranks call it before they exchange anything else."""
        ends, self._open = self._open, None
        if ends:
            ends()

    def begin(self, call: Call, number: float, check: Callable[[list[float]], None], **facts: Any) -> None:
        """Begins a comparison, and ends the one before. ``check`` gets the number of each rank."""
        self.settle()
        at = self._counts[call]
        self._counts[call] += 1
        what = _COMPARED.get(call)
        often = what is not None and at <= COMPARED_MAX and (at <= 2 or not at & (at - 1))
        if self._world_size == 1 or (call == "optimizer steps" and not often):
            self._open = partial(check, [number])
            return
        own = torch.zeros(3 + len(self._blocks), 2, dtype=torch.float64)
        header = [*self._counts.values(), zlib.crc32(repr(facts).encode()), number]
        own[:3] = torch.tensor(header, dtype=torch.float64).view(3, 2)
        with torch.no_grad():
            for place, block in enumerate(self._blocks, 3):
                for parameter in block.parameters if often and block.held and not block.alone else ():
                    value = parameter if what == "parameters" else parameter.grad
                    if value is not None and value.is_floating_point():
                        norm = torch.linalg.vector_norm(value, dtype=torch.float64)
                        rounding = torch.finfo(value.dtype).eps * norm
                        own[place] += torch.stack((value.sum(dtype=torch.float64), rounding)).cpu()
        values = own.new_empty((self._world_size, *own.shape))
        work: Any = dist.all_to_all_single(values, own.expand_as(values).contiguous(), group=self.group, async_op=True)

        def end() -> None:
            work.wait()
            self._check(values, what, at, facts)
            check([float(number) for number in values[:, 2, 1]])

        self._open = end

    def _check(self, values: torch.Tensor, what: str | None, at: int, facts: Mapping[str, Any]) -> None:
        """Compares the headers of all ranks."""
        if not torch.equal(counts := values[:, :2], counts[:1].expand_as(counts)):
            raise DivergedError(
                f"ranks differ in their numbers of [{', '.join(self._counts)}]: {counts.flatten(1).int().tolist()}. "
                "All ranks must call the model, in the same mode (train or eval), its methods, backward() and the "
                "optimizer together, also if the loss is NaN because a rank has no samples. The optimizer of each must "
                "have all model.parameters(). In place of GradScaler, use ShardedGradScaler (torch.distributed.fsdp), "
                "which skips steps on all ranks"
            )
        if values[:, 2, 0].unique().numel() > 1:
            check_equal(gathered(facts, self._world_size))
        for place, block in enumerate(self._blocks, 3):
            totals, roundings = values[[*block.members], place].unbind(1)
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
