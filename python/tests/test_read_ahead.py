"""Loops that read batches ahead: a batch keeps its weight and its iteration, or the loop gets an error."""

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import evenstep
from evenstep._native import Plan
from evenstep.samples.order import Order
from ranks import run_ranks
from training import EPOCHS, PLANS, Samples, difference, loss_of, network, one_process, parameters, sgd

TOLERANCE = 1e-13

#: Plans of three ranks, all uneven. The epoch's last iteration has five samples.
UNEVEN: dict[str, Any] = {**PLANS, "5/2/1": lambda _: [5, 2, 1]}

Parameters = list[list[float]]


def between(_rank: int, plan: str) -> tuple[Parameters, list[int]]:
    """Reads the next batch between the forward and the backward pass, and computes each sample twice at once."""
    job = evenstep.init(plan=UNEVEN[plan])
    loader = job.loader(Samples())
    model = job.wrap(DistributedDataParallel(network()))
    optimizer, done = sgd(model), []
    for _ in range(EPOCHS):
        batches = iter(loader)
        batch = next(batches, None)
        while batch is not None:
            optimizer.zero_grad()
            x, y, _ = batch
            loss = loss_of(model, torch.cat([x, x]), torch.cat([y, y]))
            batch = next(batches, None)
            loss.backward()
            optimizer.step()
            done.append(job.state_dict()["iteration"])
    return parameters(model), done


def before_step(_rank: int, plan: str) -> tuple[Parameters, list[int]]:
    """Reads the next batch between the backward pass and the optimizer's step."""
    job = evenstep.init(plan=UNEVEN[plan])
    loader = job.loader(Samples())
    model = job.wrap(DistributedDataParallel(network()))
    optimizer, done = sgd(model), []
    for _ in range(EPOCHS):
        batches = iter(loader)
        batch = next(batches, None)
        while batch is not None:
            optimizer.zero_grad()
            loss_of(model, *batch[:2]).backward()
            batch = next(batches, None)
            optimizer.step()
            done.append(job.state_dict()["iteration"])
    return parameters(model), done


def marked(_rank: int, plan: str) -> tuple[Parameters, list[int]]:
    """Reads two batches ahead, and marks each iteration."""
    job = evenstep.init(plan=UNEVEN[plan])
    loader = job.loader(Samples())
    model = job.wrap(DistributedDataParallel(network()))
    optimizer, done = sgd(model), []
    for _ in range(EPOCHS):
        batches = iter(loader)
        ahead: list[Any] = [next(batches, None), next(batches, None)]
        while ahead[0] is not None:
            x, y, _ = ahead.pop(0)
            with job.step():
                optimizer.zero_grad()
                loss_of(model, x, y).backward()
                optimizer.step()
            done.append(job.state_dict()["iteration"])
            ahead.append(next(batches, None))
    return parameters(model), done


@pytest.mark.parametrize("plan", ["changing", "5/2/1", "13/3/0"])
@pytest.mark.parametrize("work", [between, before_step, marked], ids=lambda work: work.__name__)
def test_a_batch_keeps_its_weight_and_its_iteration(work: Callable[..., Any], plan: str) -> None:
    order = Order(len(Samples()), sum(UNEVEN[plan](0)))
    reference = one_process(order=order)
    for trained, done in run_ranks(3, work, plan):
        assert done == list(range(1, EPOCHS * order.steps + 1)), "the state is of the iterations that were trained on"
        assert difference(trained, reference) <= TOLERANCE


def accumulated(_rank: int) -> tuple[Parameters, list[int]]:
    """Reads the next micro-batch between the forward and the backward pass, even if the iteration changes."""
    job = evenstep.init(plan=lambda iteration: [[8, 4, 4], [4, 12, 0]][iteration % 2])
    loader = job.loader(Samples(208), accumulate=4)
    model = job.wrap(DistributedDataParallel(network()))
    optimizer, done = sgd(model), []
    for _ in range(EPOCHS):
        batches = iter(loader)
        batch, count = next(batches, None), 0
        while batch is not None:
            count += 1
            with model.no_sync() if count % 4 else nullcontext():
                loss = loss_of(model, *batch[:2]) / 4
                batch = next(batches, None)
                loss.backward()
            if count % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
                done.append(job.state_dict()["iteration"])
    return parameters(model), done


def test_a_micro_batch_keeps_its_iteration() -> None:
    order = Order(208, 16)
    reference = one_process(order=order)
    for trained, done in run_ranks(3, accumulated):
        assert done == list(range(1, EPOCHS * order.steps + 1))
        assert difference(trained, reference) <= TOLERANCE


def refuses(_rank: int) -> list[str]:
    """Returns the errors of loops whose batch is unknown; two plans, the first for two iterations."""
    told = []

    def started() -> tuple[evenstep.Job, Any]:
        job = evenstep.init(plan=lambda iteration: [10, 6] if iteration < 2 else [9, 7])
        return job, iter(job.loader(Samples()))

    def refused(work: Callable[[], object]) -> None:
        with pytest.raises(evenstep.UnsupportedError) as error:
            work()
        told.append(str(error.value))

    job, batches = started()
    model = job.wrap(DistributedDataParallel(network()))
    first = next(batches)
    next(batches)
    refused(lambda: model(first[0]))

    job, batches = started()
    loss = network()(next(batches)[0]).sum()
    next(batches)
    refused(lambda: job.scale(loss))

    job, batches = started()
    model = job.wrap(DistributedDataParallel(network()))
    first = next(batches)
    loss_of(model, *first[:2]).backward()
    second = next(batches)
    loss_of(model, *first[:2]).backward()
    refused(loss_of(model, *second[:2]).backward)

    job = evenstep.init(plan=[10, 6])
    model = job.wrap(DistributedDataParallel(network()))
    x, y, _ = next(cycled := itertools.cycle(job.loader(Samples(16))))
    loss_of(model, x, y).backward()
    x, y, _ = next(cycled)
    refused(loss_of(model, x, y).backward)

    job, batches = started()
    ddp = DistributedDataParallel(network())
    compiled: Any = torch.compile(ddp)
    job.wrap(compiled)
    # This is not the model that wrap got, so its forward passes are not observed.
    loss = loss_of(ddp, *next(batches)[:2])
    next(batches)
    refused(loss.backward)
    return told


def test_a_loop_that_reads_ahead_of_its_forward_passes_must_mark_its_iterations() -> None:
    for wrapped, scaled, second_pass, cycled, bypassed in run_ranks(2, refuses):
        for told in (wrapped, scaled, bypassed):
            assert told.startswith("iterations 0 and 1 were read before the forward pass of either")
        assert cycled.startswith("gradients after the epoch was read to its end")
        assert second_pass.startswith("the first batch had 1 backward passes before the next one was read")
        for told in (wrapped, scaled, second_pass):
            assert "must mark each iteration with `with job.step(batch)`" in told


class ChangingPlans:
    """A planner with another plan in each exchange."""

    cpu_s = 0.0

    def take(self, iteration: int) -> Plan:
        return Plan.of([[12, 2, 2], [2, 12, 2], [2, 2, 12]][iteration % 3])

    def learn(self, *_: Any) -> None:
        """Needs no reports."""


def buffered(_rank: int) -> tuple[Parameters, list[int], list[int]]:
    """Reads until it has 12 samples, so each rank reads another number of iterations ahead."""
    job = evenstep.init()
    loader = job.loader(Samples(), global_batch=16)
    job._run.start()
    exchange = job._run.exchange
    assert exchange is not None
    if exchange._lead:
        exchange._lead = replace(exchange._lead, planner=ChangingPlans())
    model = job.wrap(DistributedDataParallel(network()))
    optimizer = sgd(model)
    held: list[Any] = []
    local_batches: list[int] = []
    seen: list[int] = []

    def train(least: int) -> None:
        while held and sum(len(index) for _, _, index in held) >= least:
            x, y, index = held.pop(0)
            with job.step() as step:
                optimizer.zero_grad()
                loss_of(model, x, y).backward()
                optimizer.step()
            local_batches.append(step.local_batch)
            seen.extend(index.tolist() if step.local_batch else [])

    for _ in range(EPOCHS):
        for batch in loader:
            held.append(batch)
            train(12)
        train(0)
    job.close()
    with pytest.raises(evenstep.SettingError, match="the job was closed"):
        next(iter(loader))
    return parameters(model), local_batches, seen


def test_ranks_that_read_different_numbers_of_iterations_ahead_have_the_same_plans(predictor: str, job_id: str) -> None:
    """The plans change after each iteration. A plan for an iteration that a rank has read would split it twice."""
    environ = {"EVENSTEP_SERVER": predictor, "EVENSTEP_JOB": job_id}
    ranks = run_ranks(3, buffered, environ=environ)
    order, reference = Order(205, 16), one_process()
    sizes = [order.size(step) for _ in range(EPOCHS) for step in range(order.steps)]
    plans = list(zip(*(local_batches for _, local_batches, _ in ranks), strict=True))
    assert [sum(plan) for plan in plans] == sizes
    assert len(set(plans)) > 3, "plans change"
    assert sorted(sample for _, _, seen in ranks for sample in seen) == sorted([*range(205)] * EPOCHS)
    assert max(difference(trained, reference) for trained, _, _ in ranks) <= TOLERANCE
