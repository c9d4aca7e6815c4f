"""The samples of an epoch in order, and its iterations."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from evenstep._native import Shuffle
from evenstep.samples.order import Order, epoch_seed
from evenstep.samples.progress import Progress

#: Number of samples whose costs are read at once to find the end of an iteration.
_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class Place:
    """An iteration, and its samples as a part of its epoch's order."""

    #: Number of optimizer steps since the start of the run.
    iteration: int
    epoch: int
    #: Position of the iteration in its epoch.
    position: int
    #: Position of its first sample in the order of its epoch.
    begin: int
    #: Number of samples over all ranks.
    size: int
    is_last: bool


@dataclass(slots=True)
class Epoch:
    """The samples of an epoch in order, and its iterations."""

    order: Order
    number: int
    #: The whole order, if it is not computed position by position.
    whole: torch.Tensor | None = None
    _shuffle: Shuffle | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """With costs, the permutation is computed where it is read, so a resume is immediate."""
        order = self.order
        if order.is_computed:
            self._shuffle = Shuffle(order.samples, epoch_seed(order.seed, self.number)) if order.shuffle else None
        elif self.whole is None:
            self.whole = order.permutation(self.number)

    def indices(self, begin: int, size: int) -> list[int]:
        """Returns the data-set indices of ``size`` samples in order."""
        if self.whole is not None:
            found: list[int] = self.whole[begin : begin + size].tolist()
            return found
        end = min(begin + size, self.order.samples)
        if self._shuffle is None:
            return list(range(begin, end))
        permuted = bytearray(self._shuffle.indices(begin, end))
        return list(torch.frombuffer(permuted, dtype=torch.int64).tolist())

    def places(self, begun: Progress) -> Iterator[Place]:
        """Yields the iterations from ``begun`` on."""
        iteration, position, begin = begun.iteration, begun.position, begun.sample
        end, is_last = self.order.trained_samples, False
        while begin < end and not is_last:
            size = self._size(begin)
            is_last = begin + size >= end or position + 1 == self.order.limit
            yield Place(iteration, self.number, position, begin, size, is_last)
            iteration, position, begin = iteration + 1, position + 1, begin + size

    def __len__(self) -> int:
        """The number of iterations. With a token budget it reads all costs."""
        return sum(1 for _ in self.places(Progress()))

    def _size(self, begin: int) -> int:
        """Returns the number of samples of the iteration that begins at a sample."""
        order, costs = self.order, self.order.costs
        if costs is None or costs.budget is None:
            return min(order.global_batch, order.samples - begin)
        size, left = 0, float(costs.budget)
        while begin + size < order.samples:
            for cost in costs.at(self.indices(begin + size, _BLOCK)):
                if cost > left:
                    return size
                left -= cost
                size += 1
        return size
