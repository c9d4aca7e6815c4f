"""A block on a rank: its shapes, its parameters, and the autograd functions that sum their gradients."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import once_differentiable

from evenstep.errors import EvenstepError, UnsupportedError

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
            groups[self.members] = None if whole else dist.new_group(list(self.members))
        self.group = groups[self.members]
        self.parameters = [*piece.module.parameters()]
        #: The way of its samples from the block before it; None for the first one.
        self.route: Route | None = None

    @property
    def trained(self) -> list[nn.Parameter]:
        """The parameters that are not frozen."""
        return [parameter for parameter in self.parameters if parameter.requires_grad]

    def views(self) -> tuple[torch.Tensor, ...]:
        """Returns the trained parameters, as views whose gradients are summed if several ranks have them."""
        trained = self.trained if torch.is_grad_enabled() else ()
        return _Sum.apply(self, *trained) if trained and self.held and not self.alone else tuple(trained)

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

    def share_buffers(self, program: nn.Module) -> None:
        """Gives all ranks the buffers of the first one with samples, as DDP does with those of rank 0."""
        source = next(member for member, share in enumerate(self.shares) if share)
        # Forward passes may assign other tensors. Backward passes need no old statistics, so this is no change for
        # autograd.
        buffers = [buffer.data for buffer in program.buffers() if self.held and not self.alone]
        if not buffers:
            return
        all_bytes = torch.cat([buffer.contiguous().reshape(-1).view(torch.uint8) for buffer in buffers])
        dist.broadcast(all_bytes, src=source, group=self.group)
        for buffer, own in zip(buffers, all_bytes.split([buffer.nbytes for buffer in buffers]), strict=True):
            # A view of another type needs an aligned address.
            buffer.copy_(own.clone().view(buffer.dtype).view_as(buffer))

    def summed(
        self, gradients: Sequence[torch.Tensor | None], parameters: Sequence[torch.Tensor]
    ) -> list[torch.Tensor | None]:
        """Returns the sums of gradients over the ranks of the block; None if no rank has one."""
        sums: dict[int, torch.Tensor | None] = {}
        for dtype in sorted({parameter.dtype for parameter in parameters}, key=str):
            at = [number for number, parameter in enumerate(parameters) if parameter.dtype == dtype]
            used = torch.tensor([gradients[number] is not None for number in at], dtype=dtype)
            parts = [
                torch.zeros_like(parameters[number]) if (own := gradients[number]) is None else own.to_dense()
                for number in at
            ]
            flat = torch.cat([*(part.reshape(-1) for part in parts), used.to(parts[0].device)])
            dist.all_reduce(flat, group=self.group)
            *values, used = flat.split([*(part.numel() for part in parts), len(at)])
            # Only a rank without a gradient has to know whether another one has it.
            some = [True] * len(at) if all(gradients[number] is not None for number in at) else used.tolist()
            for number, value, has in zip(at, values, some, strict=True):
                sums[number] = value.view_as(parameters[number]) if has else None
        return [sums[number] for number in range(len(parameters))]


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


class _Sum(torch.autograd.Function):
    """Passes the parameters of a block on. Its backward pass sums their gradients over the ranks of the block.

    So a backward pass adds the sum to ``grad`` whatever was there before, and what a loss adds alone, such as a
    penalty on parameters, is not summed. Autograd runs later functions first: a block's sum comes before the move of
    gradients to the block before it, on all ranks in the same order.
    """

    @staticmethod
    def forward(ctx: Any, block: Block, *parameters: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.block, ctx.parameters = block, parameters
        return tuple(parameter.view_as(parameter) for parameter in parameters)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        return (None, *ctx.block.summed(gradients, ctx.parameters))


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
