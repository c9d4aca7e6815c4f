"""A small training in float64, on ranks of a group and in one process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset, WeightedRandomSampler

import evenstep
from evenstep.samples.order import Order

SAMPLES = 205
GLOBAL_BATCH = 16
EPOCHS = 2

#: Plans of three ranks, by name.
PLANS: dict[str, Callable[[int], Sequence[int]]] = {
    "6/5/5": lambda _: [6, 5, 5],
    "12/3/1": lambda _: [12, 3, 1],
    "changing": lambda iteration: [[6, 5, 5], [12, 3, 1], [2, 4, 10], [1, 14, 1]][iteration % 4],
    "13/3/0": lambda _: [13, 3, 0],
}


class Samples(Dataset[tuple[torch.Tensor, torch.Tensor, int]]):
    """Inputs, targets, and the index of the sample."""

    def __init__(self, samples: int = SAMPLES) -> None:
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(samples, 8, generator=generator, dtype=torch.float64)
        self.y = torch.sin(self.x @ torch.randn(8, 3, generator=generator, dtype=torch.float64))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return self.x[index], self.y[index], index


def weighted(epoch: int) -> list[int]:
    """Draws 150 samples with replacement, as for unbalanced classes."""
    weights = [1.0 + sample % 7 for sample in range(SAMPLES)]
    return list(WeightedRandomSampler(weights, 150, generator=torch.Generator().manual_seed(epoch)))


def bucketed(epoch: int) -> torch.Tensor:
    """Samples of similar length follow each other; the order of the buckets is random."""
    buckets = torch.arange(SAMPLES).split(25)
    order = torch.randperm(len(buckets), generator=torch.Generator().manual_seed(epoch)).tolist()
    return torch.cat([buckets[at] for at in order])


def network() -> torch.nn.Module:
    torch.manual_seed(3)
    hidden = torch.nn.Linear(8, 16)
    return torch.nn.Sequential(hidden, torch.nn.Tanh(), torch.nn.Linear(16, 3)).double()


def parameters(model: torch.nn.Module) -> list[list[float]]:
    return [parameter.detach().flatten().tolist() for parameter in model.parameters()]


def difference(one: list[list[float]], other: list[list[float]]) -> float:
    """Returns the largest difference of two sets of parameters."""
    return max(abs(a - b) for xs, ys in zip(one, other, strict=True) for a, b in zip(xs, ys, strict=True))


@dataclass
class Trained:
    """The result of a training."""

    parameters: list[list[float]]
    #: Samples with a weight, in the order of computation.
    seen: list[int] = field(default_factory=list)


def sgd(model: torch.nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def loss_of(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.mse_loss(model(x), y)


def one_process(epochs: int = EPOCHS, order: Order | None = None, clip: float | None = None) -> list[list[float]]:
    """The reference: whole batches, plain PyTorch."""
    order = order or Order(SAMPLES, GLOBAL_BATCH)
    data, model = Samples(order.samples), network()
    optimizer = sgd(model)
    for epoch in range(epochs):
        permutation = order.permutation(epoch)
        for step in range(order.steps):
            at = permutation[step * order.global_batch :][: order.size(step)]
            optimizer.zero_grad()
            loss_of(model, data.x[at], data.y[at]).backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
    return parameters(model)


def train(_rank: int, plan: str, **options: Any) -> Trained:
    """The script of a user."""
    job = evenstep.init(plan=PLANS[plan])
    loader = job.loader(Samples(), **options)
    model = job.wrap(DistributedDataParallel(network()))
    optimizer = sgd(model)
    trained = Trained([])
    for _ in range(EPOCHS):
        for x, y, index in loader:
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
            if job._run.current.step.local_batch:
                trained.seen += index.tolist()
    trained.parameters = parameters(model)
    return trained


def train_stock(_rank: int, plan: str) -> list[list[float]]:
    """Trains on the same uneven batches with DDP's own average."""
    job = evenstep.init(plan=PLANS[plan])
    loader = job.loader(Samples())
    model = DistributedDataParallel(network())
    optimizer = sgd(model)
    for _ in range(EPOCHS):
        for x, y, _index in loader:
            with job.step():
                optimizer.zero_grad()
                loss_of(model, x, y).backward()
                optimizer.step()
    assert dist.get_world_size() == 3
    return parameters(model)
