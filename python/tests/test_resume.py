"""Resuming from a checkpoint with any number of ranks: no sample is repeated or missed."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import evenstep
from ranks import run_ranks
from training import EPOCHS, SAMPLES, Samples, difference, loss_of, network, one_process, parameters, sgd


def part(_rank: int, plan: list[int], stop: int | None, before: dict[str, Any] | None) -> dict[str, Any]:
    """Trains until an iteration, or to the end; resumes from the result of an earlier part."""
    job = evenstep.init(plan=plan)
    net = network()
    model = DistributedDataParallel(net)
    optimizer = sgd(model)
    if before:
        net.load_state_dict(before["model"])
        optimizer.load_state_dict(before["optimizer"])
        job.load_state_dict(before["job"])
    loader = job.loader(Samples())
    job.wrap(model)
    seen: list[int] = []
    while job.state_dict()["epoch"] < EPOCHS:
        for x, y, index in loader:
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
            seen += index.tolist()
            if job.state_dict()["iteration"] == stop:
                break
        if job.state_dict()["iteration"] == stop:
            break
    state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "job": job.state_dict()}
    return {**state, "seen": seen, "parameters": parameters(model)}


@pytest.mark.parametrize("stop", [7, 13, 20])
def test_a_run_goes_on_with_other_ranks(stop: int) -> None:
    first = run_ranks(3, part, [12, 3, 1], stop, None)
    assert {repr(rank["job"]) for rank in first} == {repr(first[0]["job"])}, "the same on all ranks"
    assert first[0]["job"]["iteration"] == stop
    second = run_ranks(2, part, [5, 11], None, {key: first[0][key] for key in ("model", "optimizer", "job")})
    reference = one_process()
    for rank in second:
        assert difference(rank["parameters"], reference) <= 1e-14
    times = Counter(sample for rank in (*first, *second) for sample in rank["seen"])
    assert times == dict.fromkeys(range(SAMPLES), EPOCHS)


def left_midway(_rank: int) -> list[list[int]]:
    loader = evenstep.init(plan=[16]).loader(Samples())
    peeked = next(iter(loader))[2].tolist()
    job_epochs = []
    for _ in range(2):
        epoch = []
        for _x, _y, index in loader:
            epoch += index.tolist()
            loader._run.gradients_ready()
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


def wrong_states(_rank: int) -> list[str]:
    job = evenstep.init(plan=[16])
    job.loader(Samples())
    state = job.state_dict()
    told = []
    for wrong in ({"seed": 1}, {"samples": 204}, {"global_batch": 8}, {"version": 9}, {"position": 13}):
        other = evenstep.init(plan=[16])
        other.load_state_dict({**state, **wrong})
        with pytest.raises(evenstep.EvenstepError) as error:
            other.loader(Samples())
        told.append(str(error.value))
    with pytest.raises(evenstep.SettingError, match=r"must be called before job\.loader"):
        job.load_state_dict(state)
    assert torch.is_tensor(Samples().x)
    return told


def test_states_of_another_run_are_refused() -> None:
    [told] = run_ranks(1, wrong_states)
    rules = ["seed: the state has 1", "samples: the state has 204", "global_batch: the state has 8"]
    rules += ["version 9", "position 13"]
    for message, rule in zip(told, rules, strict=True):
        assert rule in message
