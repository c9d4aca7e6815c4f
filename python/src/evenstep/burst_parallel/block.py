"""A block on a rank: its shapes, its parameters, and the autograd functions that sum their gradients."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import once_differentiable

from evenstep.errors import EvenstepError, UnsupportedError
from evenstep.start.group import time_limit

if TYPE_CHECKING:
    from evenstep.burst_parallel.cut import Piece
    from evenstep.burst_parallel.routes import Route


def gathered(own: Any, world_size: int) -> list[Any]:
    """Returns the values of all ranks. If one of them is an error, all ranks raise it."""
    sent = own
    if isinstance(own, Exception) and not isinstance(own, EvenstepError) and world_size > 1:
        sent = UnsupportedError(f"rank {dist.get_rank()}: {type(own).__name__}: {own}")
    values = [sent] * world_size
    if world_size > 1:
        dist.all_gather_object(values, sent)
    if error := next((each for each in (own, *values) if isinstance(each, Exception)), None):
        raise error
    return values


@dataclass(frozen=True, slots=True)
class Shape:
    """A tensor between two blocks, without the number of its rows."""

    row: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "Shape":
        """Returns the shape of a tensor."""
        return cls(tuple(tensor.shape[1:]), tensor.dtype, tensor.requires_grad)

    def empty(self, device: torch.device) -> torch.Tensor:
        """Returns the output of a block on a rank without samples of it."""
        return torch.empty((0, *self.row), dtype=self.dtype, device=device)


class Block:
    """A block on this rank."""

    def __init__(self, piece: "Piece", rank: int, groups: dict[tuple[int, ...], Any]) -> None:
        """Creates the group of the block's ranks, if no other block has it. All ranks create all groups."""
        self.first, self.last, self.shares = piece.first, piece.last, piece.shares
        self.rows = piece.shares[rank]
        #: Rank 0 has all parameters, and therefore all gradients.
        self.members = tuple(member for member, share in enumerate(piece.shares) if share or not member)
        self.held, self.alone = rank in self.members, len(self.members) == 1
        if self.members not in groups:
            whole = len(self.members) == len(piece.shares)
            groups[self.members] = None if whole else dist.new_group(list(self.members), time_limit())
        self.group = groups[self.members]
        self.parameters = [*piece.module.parameters()]
        #: The way of its samples from the block before it; None for the first one.
        self.route: Route | None = None

    @property
    def trained(self) -> list[nn.Parameter]:
        """The parameters that are not frozen."""
        return [parameter for parameter in self.parameters if parameter.requires_grad]

    def views(self, settle: Callable[[], None]) -> Callable[[], tuple[torch.Tensor, ...]]:
        """Returns the trained parameters, as views whose gradients are summed if several ranks have them.

        A pass calls this before its first block, and the result at the block: autograd runs later functions first. So
        the sum of a block begins before the move of gradients to the block before it, on all ranks in the same order,
        and ends after the backward passes of all blocks. ``settle`` ends the comparison of ranks before that.
        """
        trained = self.trained if torch.is_grad_enabled() else ()
        if not trained or not self.held or self.alone:
            return lambda: tuple(trained)
        sums = _Sums(self, trained, settle)
        views = _End.apply(sums, *trained)
        return lambda: _Begin.apply(sums, *views)

    def run(self, program: nn.Module, given: torch.Tensor, views: Sequence[torch.Tensor]) -> torch.Tensor:
        """Returns the output for samples.

        Raises:
            UnsupportedError: it is not one tensor with the same samples.
        """
        with _replaced(program, dict(zip(self.trained, views, strict=False))):
            made = program(given)
        if not isinstance(made, torch.Tensor) or made.shape[:1] != given.shape[:1]:
            kind = tuple(made.shape) if isinstance(made, torch.Tensor) else type(made).__name__
            raise UnsupportedError(
                f"layer {self.last!r} returned {kind} for {len(given)} samples: must be a tensor with the samples "
                "along its first axis"
            )
        return self.reached(made, given, views)

    @staticmethod
    def reached(made: torch.Tensor, given: torch.Tensor, views: Sequence[torch.Tensor]) -> torch.Tensor:
        """Returns an output whose backward pass reaches the input and all parameters, as on all other ranks."""
        output: torch.Tensor = _Reach.apply(made, given, *views)
        return output

    def share_buffers(self, program: nn.Module, settle: Callable[[], None]) -> None:
        """Gives all ranks the buffers of the first one with samples, as DDP does with those of rank 0."""
        source = next(member for member, share in enumerate(self.shares) if share)
        # Forward passes may assign other tensors. Backward passes need no old statistics, so this is no change for
        # autograd.
        buffers = [buffer.data for buffer in program.buffers() if self.held and not self.alone]
        if not buffers:
            return
        settle()
        all_bytes = torch.cat([buffer.contiguous().reshape(-1).view(torch.uint8) for buffer in buffers])
        dist.broadcast(all_bytes, src=source, group=self.group)
        for buffer, own in zip(buffers, all_bytes.split([buffer.nbytes for buffer in buffers]), strict=True):
            # A view of another type needs an aligned address.
            buffer.copy_(own.clone().view(buffer.dtype).view_as(buffer))


@contextmanager
def _replaced(program: nn.Module, by: Mapping[nn.Parameter, torch.Tensor]) -> Iterator[None]:
    """Makes modules compute with other tensors in place of their parameters."""
    try:
        put(program, by)
        yield
    finally:
        put(program, {tensor: parameter for parameter, tensor in by.items()})


def put(program: nn.Module, by: Mapping[Any, Any]) -> None:
    """Replaces parameters and buffers of a module and its children."""
    for module in program.modules() if by else ():
        for slots in (module._parameters, module._buffers):  # noqa: SLF001  # By name, only parameters can be set.
            slots.update({name: by[own] for name, own in slots.items() if own in by})


class _Sums:
    """The sums of a block's gradients over its ranks in one pass."""

    def __init__(self, block: Block, parameters: Sequence[nn.Parameter], settle: Callable[[], None]) -> None:
        self._block, self._parameters, self._settle = block, parameters, settle
        self._open: list[tuple[Any, list[int], list[torch.Tensor], list[bool]]] = []

    def begin(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Begins to sum gradients, one tensor for each type."""
        self._settle()
        for dtype in sorted({parameter.dtype for parameter in self._parameters}, key=str):
            at = [number for number, parameter in enumerate(self._parameters) if parameter.dtype == dtype]
            some = [gradients[number] is not None for number in at]
            parts = [
                torch.zeros_like(self._parameters[number]) if (own := gradients[number]) is None else own.to_dense()
                for number in at
            ]
            used = torch.tensor(some, dtype=dtype).to(parts[0].device)
            flat = torch.cat([*(part.reshape(-1) for part in parts), used])
            work = dist.all_reduce(flat, group=self._block.group, async_op=True)
            self._open.append((work, at, [*flat.split([*(part.numel() for part in parts), len(at)])], some))

    def end(self) -> list[torch.Tensor | None]:
        """Returns the sums; None if no rank has a gradient."""
        sums: list[torch.Tensor | None] = [None] * len(self._parameters)
        for work, at, (*values, used), some in self._open:
            work.wait()
            # Only a rank without a gradient has to know whether another one has it.
            for number, value, has in zip(at, values, some if all(some) else used.tolist(), strict=True):
                sums[number] = value.view_as(self._parameters[number]) if has else None
        self._open.clear()
        return sums


class _End(torch.autograd.Function):
    """Passes the parameters of a block on. Its backward pass returns the sums of their gradients.

    So a backward pass adds the sum to ``grad`` whatever was there before, and what a loss adds alone, such as a
    penalty on parameters, is not summed.
    """

    @staticmethod
    def forward(ctx: Any, sums: _Sums, *parameters: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.sums = sums
        return tuple(parameter.view_as(parameter) for parameter in parameters)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_: torch.Tensor | None) -> tuple[Any, ...]:
        return (None, *ctx.sums.end())


class _Begin(torch.autograd.Function):
    """Passes the parameters of a block on. Its backward pass begins to sum their gradients."""

    @staticmethod
    def forward(ctx: Any, sums: _Sums, *parameters: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.sums, ctx.count = sums, len(parameters)
        return tuple(parameter.view_as(parameter) for parameter in parameters)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[None, ...]:
        ctx.sums.begin(gradients)
        nothing: tuple[None, ...] = (None,) * (1 + ctx.count)
        return nothing


class _Reach(torch.autograd.Function):
    """Passes the output of a block on. Its backward pass reaches the input and all parameters of the block.

    So all ranks take part in its moves and sums, also without samples, or if their samples do not use a parameter.
    """

    @staticmethod
    def forward(ctx: Any, made: torch.Tensor, *reached: torch.Tensor) -> torch.Tensor:
        ctx.count = len(reached)
        return made.view_as(made)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return (gradient, *[None] * ctx.count)
