"""Synchronized batch norm with `job.scale`. PyTorch's own needs GPUs, so this computes the same on CPUs."""

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import evenstep
from evenstep.samples.order import Order
from ranks import run_ranks
from training import EPOCHS, GLOBAL_BATCH, SAMPLES, Samples, difference, loss_of, network, parameters, sgd

TOLERANCE = 1e-13

PLANS = [[10, 4, 2], [1, 12, 3], [6, 5, 5]]


class _Sum(torch.autograd.Function):
    """The sum over ranks. Its gradient is the sum of the gradients."""

    @staticmethod
    def forward(_: Any, value: torch.Tensor) -> torch.Tensor:
        total = value.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total


class SyncBatchNorm(torch.nn.BatchNorm1d):
    """Normalises over the samples of all ranks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = torch.ones(1, dtype=x.dtype)
        count, total, squares = _Sum.apply(torch.cat([len(x) * one, x.sum(0), (x * x).sum(0)])).split([1, 16, 16])
        mean = total / count
        normal: torch.Tensor = (x - mean) / (squares / count - mean**2 + self.eps).sqrt() * self.weight + self.bias
        return normal


def normalised(norm: torch.nn.Module) -> torch.nn.Module:
    net = network()
    net[1] = torch.nn.Sequential(norm.double(), torch.nn.Tanh())  # type: ignore[operator]  # A Sequential.
    return net


def train(_rank: int) -> list[list[float]]:
    job = evenstep.init(plan=lambda iteration: PLANS[iteration % len(PLANS)])
    loader = job.loader(Samples())
    model = DistributedDataParallel(normalised(SyncBatchNorm(16)))
    optimizer = sgd(model)
    for _ in range(EPOCHS):
        for x, y, _index in loader:
            optimizer.zero_grad()
            job.scale(loss_of(model, x, y)).backward()
            optimizer.step()
    return parameters(model)


def one_process() -> list[list[float]]:
    order, data, model = Order(SAMPLES, GLOBAL_BATCH), Samples(), normalised(torch.nn.BatchNorm1d(16))
    optimizer = sgd(model)
    for epoch in range(EPOCHS):
        for at in order.permutation(epoch).split(GLOBAL_BATCH):
            optimizer.zero_grad()
            loss_of(model, data.x[at], data.y[at]).backward()
            optimizer.step()
    return parameters(model)


def test_uneven_batches_have_the_statistics_of_one_process() -> None:
    reference = one_process()
    found = max(difference(ours, reference) for ours in run_ranks(3, train))
    print(f"difference {found:.1e}")
    assert found <= TOLERANCE
