"""Backward passes other than one per batch of a DDP model: before and after its reduction, and without the job."""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import evenstep
from evenstep.gradients.hook import GradientWeights
from evenstep.run.binding import Binding
from ranks import run_ranks
from training import GLOBAL_BATCH, PLANS, Samples, difference, loss_of, network, parameters, sgd

TOLERANCE = 1e-14

Parameters = list[list[float]]


def batch_mean(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    outputs: torch.Tensor = net(x)
    return outputs.square().mean()


def penalty(net: torch.nn.Module) -> torch.Tensor:
    return torch.stack([at.square().sum() for at in net.parameters()]).sum() * 0.01


class Rows(torch.nn.Module):
    """A table whose gradients are sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(11, 3, sparse=True, _weight=torch.linspace(0, 1, 33).view(11, 3).double())

    def forward(self, x: torch.Tensor) -> Any:
        return self.table((x[:, 0].abs() * 9).long() % 11)


class Passes:
    """One step on each batch, each time with other backward passes; the same in one process."""

    def __init__(self, net: torch.nn.Module, model: torch.nn.Module, *, is_local: bool) -> None:
        self.net, self.model = net, model
        self.without_sync: Any = nullcontext if is_local else model.no_sync

    def penalty_after(self, x: torch.Tensor, y: torch.Tensor) -> None:
        loss_of(self.model, x, y).backward()
        penalty(self.net).backward()

    def penalty_before(self, x: torch.Tensor, y: torch.Tensor) -> None:
        penalty(self.net).backward()
        loss_of(self.model, x, y).backward()

    def bare_module_before(self, x: torch.Tensor, y: torch.Tensor) -> None:
        loss_of(self.net, x, y).backward()
        batch_mean(self.model, x).backward()

    def two_losses(self, x: torch.Tensor, y: torch.Tensor) -> None:
        with self.without_sync():
            batch_mean(self.model, x).backward()
        loss_of(self.model, x, y).backward()
        penalty(self.net).backward()

    def added_to_zeros(self, x: torch.Tensor, y: torch.Tensor) -> None:
        for parameter in self.net.parameters():
            parameter.grad = torch.zeros_like(parameter)
        loss_of(self.model, x, y).backward()

    def sparse(self, x: torch.Tensor, y: torch.Tensor) -> None:
        loss_of(self.model, x, y).backward()


PASSES = [
    "penalty_after",
    "penalty_before",
    "bare_module_before",
    "two_losses",
    "added_to_zeros",
    "sparse",
]


def passes_of(net: torch.nn.Module, model: torch.nn.Module, batches: Any, name: str, *, is_local: bool) -> Parameters:
    work, optimizer = getattr(Passes(net, model, is_local=is_local), name), sgd(net)
    for x, y, *_ in batches:
        optimizer.zero_grad()
        work(x, y)
        optimizer.step()
    return parameters(net)


def trained_in_passes(_rank: int) -> list[Parameters]:
    found = []
    for name in PASSES:
        job, net = evenstep.init(plan=PLANS["changing"]), Rows() if name == "sparse" else network()
        # Its bare module may be trained, equally on all ranks, also before the run.
        model = job.wrap(DistributedDataParallel(net))
        if name != "sparse":
            penalty(net).backward()
        batches = job.loader(Samples(), shuffle=False)
        net.zero_grad()
        found.append(passes_of(net, model, batches, name, is_local=False))
    return found


def test_backward_passes_before_and_after_the_reduction() -> None:
    data = Samples()
    batches = list(zip(data.x.split(GLOBAL_BATCH), data.y.split(GLOBAL_BATCH), strict=True))
    references = []
    for name in PASSES:
        net = Rows() if name == "sparse" else network()
        references.append(passes_of(net, net, batches, name, is_local=True))
    for found in run_ranks(3, trained_in_passes):
        assert [difference(*pair) <= 1e-13 for pair in zip(found, references, strict=True)] == [True] * len(PASSES)


def called(_rank: int) -> list[int]:
    """Returns the numbers of calls of hooks of parameters, with cleared gradients: in two passes of each batch."""
    calls, found, weigh = list[int](), list[int](), GradientWeights._weigh

    def noted(weights: GradientWeights, gradients: Any) -> Any:
        calls.append(1)
        return weigh(weights, gradients)

    GradientWeights._weigh = noted  # type: ignore[method-assign,assignment]
    job, net = evenstep.init(plan=[12, 4]), network()
    model = job.wrap(DistributedDataParallel(net))
    for x, y, _ in job.loader(Samples(48)):
        for without_sync in (model.no_sync, nullcontext):
            net.zero_grad()
            calls.clear()
            with without_sync():
                loss_of(model, x, y).backward()
            found.append(len(calls))
    return found


def test_hooks_of_parameters_do_nothing_in_a_pass_that_is_reduced() -> None:
    """A Python function for each parameter costs too much in deep models."""
    assert run_ranks(2, called) == [[4, 1] * 3] * 2


def steps_on(model: Any, net: torch.nn.Module, x: torch.Tensor) -> Parameters:
    """Two steps without a loader, equal on all ranks."""
    optimizer = sgd(net)
    for _ in range(2):
        optimizer.zero_grad()
        batch_mean(model, x).backward()
        optimizer.step()
    return parameters(net)


def trained_later(_rank: int, is_closed: bool) -> list[float]:
    """Trains one module in a job, and then without it; returns the differences to training alone."""
    x, found = Samples().x[:4], []
    for later in ("ddp", "bare", "scale"):
        job, net = evenstep.init(plan=PLANS["12/3/1"]), network()
        model = job.wrap(DistributedDataParallel(net))
        for batch, y, _ in job.loader(Samples(32)):
            loss_of(model, batch, y).backward()
        if is_closed:
            job.close()
        alone = copy.deepcopy(net)
        net.zero_grad()
        if later == "scale":
            second, again = evenstep.init(plan=[2, 9, 5]), DistributedDataParallel(net)
            for batch, y, _ in second.loader(Samples(16), shuffle=False):
                second.scale(loss_of(again, batch, y)).backward()
            alone.zero_grad()
            loss_of(alone, Samples(16).x, Samples(16).y).backward()
            pairs = zip(net.parameters(), alone.parameters(), strict=True)
            found.append(max(float((at.grad - other.grad).abs().max()) for at, other in pairs))  # type: ignore[operator]
            second.close()
        else:
            trained = steps_on(DistributedDataParallel(net) if later == "ddp" else net, net, x)
            found.append(difference(trained, steps_on(alone, alone, x)))
    return found


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_module_may_be_trained_without_the_job_later(is_closed: bool) -> None:
    for found in run_ranks(3, trained_later, is_closed):
        assert max(found) <= TOLERANCE


def alone_on_one_rank(rank: int) -> int:
    """One rank computes gradients of the bare module, with batch norm and tokens, between two iterations."""
    net = torch.nn.Sequential(network(), torch.nn.BatchNorm1d(3).double())
    job = evenstep.init(plan=[10, 6])
    model = job.wrap(DistributedDataParallel(net), loss="tokens")
    for x, _y, _ in job.loader(Samples()):
        job.count(len(x))
        model(x).sum().backward()
        if rank == 0:
            net(x).sum().backward()
        net.zero_grad()
    return int(job.state_dict()["iteration"])


def test_a_pass_of_the_bare_module_on_one_rank_awaits_no_other_rank() -> None:
    assert run_ranks(2, alone_on_one_rank) == [13, 13]


def refuses_in_training(_rank: int) -> list[str]:
    told = []

    def refused(work: Callable[[], object]) -> None:
        with pytest.raises(evenstep.UnsupportedError) as error:
            work()
        told.append(str(error.value))

    job, net = evenstep.init(plan=[10, 6]), network()
    model = job.wrap(DistributedDataParallel(net))
    x, y, _ = next(iter(job.loader(Samples())))
    # A second model of the same module, within an epoch.
    refused(lambda: loss_of(DistributedDataParallel(net), x, y).backward())
    other = torch.nn.Sequential(net[0], torch.nn.Linear(16, 2).double())  # type: ignore[index]
    refused(lambda: job.wrap(DistributedDataParallel(other), loss="sum"))
    loss_of(model, x, y).backward()
    # A frozen part is thawed.
    job, net = evenstep.init(plan=[10, 6]), network()
    net[0].requires_grad_(requires_grad=False)  # type: ignore[index]
    model = job.wrap(DistributedDataParallel(net))
    x, y, _ = next(iter(job.loader(Samples())))
    net.requires_grad_()
    refused(lambda: loss_of(model, x, y))
    # A remainder of 5 samples in micro-batches of unequal sizes, with one backward pass.
    job, net = evenstep.init(plan=[12, 4]), network()
    model = job.wrap(DistributedDataParallel(net))
    loader = job.loader(Samples(21), accumulate=2)

    def one_pass() -> None:
        total = torch.zeros(())
        for x, y, _ in loader:
            total = total + loss_of(model, x, y)
            if loader.is_last:
                total.backward()
                total = torch.zeros(())

    refused(one_pass)
    return told


def test_what_would_be_wrong_in_training_is_refused() -> None:
    for told in run_ranks(2, refuses_in_training):
        again, shared, thawed, unequal = told
        assert again.startswith("another DistributedDataParallel model has the module of a wrapped one")
        assert "share parameters" in shared
        assert "4 parameters are trained, but this DistributedDataParallel reduces 2" in thawed
        assert "call backward() for each micro-batch" in unequal


def measured(_rank: int) -> list[int]:
    """Returns the numbers of backward passes after which iterations ended."""
    job, net, ends, made = evenstep.init(plan=[12, 4]), network(), list[int](), 0
    finish = Binding.finish

    def noted(binding: Binding, step: Any) -> None:
        ends.append(made)
        finish(binding, step)

    Binding.finish = noted  # type: ignore[method-assign,assignment]
    model = job.wrap(DistributedDataParallel(net))
    for x, y, _ in job.loader(Samples(48)):
        loss = loss_of(net, x, y)
        made += 1
        loss.backward()
        with model.no_sync():
            loss = loss_of(model, x, y)
            made += 1
            loss.backward()
        loss = loss_of(model, x, y)
        made += 1
        loss.backward()
        net.zero_grad()
    for x, y, _ in job.loader(Samples(48)):
        with model.no_sync():
            loss = loss_of(model, x, y)
            loss.backward()
        made += 1
    return ends


def test_an_iteration_ends_with_the_pass_that_is_reduced() -> None:
    for ends in run_ranks(2, measured):
        assert ends == [3, 6, 9, 10, 11, 12]
