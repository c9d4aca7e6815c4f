"""The places of a training: one of several ranks with uneven batches, or one process with whole batches."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import evenstep
from evenstep.samples.order import GivenIndices, Order
from training import EPOCHS, GLOBAL_BATCH, Samples

#: Plans of successive iterations, by the number of ranks; some have a rank without samples.
PLANS = {3: [[6, 5, 5], [12, 3, 1], [2, 4, 10], [0, 14, 2], [13, 3, 0]], 2: [[5, 11], [16, 0], [3, 13]]}

Batches = Iterator[Any]


class World(Protocol):
    """The place of a training: one of several ranks, or one process."""

    def batches(self, dataset: Any = None, **options: Any) -> Batches:
        """Yields this rank's batches of all epochs."""

    def steps(self, model: torch.nn.Module, **options: Any) -> Iterator[Iterable[Any]]:
        """Yields the hedged steps of all epochs."""

    def ddp(self, net: torch.nn.Module, *, loss: Any = "mean", inner: Any = None, **options: Any) -> Any:
        """Returns the model to train."""

    def fsdp(self, net: Any, loss: Any = ..., **options: Any) -> Any:
        """Returns the model to train, sharded."""

    def mean(self, total: torch.Tensor, number: Any, *, counts: bool = False) -> torch.Tensor:
        """Returns the loss of a sum over ``number`` samples or tokens."""

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Returns the loss for a model that is not wrapped."""

    def step(self, batch: Any = ...) -> AbstractContextManager[Any]:
        """Marks an iteration, by default the oldest one that has not begun."""

    def accumulates(self, at: int) -> bool:
        """Returns whether batch ``at`` of the training is not the last one of its iteration."""

    @property
    def is_last(self) -> bool:
        """Whether the batch read last is the last one of its iteration."""


class Ranks:
    """A rank with uneven batches."""

    def __init__(self, factor: int = 1) -> None:
        """Creates a job whose batches are multiples of ``factor``."""
        self.micro_batches = factor
        plans = PLANS[dist.get_world_size()]
        self.job = evenstep.init(plan=lambda at: [batch * factor for batch in plans[at % len(plans)]])

    def batches(self, dataset: Any = None, **options: Any) -> Batches:
        self.loader = self.job.loader(dataset or Samples(), accumulate=self.micro_batches, **options)
        for _ in range(EPOCHS):
            yield from self.loader

    def steps(self, model: torch.nn.Module, **options: Any) -> Iterator[Iterable[Any]]:
        data = Samples()
        for _ in range(EPOCHS):
            yield from self.job.steps(data, model=model, **options)

    def ddp(self, net: torch.nn.Module, *, loss: Any = "mean", inner: Any = None, **options: Any) -> Any:
        model = DistributedDataParallel(net, **options)
        return model if loss is None else self.job.wrap(model, loss=loss, inner=inner)

    def fsdp(self, net: Any, loss: Any = "mean", **options: Any) -> Any:
        for module in (net[0], net[2], net):
            fully_shard(module, **options)
        return self.job.wrap(net, loss=loss)

    def mean(self, total: torch.Tensor, number: Any, *, counts: bool = False) -> torch.Tensor:
        if counts:
            self.job.count(number)
        return total

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return self.job.scale(loss)

    def step(self, batch: Any = ...) -> AbstractContextManager[Any]:
        return self.job.step(batch)

    def accumulates(self, at: int) -> bool:
        return (at + 1) % self.micro_batches != 0

    @property
    def is_last(self) -> bool:
        return bool(self.loader.is_last)


class Alone:
    """One process with whole batches, read by PyTorch's own loader."""

    is_last = True

    def __init__(self, factor: int = 1) -> None:
        """Stores the number by which the batches of ranks are larger."""
        self.factor = factor
        #: The models to train, each with its parameters at the start.
        self.models: list[tuple[Any, list[torch.Tensor]]] = []

    def batches(
        self, dataset: Any = None, *, drop_last: bool = False, order: Any = None, collate_fn: Any = None, **_: Any
    ) -> Batches:
        dataset = dataset or Samples()
        given = None if order is None else GivenIndices.of(order, len(dataset))
        samples = given.samples if given else len(dataset)
        plan = Order(samples, GLOBAL_BATCH * self.factor, shuffle=given is None, drop_last=drop_last, given=given)
        for epoch in range(EPOCHS):
            whole = plan.permutation(epoch).split(plan.global_batch)[: plan.steps]
            yield from DataLoader(dataset, batch_sampler=[at.tolist() for at in whole], collate_fn=collate_fn)

    def steps(self, model: torch.nn.Module, **_: Any) -> Iterator[Iterable[Any]]:
        del model
        return (iter([batch]) for batch in self.batches())

    def ddp(self, net: torch.nn.Module, **_: Any) -> Any:
        self.models.append((net, [parameter.detach().clone() for parameter in net.parameters()]))
        return net

    def fsdp(self, net: Any, loss: Any = "mean", **_: Any) -> Any:  # noqa: ARG002  # As of ranks.
        return self.ddp(net)

    def distance(self) -> float:
        """Returns how far the parameters of each model moved, at least."""
        return min(
            max(float((now - before).detach().abs().max()) for now, before in zip(net.parameters(), start, strict=True))
            for net, start in self.models
        )

    def mean(self, total: torch.Tensor, number: Any, **_: Any) -> torch.Tensor:
        mean: torch.Tensor = total / number
        return mean

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return loss

    def step(self, _batch: Any = ...) -> AbstractContextManager[Any]:
        return nullcontext()

    def accumulates(self, _at: int) -> bool:
        return False
