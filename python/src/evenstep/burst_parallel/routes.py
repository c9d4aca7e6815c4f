"""The way of samples between the shares of two blocks, and its autograd function."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

#: The samples of each rank, in order. Samples have their numbers in the global batch.
Layout = tuple[tuple[int, ...], ...]


def first_layout(shares: Sequence[int]) -> Layout:
    """Returns contiguous ranges of the global batch in rank order."""
    ends = [sum(shares[: rank + 1]) for rank in range(len(shares))]
    return tuple(tuple(range(end - share, end)) for share, end in zip(shares, ends, strict=True))


def moved(layout: Layout, shares: Sequence[int]) -> Layout:
    """Returns the layout after a change of shares.

    A rank keeps the samples that it has first. The surplus goes in rank order to the ranks with too few, so that no
    rank sends or receives more than the difference of its shares: the planner counts this amount.
    """
    surplus = [sample for own, share in zip(layout, shares, strict=True) for sample in own[share:]]
    after, taken = [], 0
    for own, share in zip(layout, shares, strict=True):
        kept = own[:share]
        missing = share - len(kept)
        after.append(kept + tuple(surplus[taken : taken + missing]))
        taken += missing
    return tuple(after)


@dataclass(frozen=True, slots=True)
class Route:
    """Rows that one rank keeps, sends and receives when samples move from one layout to another."""

    #: Number of first rows that stay where they are.
    kept: int
    #: The rows to send, by destination; None if these are all others in their order.
    picked: tuple[int, ...] | None
    #: Number of rows to each rank.
    sent: list[int]
    #: Number of rows from each rank.
    received: list[int]
    #: The received row at each place behind the kept ones; None if the order stays.
    placed: tuple[int, ...] | None

    @classmethod
    def between(cls, before: Layout, after: Layout, rank: int) -> "Route":
        """Returns the route of a rank."""
        own, new = before[rank], after[rank]
        kept = 0
        while kept < min(len(own), len(new)) and own[kept] == new[kept]:
            kept += 1
        target = {sample: (to, at) for to, samples in enumerate(after) for at, sample in enumerate(samples)}
        source = {sample: (of, at) for of, samples in enumerate(before) for at, sample in enumerate(samples)}
        # Both sides order the rows between two ranks by their place at the destination.
        picked = sorted(range(kept, len(own)), key=lambda at: target[own[at]])
        coming = sorted(range(kept, len(new)), key=lambda at: (source[new[at]][0], at))
        sent, received = [0] * len(before), [0] * len(before)
        for at in picked:
            sent[target[own[at]][0]] += 1
        for at in coming:
            received[source[new[at]][0]] += 1
        placed = sorted(range(len(coming)), key=coming.__getitem__)
        return cls(
            kept,
            None if picked == [*range(kept, len(own))] else tuple(picked),
            sent,
            received,
            None if placed == [*range(len(placed))] else tuple(placed),
        )

    def forward(self, rows: torch.Tensor, exchange: "Exchange") -> torch.Tensor:
        """Returns the rows of this rank in the new layout. All ranks must call it together."""
        out = rows[self.kept :] if self.picked is None else rows[list(self.picked)]
        came = exchange(out, self.sent, self.received)
        return torch.cat([rows[: self.kept], came if self.placed is None else came[list(self.placed)]])

    def backward(self, rows: torch.Tensor, exchange: "Exchange") -> torch.Tensor:
        """Returns the rows of this rank in the old layout, for a route from :func:`moved`, which keeps the order."""
        if not any(self.sent) and not any(self.received):
            return rows
        return torch.cat([rows[: self.kept], exchange(rows[self.kept :], self.received, self.sent)])


class Exchange:
    """Sends rows between the ranks that exchange some."""

    def __init__(self, rank: int, settle: Callable[[], None], group: Any) -> None:
        """Creates the exchange of a rank.

        Args:
            rank: this rank.
            settle: ends the comparison of ranks: until then, another rank may be in another call.
            group: the group for tensors of CPUs.
        """
        self._rank, self._settle, self._group = rank, settle, group
        self._connected = False

    def __call__(self, rows: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
        """Sends rows by destination, and returns those that came, by source. All ranks must call it together."""
        came = rows.new_empty((sum(received), *rows.shape[1:]))
        width = rows.shape[1:].numel()
        coming, going = came.split(received), rows.contiguous().split(sent)
        # A rank may have to order its own rows.
        coming[self._rank].copy_(going[self._rank])
        group = self._group if rows.device.type == "cpu" else None
        operations = [
            # As bytes: Gloo does not know all types.
            dist.P2POp(operation, part.reshape(len(part), width).view(torch.uint8), peer, group)
            for operation, parts in ((dist.irecv, coming), (dist.isend, going))
            for peer, part in enumerate(parts)
            if part.numel() and peer != self._rank
        ]
        self._settle()
        if group is None and len(sent) > 1 and not self._connected:
            # With NCCL, all ranks must take part in the first operation of a group.
            self._connected = True
            dist.all_reduce(torch.zeros(1, device=rows.device))
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()
        return came


class Move(torch.autograd.Function):
    """Moves activations forward along a route, and their gradients back."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, route: Route, exchange: Exchange) -> torch.Tensor:
        """Returns the rows of this rank in the new layout."""
        ctx.route, ctx.exchange = route, exchange
        return route.forward(rows, exchange)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Returns the gradients in the old layout."""
        return ctx.route.backward(gradient, ctx.exchange), None, None
