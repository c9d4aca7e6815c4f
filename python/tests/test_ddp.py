"""Common uses of DDP with uneven batches: each gives the gradient of one process, or raises an error."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import evenstep
from evenstep.order import Order
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
CLIP = 0.05

Parameters = list[list[float]]


class Branching(torch.nn.Module):
    """Uses one of its branches, depending on the batch: ranks differ in the parameters that they use."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.common = torch.nn.Linear(8, 8).double()
        self.branches = torch.nn.ModuleList(torch.nn.Linear(8, 3).double() for _ in range(3))

    def forward(self, x: torch.Tensor) -> Any:
        hidden = torch.tanh(self.common(x))
        positive = x[:, :1] > 0
        used = [
            branch(hidden)
            for branch, use in zip(self.branches, (positive.any(), (~positive).any()), strict=False)
            if use
        ]
        if len(used) == 2:
            return torch.where(positive, *used)
        return used[0]


def epochs_of(loader: Any) -> Any:
    for _ in range(EPOCHS):
        yield from loader


def prefetching(_rank: int, plan: str) -> Parameters:
    job = evenstep.init(plan=PLANS[plan])
    options: dict[str, Any] = {
        "num_workers": 2,
        "prefetch_factor": 3,
        "persistent_workers": True,
        "multiprocessing_context": "fork",
    }
    loader = job.loader(Samples(), **options)
    model = job.wrap(DistributedDataParallel(network()))
    optimizer = sgd(model)
    for x, y, _ in epochs_of(loader):
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
    return parameters(model)


def clipped(_rank: int, plan: str) -> Parameters:
    job = evenstep.init(plan=PLANS[plan])
    loader = job.loader(Samples())
    model = job.wrap(DistributedDataParallel(network()))
    optimizer = sgd(model)
    for x, y, _ in epochs_of(loader):
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
    return parameters(model)


def with_options(_rank: int, plan: str, **options: Any) -> Parameters:
    job = evenstep.init(plan=PLANS[plan])
    loader = job.loader(Samples())
    model = job.wrap(DistributedDataParallel(network(), bucket_cap_mb=0.0005, **options))
    optimizer = sgd(model)
    for x, y, _ in epochs_of(loader):
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
    return parameters(model)


def static_graph(rank: int, plan: str) -> Parameters:
    return with_options(rank, plan, static_graph=True)


def bucket_views(rank: int, plan: str) -> Parameters:
    return with_options(rank, plan, gradient_as_bucket_view=True)


def averaged_inside(_rank: int, plan: str) -> Parameters:
    job = evenstep.init(plan=PLANS[plan])
    loader = job.loader(Samples())
    model = job.wrap(DistributedDataParallel(network()), inner=allreduce_hook)
    optimizer = sgd(model)
    for x, y, _ in epochs_of(loader):
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
    return parameters(model)


def summed_loss(_rank: int, plan: str) -> Parameters:
    job = evenstep.init(plan=PLANS[plan])
    loader = job.loader(Samples())
    model = job.wrap(DistributedDataParallel(network()), loss="sum")
    optimizer = sgd(model)
    for x, y, _ in epochs_of(loader):
        optimizer.zero_grad()
        # The mean is over three outputs of each sample.
        (torch.nn.functional.mse_loss(model(x), y, reduction="sum") / 3).backward()
        optimizer.step()
    return parameters(model)


def scaled_loss(_rank: int, plan: str) -> Parameters:
    """Trains without the hook, with a scaled loss, as frameworks with their own average need it."""
    job = evenstep.init(plan=PLANS[plan])
    loader = job.loader(Samples())
    model = DistributedDataParallel(network())
    optimizer = sgd(model)
    for x, y, _ in epochs_of(loader):
        optimizer.zero_grad()
        job.scale(loss_of(model, x, y)).backward()
        optimizer.step()
    return parameters(model)


def scaler_for(model: torch.nn.Module) -> tuple[torch.optim.SGD, torch.amp.GradScaler]:
    """Returns a scaler whose first scale is too large: the first steps overflow, and all ranks skip them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 / 64, momentum=0.9)
    return optimizer, torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=0.25)


def large_loss(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return 64 * loss_of(model, x.float(), y.float())


def mixed_precision(_rank: int, plan: str) -> Parameters:
    job = evenstep.init(plan=PLANS[plan])
    loader = job.loader(Samples())
    model = job.wrap(DistributedDataParallel(network().float()))
    optimizer, scaler = scaler_for(model)
    for x, y, _ in epochs_of(loader):
        optimizer.zero_grad()
        scaler.scale(large_loss(model, x, y)).backward()
        scaler.step(optimizer)
        scaler.update()
    return [*parameters(model), [scaler.get_scale()]]


def mixed_precision_alone() -> Parameters:
    order, data, model = Order(SAMPLES, GLOBAL_BATCH), Samples(), network().float()
    optimizer, scaler = scaler_for(model)
    for epoch in range(EPOCHS):
        permutation = order.permutation(epoch)
        for step in range(order.steps):
            at = permutation[step * order.global_batch :][: order.size(step)]
            optimizer.zero_grad()
            scaler.scale(large_loss(model, data.x[at], data.y[at])).backward()
            scaler.step(optimizer)
            scaler.update()
    return [*parameters(model), [scaler.get_scale()]]


@pytest.mark.parametrize("plan", ["changing", "13/3/0"])
@pytest.mark.parametrize(
    "work",
    [prefetching, static_graph, bucket_views, averaged_inside, summed_loss, scaled_loss],
    ids=lambda work: work.__name__,
)
def test_it_is_the_gradient_of_one_process(work: Callable[..., Parameters], plan: str) -> None:
    reference = one_process()
    for trained in run_ranks(3, work, plan):
        assert difference(trained, reference) <= TOLERANCE


def test_clipping_sees_the_whole_gradient() -> None:
    reference = one_process(clip=CLIP)
    assert difference(reference, one_process()) > 1e-3, "it clips"
    assert difference(run_ranks(3, clipped, "changing")[0], reference) <= TOLERANCE


def test_a_gradient_scaler_skips_the_same_steps() -> None:
    reference = mixed_precision_alone()
    assert reference[-1][0] < 2.0**126, "it skipped some steps"
    for trained in run_ranks(3, mixed_precision, "changing"):
        assert trained[-1] == reference[-1], "the same scale"
        assert difference(trained[:-1], reference[:-1]) <= 1e-6, "in float32"


def unused_parameters(_rank: int, plan: str) -> Parameters:
    job = evenstep.init(plan=PLANS[plan])
    loader = job.loader(Samples())
    model = job.wrap(DistributedDataParallel(Branching(), find_unused_parameters=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y, _ in epochs_of(loader):
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
    return parameters(model)


def unused_parameters_alone() -> Parameters:
    order, data, model = Order(SAMPLES, GLOBAL_BATCH), Samples(), Branching()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(EPOCHS):
        permutation = order.permutation(epoch)
        for step in range(order.steps):
            at = permutation[step * order.global_batch :][: order.size(step)]
            optimizer.zero_grad()
            loss_of(model, data.x[at], data.y[at]).backward()
            optimizer.step()
    return parameters(model)


def test_parameters_that_some_ranks_do_not_use() -> None:
    reference = unused_parameters_alone()
    for trained in run_ranks(3, unused_parameters, "12/3/1"):
        assert difference(trained, reference) <= TOLERANCE


def accumulated(_rank: int, syncs_each: bool) -> Parameters:
    job = evenstep.init(plan=lambda iteration: [[8, 4, 4], [4, 12, 0]][iteration % 2])
    loader = job.loader(Samples(208), accumulate=4)
    model = job.wrap(DistributedDataParallel(network()))
    optimizer = sgd(model)
    for count, (x, y, _) in enumerate(epochs_of(loader)):
        is_last = count % 4 == 3
        with nullcontext() if is_last or syncs_each else model.no_sync():
            (loss_of(model, x, y) / 4).backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
    return parameters(model)


@pytest.mark.parametrize("syncs_each", [False, True])
def test_accumulation(syncs_each: bool) -> None:
    order, data, model = Order(208, GLOBAL_BATCH), Samples(208), network()
    optimizer = sgd(model)
    for epoch in range(EPOCHS):
        for at in order.permutation(epoch).split(GLOBAL_BATCH):
            optimizer.zero_grad()
            loss_of(model, data.x[at], data.y[at]).backward()
            optimizer.step()
    for trained in run_ranks(3, accumulated, syncs_each):
        assert difference(trained, parameters(model)) <= TOLERANCE


def refuses(_rank: int) -> list[str]:
    told = []

    def refused(work: Callable[[], object]) -> None:
        with pytest.raises(evenstep.UnsupportedError) as error:
            work()
        told.append(str(error.value))

    job = evenstep.init(plan=[10, 6])
    loader = job.loader(Samples())
    model = job.wrap(DistributedDataParallel(network()))
    refused(lambda: job.wrap(network()))  # type: ignore[arg-type]  # The test needs the wrong type.
    # On CPUs DDP rejects it at construction.
    synced = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8)))
    synced.module.append(torch.nn.SyncBatchNorm(8))
    refused(lambda: job.wrap(synced))
    batches = iter(loader)
    x, _y, _ = next(batches)
    with model.no_sync():
        refused(lambda: model(x))
    return told


def reads_ahead(_rank: int) -> str:
    job = evenstep.init(plan=lambda iteration: [10 - iteration, 6 + iteration])
    loader = job.loader(Samples())
    model = job.wrap(DistributedDataParallel(network()))
    batches = iter(loader)
    first = next(batches)
    next(batches)
    with pytest.raises(evenstep.UnsupportedError) as error:
        model(first[0])
    return str(error.value)


def reads_ahead_and_says_so(_rank: int, plan: str) -> Parameters:
    job = evenstep.init(plan=PLANS[plan])
    loader = job.loader(Samples())
    model = job.wrap(DistributedDataParallel(network()))
    optimizer = sgd(model)
    for _ in range(EPOCHS):
        batches = iter(loader)
        ahead: list[Any] = [next(batches, None), next(batches, None)]
        while ahead[0] is not None:
            x, y, _ = ahead.pop(0)
            with job.step():
                optimizer.zero_grad()
                loss_of(model, x, y).backward()
                optimizer.step()
            ahead.append(next(batches, None))
    return parameters(model)


def test_what_would_be_wrong_is_refused() -> None:
    plain, synced, no_sync = run_ranks(2, refuses)[0]
    assert "wrap(Sequential): must be DistributedDataParallel" in plain
    assert "job.scale(loss).backward()" in plain
    assert synced.startswith("SyncBatchNorm")
    assert "accumulate=N" in no_sync


def test_a_loop_that_reads_ahead_must_say_which_batch_it_begins() -> None:
    for rank, told in enumerate(run_ranks(2, reads_ahead)):
        assert f"got a batch of {[10, 6][rank]}, but the last batch read has {[9, 7][rank]}" in told
    reference = one_process()
    for trained in run_ranks(3, reads_ahead_and_says_so, "changing"):
        assert difference(trained, reference) <= TOLERANCE


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
