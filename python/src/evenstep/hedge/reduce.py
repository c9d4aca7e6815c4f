"""The single all-reduce of a hedged iteration: gradients and the ranks' numbers in one flat sum.

DDP's all-reduce runs in parallel with the last backward pass. Here the last pass is known only after it, when a claim
returns no chunk. So the gradients of all passes are added in a separate flat buffer, each with its exact weight
``samples / global_batch``. They are summed over ranks once, after the last pass. The sum overlaps no computation. In
return, a rank can make as many passes as it has time for, and no pass waits for another rank.

Gradients are moved out after each pass instead of being rescaled in place for the next pass. Both cost one traversal,
but moving has three advantages:

- Each gradient is weighted exactly once, regardless of the number of passes.
- A ``zero_grad`` between passes does no harm.
- The buffer can be reduced without another copy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
import torch.distributed as dist

from evenstep.gradients import fsdp

#: A rank sends integers as digits of this base, each digit in a slot that only this rank uses. The sum is then exact
#: in every floating-point type: bfloat16 represents integers up to 256.
_BASE = 256

#: Number of digits of each number.
_DIGITS = 4


@dataclass(slots=True)
class _Flat:
    """All tensors of one type on one device, in one buffer."""

    tensors: list[torch.Tensor]
    buffer: torch.Tensor
    views: list[torch.Tensor]

    @classmethod
    def of(cls, tensors: list[torch.Tensor], slots: int, like: torch.Tensor) -> "_Flat":
        """Creates views with the tensors' shapes and strides, followed by ``slots`` extra slots."""
        sizes = [tensor.numel() for tensor in tensors]
        buffer = torch.zeros(sum(sizes) + slots, dtype=like.dtype, device=like.device)
        offsets = accumulate(sizes, initial=0)
        views = [_view(buffer, offset, tensor) for offset, tensor in zip(offsets, tensors, strict=False)]
        return cls(tensors, buffer, views)


@dataclass(slots=True)
class Reducer:
    """Adds one rank's gradients over the passes of an iteration, then sums them over all ranks."""

    parameters: Sequence[torch.nn.Parameter]
    buffers: Sequence[torch.Tensor]
    group: dist.ProcessGroup | None
    #: Number of whole numbers that each rank sends.
    numbers: int
    _flats: list[_Flat] = field(init=False)
    #: The parameters that passes use, by the parameters of the optimizer. They differ only if the model is sharded.
    _computing: dict[torch.nn.Parameter, torch.nn.Parameter] = field(init=False)
    _world_size: int = field(init=False)
    _rank: int = field(init=False)

    def __post_init__(self) -> None:
        """Creates a flat buffer for each type and device; the first one also carries the numbers."""
        self._world_size, self._rank = (self.group.size(), self.group.rank()) if self.group else (1, 0)
        self._computing = dict(zip(self.parameters, self.parameters, strict=True))
        by_kind: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
        for tensor in (*self.parameters, *self.buffers):
            by_kind.setdefault((tensor.dtype, tensor.device), []).append(tensor)
        slots = self._world_size * self.numbers * _DIGITS
        kinds = sorted(by_kind.values(), key=lambda tensors: not tensors[0].is_floating_point())
        self._flats = [_Flat.of(tensors, 0 if at else slots, tensors[0]) for at, tensors in enumerate(kinds)]

    @property
    def device(self) -> torch.device:
        """The device of the gradients."""
        return self.parameters[0].device

    def begin(self, computing: Sequence[torch.nn.Parameter] | None = None) -> None:
        """Starts an iteration with an empty sum; gradients of an earlier one are dropped.

        Args:
            computing: the parameters that passes use, in the order of ``parameters``; default the same.
        """
        for flat in self._flats:
            flat.buffer.zero_()
        for parameter in self.parameters:
            parameter.grad = None
        if computing is not None:
            self._computing = dict(zip(self.parameters, computing, strict=True))

    @torch.no_grad()
    def add(self, weight: float) -> None:
        """Adds the gradients of a pass with this weight and clears them; unused parameters have none."""
        for flat in self._flats:
            pairs = [
                (view, computing.grad)
                for view, parameter in zip(flat.views, flat.tensors, strict=True)
                if isinstance(parameter, torch.nn.Parameter)
                and (computing := self._computing[parameter]).grad is not None
            ]
            if pairs:
                views, gradients = zip(*pairs, strict=True)
                torch._foreach_add_(list(views), list(gradients), alpha=weight)
        for parameter in self._computing.values():
            parameter.grad = None

    @torch.no_grad()
    def reduce(self, numbers: Sequence[int], source: int, *, divisor: int | None = None) -> list[list[int]]:
        """Sums over all ranks and sets the parameters' gradients to the gradient of the whole iteration.

        Args:
            numbers: the numbers of this rank, each at least 0 and below 2^32.
            source: the rank whose model buffers are sent to all ranks.
            divisor: index of the number by whose sum over ranks gradients are divided; None for no division.

        Returns:
            the numbers of each rank.
        """
        slots = self._slots(self._flats[0])
        begin = self._rank * self.numbers * _DIGITS
        slots[begin : begin + self.numbers * _DIGITS] = torch.tensor(digits(numbers), dtype=slots.dtype)
        for flat in self._flats:
            if source == self._rank:
                self._copy_buffers(flat, into_views=True)
            if self.group:
                dist.all_reduce(flat.buffer, group=self.group)
        told = from_digits([int(digit) for digit in slots.tolist()])
        by_rank = [told[begin : begin + self.numbers] for begin in range(0, len(told), self.numbers)]
        # A sum over nothing has no mean.
        total = None if divisor is None else max(1, sum(own[divisor] for own in by_rank))
        for flat in self._flats:
            self._copy_buffers(flat, into_views=False)
            for view, parameter in zip(flat.views, flat.tensors, strict=True):
                if isinstance(parameter, torch.nn.Parameter):
                    parameter.grad = fsdp.own_shard(view if total is None else view.div_(total), parameter)
        return by_rank

    def _slots(self, flat: _Flat) -> torch.Tensor:
        slots = flat.buffer[flat.buffer.numel() - self._world_size * self.numbers * _DIGITS :]
        return slots.real if slots.is_complex() else slots

    def _copy_buffers(self, flat: _Flat, *, into_views: bool) -> None:
        for view, buffer in zip(flat.views, flat.tensors, strict=True):
            if not isinstance(buffer, torch.nn.Parameter):
                to, of = (view, buffer) if into_views else (buffer, view)
                to.copy_(of)


def digits(numbers: Sequence[int]) -> list[int]:
    """Encodes whole numbers as :data:`_DIGITS` digits each, the least significant first."""
    return [number // _BASE**place % _BASE for number in numbers for place in range(_DIGITS)]


def from_digits(told: Sequence[int]) -> list[int]:
    """Decodes the result of :func:`digits`."""
    return [
        sum(digit * _BASE**place for place, digit in enumerate(told[begin : begin + _DIGITS]))
        for begin in range(0, len(told), _DIGITS)
    ]


def _view(buffer: torch.Tensor, offset: int, tensor: torch.Tensor) -> torch.Tensor:
    """Returns a view with a tensor's shape and layout: optimizers are faster if gradients match the layout."""
    flat = buffer[offset : offset + tensor.numel()]
    for layout in (torch.channels_last, torch.channels_last_3d):
        is_of_its_dimensions = tensor.ndim == (4 if layout == torch.channels_last else 5)
        if is_of_its_dimensions and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=layout):
            return flat.as_strided(tensor.shape, tensor.stride())
    return flat.view(tensor.shape)
