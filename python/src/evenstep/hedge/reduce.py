"""The one all-reduce of a hedged iteration: gradients, and what ranks tell each other, in one flat sum.

Why not DDP's, which runs beside the last backward pass: which pass is the last is known only when a claim comes back
empty, after that pass. So gradients of all passes add up in a flat buffer of our own, each with its exact weight
``samples / global_batch``, and are summed over ranks once, after the last. Nothing overlaps the sum then. In return a
rank has as many passes as it has time for, without any of them waiting for another rank.

Gradients are taken out after each pass, and not scaled where they are from the weight of one pass to that of the next:
either way goes over them once, but here each is weighted once, whatever the number of passes; a ``zero_grad`` between
passes does no harm; and what is reduced is there already, without a copy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
import torch.distributed as dist

#: A rank tells of whole numbers in digits of this base, each in a slot of its own rank: a sum hands them out exactly in
#: every floating-point type, of which bfloat16 holds whole numbers up to 256.
_BASE = 256

#: Digits of each number.
_DIGITS = 4


@dataclass(slots=True)
class _Flat:
    """What has one type on one device, in one buffer."""

    tensors: list[torch.Tensor]
    buffer: torch.Tensor
    views: list[torch.Tensor]

    @classmethod
    def of(cls, tensors: list[torch.Tensor], slots: int, like: torch.Tensor) -> "_Flat":
        """Views of the tensors' shapes and strides, and so many slots after them."""
        sizes = [tensor.numel() for tensor in tensors]
        buffer = torch.zeros(sum(sizes) + slots, dtype=like.dtype, device=like.device)
        offsets = accumulate(sizes, initial=0)
        views = [_view(buffer, offset, tensor) for offset, tensor in zip(offsets, tensors, strict=False)]
        return cls(tensors, buffer, views)


@dataclass(slots=True)
class Reducer:
    """Adds up one rank's gradients over the passes of an iteration, and all ranks' after them."""

    parameters: Sequence[torch.nn.Parameter]
    buffers: Sequence[torch.Tensor]
    group: dist.ProcessGroup | None
    #: How many whole numbers each rank tells.
    numbers: int
    _flats: list[_Flat] = field(init=False)
    _world_size: int = field(init=False)
    _rank: int = field(init=False)

    def __post_init__(self) -> None:
        """Lays out a flat buffer for each type and device; the first also carries the numbers."""
        self._world_size, self._rank = (self.group.size(), self.group.rank()) if self.group else (1, 0)
        by_kind: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
        for tensor in (*self.parameters, *self.buffers):
            by_kind.setdefault((tensor.dtype, tensor.device), []).append(tensor)
        slots = self._world_size * self.numbers * _DIGITS
        kinds = sorted(by_kind.values(), key=lambda tensors: not tensors[0].is_floating_point())
        self._flats = [_Flat.of(tensors, 0 if at else slots, tensors[0]) for at, tensors in enumerate(kinds)]

    @property
    def device(self) -> torch.device:
        """Where the gradients are."""
        return self.parameters[0].device

    def begin(self) -> None:
        """An iteration begins: nothing is added up, and gradients that are left of another one are dropped."""
        for flat in self._flats:
            flat.buffer.zero_()
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def add(self, weight: float) -> None:
        """Takes the gradients of a pass out of the parameters, with this weight; what the pass did not use has none."""
        for flat in self._flats:
            pairs = [
                (view, parameter.grad)
                for view, parameter in zip(flat.views, flat.tensors, strict=True)
                if isinstance(parameter, torch.nn.Parameter) and parameter.grad is not None
            ]
            if pairs:
                views, gradients = zip(*pairs, strict=True)
                torch._foreach_add_(list(views), list(gradients), alpha=weight)
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def reduce(self, numbers: Sequence[int], source: int) -> list[list[int]]:
        """Sums over all ranks; the parameters then have the gradient of the whole iteration.

        Args:
            numbers: what this rank tells, each at least 0 and below 2^32.
            source: the rank whose buffers all get.

        Returns:
            what each rank told.
        """
        slots = self._slots(self._flats[0])
        begin = self._rank * self.numbers * _DIGITS
        slots[begin : begin + self.numbers * _DIGITS] = torch.tensor(digits(numbers), dtype=slots.dtype)
        for flat in self._flats:
            if source == self._rank:
                self._copy_buffers(flat, into_views=True)
            if self.group:
                dist.all_reduce(flat.buffer, group=self.group)
            self._copy_buffers(flat, into_views=False)
            for view, parameter in zip(flat.views, flat.tensors, strict=True):
                if isinstance(parameter, torch.nn.Parameter):
                    parameter.grad = view
        told = from_digits([int(digit) for digit in slots.tolist()])
        return [told[begin : begin + self.numbers] for begin in range(0, len(told), self.numbers)]

    def _slots(self, flat: _Flat) -> torch.Tensor:
        return flat.buffer[flat.buffer.numel() - self._world_size * self.numbers * _DIGITS :]

    def _copy_buffers(self, flat: _Flat, *, into_views: bool) -> None:
        for view, buffer in zip(flat.views, flat.tensors, strict=True):
            if not isinstance(buffer, torch.nn.Parameter):
                to, of = (view, buffer) if into_views else (buffer, view)
                to.copy_(of)


def digits(numbers: Sequence[int]) -> list[int]:
    """Whole numbers as digits, the least first, :data:`_DIGITS` each."""
    return [number // _BASE**place % _BASE for number in numbers for place in range(_DIGITS)]


def from_digits(told: Sequence[int]) -> list[int]:
    """Reads what :func:`digits` wrote."""
    return [
        sum(digit * _BASE**place for place, digit in enumerate(told[begin : begin + _DIGITS]))
        for begin in range(0, len(told), _DIGITS)
    ]


def _view(buffer: torch.Tensor, offset: int, tensor: torch.Tensor) -> torch.Tensor:
    """Of a tensor's shape, in its own layout: optimizers are quick where gradients lie as their parameters do."""
    flat = buffer[offset : offset + tensor.numel()]
    for layout in (torch.channels_last, torch.channels_last_3d):
        is_of_its_dimensions = tensor.ndim == (4 if layout == torch.channels_last else 5)
        if is_of_its_dimensions and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=layout):
            return flat.as_strided(tensor.shape, tensor.stride())
    return flat.view(tensor.shape)
