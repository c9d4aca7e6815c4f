"""Uses of DDP beyond those of test_cases: what raises an error, compressed gradients, and the reduced loss."""

from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import evenstep
from evenstep.run.binding import Binding
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
    model = job.wrap(DistributedDataParallel(network()))
    refused(lambda: job.wrap(network()))
    # On CPUs DDP rejects it at construction.
    synced = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8)))
    synced.module.append(torch.nn.SyncBatchNorm(8))
    refused(lambda: job.wrap(synced))
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        refused(lambda: job.wrap(DistributedDataParallel(network())))
    static = DistributedDataParallel(network(), static_graph=True)
    refused(lambda: next(iter(evenstep.init(plan=[10, 6]).steps(Samples(), global_batch=16, model=static))))
    net: Any = network().float()
    named = [("2.bias", net[2].bias)]
    delayed = DistributedDataParallel(net, delay_all_reduce_named_params=named, param_to_hook_all_reduce=net[0].weight)
    refused(lambda: job.wrap(delayed, loss="tokens"))
    refused(lambda: job.wrap(model))
    return told


def test_what_would_be_wrong_is_refused() -> None:
    plain, synced, python_reducer, static, delayed, twice = run_ranks(2, refuses)[0]
    assert "wrap(Sequential): must be DistributedDataParallel" in plain
    assert "job.scale(loss).backward()" in plain
    assert synced.startswith("SyncBatchNorm")
    assert "optimize_ddp='python_reducer'" in python_reducer
    assert "job.steps with static_graph=True" in static
    assert 'use loss="mean" without inner' in delayed
    assert "make a new DistributedDataParallel(model.module)" in twice


class PartlyUsed(torch.nn.Module):
    """A network with a part that no rank uses, in separate buckets."""

    def __init__(self, is_first: bool) -> None:
        super().__init__()
        unused = torch.nn.Linear(8, 16).double()
        self.parts = torch.nn.ModuleList([unused, network()] if is_first else [network(), unused])
        self.used = self.parts[is_first]

    def forward(self, x: torch.Tensor) -> Any:
        return self.used(x)


def skipped(_rank: int, is_first: bool, loss: Any) -> Parameters:
    job = evenstep.init(plan=PLANS["changing"])
    loader, net = job.loader(Samples()), PartlyUsed(is_first)
    options: dict[str, Any] = {"find_unused_parameters": True, "skip_all_reduce_unused_params": True}
    model = job.wrap(DistributedDataParallel(net, bucket_cap_mb=1e-4, **options), loss=loss)
    optimizer = sgd(net)
    for at, (x, y, _) in enumerate(epochs_of(loader)):
        optimizer.zero_grad()
        if loss == "tokens":
            job.count(len(x))
        (loss_of(model, x, y) * (len(x) if loss == "tokens" else 1)).backward()
        optimizer.step()
        assert job.state_dict()["iteration"] == at + 1
    return parameters(net.used)


@pytest.mark.skipif(
    "skip_all_reduce_unused_params" not in signature(DistributedDataParallel).parameters, reason="new in PyTorch 2.9"
)
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("loss", ["mean", "tokens"])
def test_skipped_buckets(is_first: bool, loss: str) -> None:
    reference = one_process()
    for trained in run_ranks(3, skipped, is_first, loss):
        assert difference(trained, reference) <= 1e-13


def delayed(_rank: int) -> Parameters:
    """PyTorch waits for no sum of delayed gradients, so the test does."""
    works, all_reduce = list[Any](), dist.all_reduce

    def noted(*args: Any, **options: Any) -> Any:
        works.append(all_reduce(*args, **options))
        return works[-1]

    dist.all_reduce = noted
    job = evenstep.init(plan=PLANS["changing"])
    loader = job.loader(Samples())
    net: Any = network().float()
    named = [("2.weight", net[2].weight), ("2.bias", net[2].bias)]
    ddp = DistributedDataParallel(net, delay_all_reduce_named_params=named, param_to_hook_all_reduce=net[0].weight)
    model, optimizer = job.wrap(ddp), sgd(net)
    for x, y, _ in epochs_of(loader):
        works.clear()
        loss_of(model, x.float(), y.float()).backward()
        assert len(works) == 1
        works[0].wait()
        optimizer.step()
        optimizer.zero_grad()
    return parameters(net)


def test_delayed_parameters() -> None:
    reference = one_process()
    for trained in run_ranks(3, delayed):
        assert difference(trained, reference) <= 1e-6


class Segments(torch.nn.Module):
    """Three layers, each in a checkpoint, whose backward passes are inside the whole one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8).double() for _ in range(3))

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            x = checkpoint(layer, x.requires_grad_(), use_reentrant=True)
        return x


def ready(_rank: int) -> list[int]:
    """Returns how many parameters have a gradient that is not averaged when a rank is ready, by iteration."""
    found, own, original = list[int](), list[torch.Tensor](), Binding.complete
    job = evenstep.init(plan=[12, 4])
    loader, net = job.loader(Samples()), Segments()
    model = job.wrap(DistributedDataParallel(net, static_graph=True))

    def noted(binding: Binding, **options: Any) -> None:
        own.extend(parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None)
        original(binding, **options)

    Binding.complete = noted  # type: ignore[method-assign,assignment]
    for x, _y, _ in loader:
        model(x).sum().backward()
        averaged = [parameter.grad for parameter in net.parameters()]
        found.append(sum(at is not None and not torch.equal(at, was) for was, at in zip(own, averaged, strict=True)))
        own.clear()
        net.zero_grad()
    return found


def test_a_rank_is_ready_with_its_last_gradient() -> None:
    """The time of a rank ends before DDP waits for other ranks, which it may do inside of a pass with checkpoints."""
    for found in run_ranks(2, ready):
        assert found == [6] * 13


def differentiated(_rank: int) -> bool:
    """Returns whether gradients that the script computes itself belong to this rank."""
    job = evenstep.init(plan=[12, 4])
    loader, net = job.loader(Samples()), network()
    model, alone = job.wrap(DistributedDataParallel(net)), network()
    x, y, _ = next(iter(loader))
    pairs = [torch.autograd.grad(loss_of(at, x, y), list(at.parameters())) for at in (model, alone)]
    return all(torch.equal(own, other) for own, other in zip(*pairs, strict=True))


def test_a_script_may_compute_gradients_itself() -> None:
    assert run_ranks(2, differentiated) == [True, True]


def large(_rank: int, is_half: bool) -> list[float]:
    """Returns the largest gradients of a rank whose share times them is more than float16 can hold."""
    job, told = evenstep.init(plan=[15, 1, 0]), []
    net: Any = network().half() if is_half else network().float()
    model = job.wrap(DistributedDataParallel(net), inner=None if is_half else fp16_compress_hook)
    for x, _y, _ in job.loader(Samples(64)):
        net.zero_grad()
        (model(x.to(net[0].weight.dtype)).sum(dim=1).mean() * 30000).backward()
        told.append(float(net[2].bias.grad.abs().max()))
    return told


@pytest.mark.parametrize("is_half", [True, False])
def test_weights_do_not_overflow_float16(is_half: bool) -> None:
    for told in run_ranks(3, large, is_half):
        assert told == pytest.approx([30000.0] * 4, rel=2e-3)


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
