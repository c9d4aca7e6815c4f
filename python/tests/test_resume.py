"""Resuming from a checkpoint with any number of ranks: no sample is repeated or missed."""

from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import evenstep
from evenstep.samples.order import Order
from ranks import run_ranks
from training import EPOCHS, PLANS, SAMPLES, Samples, difference, loss_of, network, one_process, parameters, sgd


def part(
    _rank: int,
    plan: list[int] | str,
    stop: int | None,
    before: dict[str, Any] | None,
    late: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Trains until an iteration, or to the end; resumes from the result of an earlier part.

    ``late``: loads the state after it has made the loader.
    """
    job = evenstep.init(plan=PLANS[plan] if isinstance(plan, str) else plan)
    net = network()
    model = DistributedDataParallel(net)
    optimizer = sgd(model)
    dataset = Samples(options.pop("samples", SAMPLES))
    loader = job.loader(dataset, **options) if late else None
    if before:
        net.load_state_dict(before["model"])
        optimizer.load_state_dict(before["optimizer"])
        job.load_state_dict(before["job"])
        assert job.state_dict()["iteration"] == before["job"]["iteration"] if late else True
    loader = loader or job.loader(dataset, **options)
    accumulate = options.get("accumulate", 1)
    job.wrap(model)
    seen: list[int] = []
    while job.state_dict()["epoch"] < EPOCHS:
        for at, (x, y, index) in enumerate(loader):
            (loss_of(model, x, y) / accumulate).backward()
            if job._run.current.step.local_batch:
                seen += index.tolist()
            if (at + 1) % accumulate:
                continue
            optimizer.step()
            optimizer.zero_grad()
            if job.state_dict()["iteration"] == stop:
                break
        if job.state_dict()["iteration"] == stop:
            break
    state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "job": job.state_dict()}
    return {**state, "seen": seen, "parameters": parameters(model)}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("stop", [7, 13, 20])
def test_a_run_goes_on_with_other_ranks(stop: int, late: bool) -> None:
    first = run_ranks(3, part, "changing", stop, None)
    assert {repr(rank["job"]) for rank in first} == {repr(first[0]["job"])}, "the same on all ranks"
    assert first[0]["job"]["iteration"] == stop
    second = run_ranks(2, part, [5, 11], None, {key: first[0][key] for key in ("model", "optimizer", "job")}, late)
    reference = one_process()
    for rank in second:
        assert difference(rank["parameters"], reference) <= 1e-14
    times = Counter(sample for rank in (*first, *second) for sample in rank["seen"])
    assert times == dict.fromkeys(range(SAMPLES), EPOCHS)


@pytest.mark.parametrize("options", [{"drop_last": True}, {"drop_last": True, "accumulate": 4}])
def test_the_end_of_an_epoch_and_micro_batches_may_change_midway(options: dict[str, Any]) -> None:
    """Neither decides which samples an iteration has."""
    first = run_ranks(3, part, [12, 3, 1], 7, None)
    state = {key: first[0][key] for key in ("model", "optimizer", "job")}
    second = run_ranks(2, partial(part, **options), [4, 12], None, state)
    reference = one_process(order=Order(SAMPLES, 16, drop_last=True))
    for rank in second:
        assert difference(rank["parameters"], reference) <= 1e-13
    times = Counter(sample for rank in (*first, *second) for sample in rank["seen"])
    assert sum(times.values()) == 12 * 16 * EPOCHS
    assert max(times.values()) == EPOCHS


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_remainder_smaller_than_the_ranks(drop_last: bool) -> None:
    """The last iteration of an epoch has 2 samples for 3 ranks."""
    options: dict[str, Any] = {"samples": 194, "drop_last": drop_last}
    order = Order(194, 16, drop_last=drop_last)
    first = run_ranks(3, partial(part, **options), "changing", 18, None)
    second = run_ranks(2, partial(part, **options), [5, 11], None, first[0])
    reference = one_process(order=order)
    for rank in second:
        assert difference(rank["parameters"], reference) <= 1e-14
    times = Counter(sample for rank in (*first, *second) for sample in rank["seen"])
    epochs = [order.permutation(epoch)[: sum(map(order.size, range(order.steps)))].tolist() for epoch in range(EPOCHS)]
    assert times == Counter(sample for epoch in epochs for sample in epoch)


def left_midway(_rank: int) -> list[list[int]]:
    loader = evenstep.init(plan=[16]).loader(Samples())
    peeked = next(iter(loader))[2].tolist()
    job_epochs = []
    for _ in range(2):
        epoch = []
        for _x, _y, index in loader:
            epoch += index.tolist()
            loader._run.binding.complete()
            if len(epoch) >= 64:
                break
        job_epochs.append(epoch)
    return [peeked, *job_epochs]


def test_an_epoch_that_is_left_midway_is_over() -> None:
    """As with PyTorch's loader: breaking out of an epoch starts again; inspecting a batch skips none."""
    [[peeked, first, second]] = run_ranks(1, left_midway)
    assert peeked == first[:16]
    assert len(set(first)) == len(set(second)) == 64
    assert first != second


def unwrapped(job: evenstep.Job, count: int) -> list[list[int]]:
    """Trains some iterations as a script that wraps only if it is distributed, after a look at a batch."""
    loader, net, seen = job.loader(Samples()), network(), list[list[int]]()
    optimizer = sgd(net)
    next(iter(loader))
    while len(seen) < count:
        for x, y, index in loader:
            loss_of(net, x, y).backward()
            optimizer.step()
            seen.append(index.tolist())
            if len(seen) == count:
                break
    return seen


def test_one_process_without_wrap_counts_the_steps_of_its_optimizer() -> None:
    job = evenstep.init(plan=[16])
    seen = unwrapped(job, 15)
    state = job.state_dict()
    job.close()
    assert (state["iteration"], state["epoch"], state["position"]) == (15, 1, 2)
    job = evenstep.init(plan=[16])
    job.load_state_dict(state)
    seen += unwrapped(job, 11)
    job.close()
    epochs = [[sample for batch in part for sample in batch] for part in (seen[:13], seen[13:])]
    assert [sorted(epoch) for epoch in epochs] == [list(range(SAMPLES))] * 2
    assert epochs[0] != epochs[1]


def wrong_states(_rank: int) -> list[str]:
    job = evenstep.init(plan=[16])
    loader = job.loader(Samples())
    state = job.state_dict()
    told = []
    wrongs: list[dict[str, Any]] = [{"seed": 1}, {"samples": 204}, {"global_batch": 8}, {"shuffle": False}]
    for wrong in (*wrongs, {"order_checksum": 5}, {"version": 9}, {"position": 13}):
        other = evenstep.init(plan=[16])
        other.load_state_dict({**state, **wrong})
        with pytest.raises(evenstep.SettingError) as error:
            other.loader(Samples())
        with pytest.raises(evenstep.SettingError) as late:
            job.load_state_dict({**state, "iteration": 5, **wrong})
        assert str(late.value) == str(error.value)
        assert job.state_dict() == state, "an error changes nothing"
        told.append(str(error.value))
    batches = iter(loader)
    job.load_state_dict({**state, "iteration": 5, "position": 5})
    next(batches)
    assert loader.latest.iteration == 5, "no batch was read before"
    with pytest.raises(evenstep.SettingError, match="the first batch was read already, and 5 iterations are done"):
        job.load_state_dict(state)
    assert torch.is_tensor(Samples().x)
    return told


def test_states_of_another_run_are_refused() -> None:
    [told] = run_ranks(1, wrong_states)
    rules = ["seed: the state has 1", "samples: the state has 204", "global_batch: the state has 8"]
    rules += ["shuffle: the state has False but the loader has True", "order_checksum: the state has 5"]
    rules += ["version 9", "position 13"]
    for message, rule in zip(told, rules, strict=True):
        assert rule in message


def loads_alone(rank: int) -> str:
    job = evenstep.init(plan=[10, 6])
    loader = job.loader(Samples())
    if rank:
        job.load_state_dict({**job.state_dict(), "iteration": 5, "position": 5})
    with pytest.raises(evenstep.DivergedError) as error:
        next(iter(loader))
    return str(error.value)


def test_a_state_on_a_part_of_the_ranks_is_refused_on_all() -> None:
    told = run_ranks(2, loads_alone)
    assert told[0] == told[1]
    assert "position=0, sample=0) but rank 1 has Progress(iteration=5" in told[0]


def reads_alone(rank: int) -> str:
    job = evenstep.init(plan=[10, 6])
    loader = job.loader(Samples())
    if rank:
        # Like a rank that ends with another error.
        dist.destroy_process_group()
        return ""
    with pytest.raises(evenstep.EvenstepError) as error:
        next(iter(loader))
    return str(error.value)


def test_a_first_batch_on_one_rank_is_an_error_with_advice() -> None:
    assert "all ranks must iterate over job.loader together" in run_ranks(2, reads_alone)[0]
