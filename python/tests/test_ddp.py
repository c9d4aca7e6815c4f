"""Uses of DDP beyond those of test_cases: what raises an error, compressed gradients, and the reduced loss."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import evenstep
from evenstep.samples.order import Order
from ranks import run_ranks
from training import (
    EPOCHS,
    GLOBAL_BATCH,
    PLANS,
    SAMPLES,
    Samples,
    difference,
    loss_of,
    network,
    one_process,
    parameters,
    sgd,
)

TOLERANCE = 1e-14

Parameters = list[list[float]]


def epochs_of(loader: Any) -> Any:
    for _ in range(EPOCHS):
        yield from loader


class MixedTypes(torch.nn.Module):
    """A network in float64 with a factor in float32: DDP has two buckets from the start."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.ones(1))
        self.network = network()

    def forward(self, x: torch.Tensor) -> Any:
        return self.network(x) * self.factor.double()


def static_graph_of_two_types(_rank: int, plan: str) -> Parameters:
    job = evenstep.init(plan=PLANS[plan])
    loader = job.loader(Samples())
    model = job.wrap(DistributedDataParallel(MixedTypes(), static_graph=True))
    optimizer = sgd(model.module.network)
    for at, (x, y, _) in enumerate(epochs_of(loader)):
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
        assert job.state_dict()["iteration"] == at + 1
    return parameters(model.module.network)


def test_a_static_graph_of_parameters_of_two_types() -> None:
    reference = one_process()
    for trained in run_ranks(3, static_graph_of_two_types, "changing"):
        assert difference(trained, reference) <= TOLERANCE


def refuses(_rank: int) -> list[str]:
    told = []

    def refused(work: Callable[[], object]) -> None:
        with pytest.raises(evenstep.UnsupportedError) as error:
            work()
        told.append(str(error.value))

    job = evenstep.init(plan=[10, 6])
    loader = job.loader(Samples())
    model = job.wrap(DistributedDataParallel(network()))
    refused(lambda: job.wrap(network()))
    # On CPUs DDP rejects it at construction.
    synced = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8)))
    synced.module.append(torch.nn.SyncBatchNorm(8))
    refused(lambda: job.wrap(synced))
    batches = iter(loader)
    x, _y, _ = next(batches)
    with model.no_sync():
        refused(lambda: model(x))
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        refused(lambda: job.wrap(DistributedDataParallel(network())))
    static = DistributedDataParallel(network(), static_graph=True)
    refused(lambda: next(iter(evenstep.init(plan=[10, 6]).steps(Samples(), global_batch=16, model=static))))
    return told


def test_what_would_be_wrong_is_refused() -> None:
    plain, synced, no_sync, python_reducer, static = run_ranks(2, refuses)[0]
    assert "wrap(Sequential): must be DistributedDataParallel" in plain
    assert "job.scale(loss).backward()" in plain
    assert synced.startswith("SyncBatchNorm")
    assert "accumulate=N" in no_sync
    assert "optimize_ddp='python_reducer'" in python_reducer
    assert "job.steps with static_graph=True" in static


def compressed(_rank: int) -> Parameters:
    job = evenstep.init(plan=[12, 4])
    loader = job.loader(Samples())
    model = job.wrap(DistributedDataParallel(network().float()), inner=bf16_compress_hook)
    x, y, _ = next(iter(loader))
    loss_of(model, x.float(), y.float()).backward()
    return [parameter.grad.flatten().tolist() for parameter in model.parameters() if parameter.grad is not None]


def test_compressed_gradients_are_weighted_too() -> None:
    order, data, model = Order(SAMPLES, GLOBAL_BATCH), Samples(), network().float()
    at = order.permutation(0)[:GLOBAL_BATCH]
    loss_of(model, data.x[at].float(), data.y[at].float()).backward()
    reference = [parameter.grad.flatten().tolist() for parameter in model.parameters() if parameter.grad is not None]
    largest = max(abs(value) for values in reference for value in values)
    assert difference(run_ranks(2, compressed)[0], reference) <= 2**-8 * largest * 2, "two roundings to eight bits"


def losses(_rank: int, plan: str) -> list[float]:
    job = evenstep.init(plan=PLANS[plan])
    loader = job.loader(Samples())
    model = job.wrap(DistributedDataParallel(network()))
    optimizer = sgd(model)
    means = []
    for x, y, _ in epochs_of(loader):
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        means.append(job.reduce(loss).item())
        loss.backward()
        optimizer.step()
    return means


def means_of_two(_rank: int) -> tuple[list[list[float]], str]:
    """Reduces a whole number and the share of a rank, in hedged steps and with ``job.scale``."""
    hedged, scaled, means = evenstep.init(), evenstep.init(plan=[13, 3, 0]), []
    model = DistributedDataParallel(network())
    for step in hedged.steps(Samples(32), global_batch=16, model=model, tail=0.5):
        computed = 0
        for x, y, _ in step:
            computed += len(x)
            loss_of(model, x, y).backward()
        means.append(hedged.reduce(torch.tensor([7.0, computed / 16 * 3])).tolist())
    hedged.close()
    for x, y, _ in scaled.loader(Samples(16)):
        loss = loss_of(network(), x, y)
        with pytest.raises(evenstep.UnsupportedError) as error:
            scaled.reduce(loss)
        scaled.scale(loss).backward()
        means.append(scaled.reduce(torch.tensor([7, len(x)])).tolist())
    return means, str(error.value)


def test_means_of_hedged_steps_and_of_scaled_losses() -> None:
    for [first, second, scaled], error in run_ranks(3, means_of_two):
        assert first[0] == second[0] == scaled[0] == pytest.approx(7.0)
        # Each rank's part times itself: at least the third of equal parts.
        assert min(first[1], second[1]) >= 1 - TOLERANCE
        assert scaled[1] == pytest.approx((13 * 13 + 3 * 3) / 16)
        assert "after job.scale" in error


@pytest.mark.parametrize("plan", ["changing", "13/3/0"])
def test_the_reduced_loss_is_that_of_the_whole_batch(plan: str) -> None:
    order, data, model = Order(SAMPLES, GLOBAL_BATCH), Samples(), network()
    optimizer, expected = sgd(model), []
    for epoch in range(EPOCHS):
        for batch in order.permutation(epoch).split(GLOBAL_BATCH):
            optimizer.zero_grad()
            loss = loss_of(model, data.x[batch], data.y[batch])
            expected.append(loss.item())
            loss.backward()
            optimizer.step()
    for means in run_ranks(3, losses, plan):
        assert means == pytest.approx(expected, abs=TOLERANCE)
