"""Given orders of samples and data streams: each rank trains on its part, and together they train as one process."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from logging import Handler, LogRecord, getLogger
from typing import Any

import pytest
import torch
from torch.distributed.distributed_c10d import _get_default_store
from torch.nn.parallel import DistributedDataParallel

import evenstep
from evenstep.start import opening
from ranks import run_ranks
from training import (
    EPOCHS,
    GLOBAL_BATCH,
    PLANS,
    SAMPLES,
    Samples,
    Trained,
    bucketed,
    difference,
    loss_of,
    network,
    parameters,
    sgd,
    weighted,
)

#: The required accuracy, in float64.
TOLERANCE = 1e-14


ORDERS: dict[str, Any] = {"weighted": weighted, "bucketed": bucketed, "sequence": range(SAMPLES - 1, 40, -1)}


def indices_of(order: str, epoch: int) -> list[int]:
    given = ORDERS[order]
    return [int(index) for index in (given(epoch) if callable(given) else given)]


def part(_rank: int, order: str, plan: str, stop: int | None, before: dict[str, Any] | None) -> dict[str, Any]:
    """Trains until an iteration, or to the end; resumes from the result of an earlier part."""
    job = evenstep.init(plan=PLANS.get(plan, [11, 5]))
    net = network()
    model = job.wrap(DistributedDataParallel(net))
    optimizer = sgd(model)
    if before:
        net.load_state_dict(before["model"])
        optimizer.load_state_dict(before["optimizer"])
        job.load_state_dict(before["job"])
    loader = job.loader(Samples(), global_batch=GLOBAL_BATCH, order=ORDERS[order])
    trained = Trained([])
    while job.state_dict()["epoch"] < EPOCHS and job.state_dict()["iteration"] != stop:
        for x, y, index in loader:
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
            if job._run.current.step.local_batch:
                trained.seen += index.tolist()
            if job.state_dict()["iteration"] == stop:
                break
    trained.parameters = parameters(model)
    state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "job": job.state_dict()}
    return {"trained": trained, "state": state}


def one_process(batches: Callable[[int], Sequence[Sequence[int]]]) -> list[list[float]]:
    """The reference: whole batches, plain PyTorch."""
    data, model = Samples(), network()
    optimizer = sgd(model)
    for epoch in range(EPOCHS):
        for batch in batches(epoch):
            at = torch.tensor(batch)
            optimizer.zero_grad()
            loss_of(model, data.x[at], data.y[at]).backward()
            optimizer.step()
    return parameters(model)


def batches_of(order: str) -> Callable[[int], list[list[int]]]:
    def batches(epoch: int) -> list[list[int]]:
        indices = indices_of(order, epoch)
        return [indices[at : at + GLOBAL_BATCH] for at in range(0, len(indices), GLOBAL_BATCH)]

    return batches


def assert_each_once(order: str, trained: Sequence[Trained]) -> None:
    times = Counter(index for one in trained for index in one.seen)
    assert times == Counter(index for epoch in range(EPOCHS) for index in indices_of(order, epoch))


@pytest.mark.parametrize("order", ORDERS)
def test_a_given_order_is_trained_as_one_process_does(order: str) -> None:
    ranks = run_ranks(3, part, order, "changing", None, None)
    reference = one_process(batches_of(order))
    for rank in ranks:
        assert difference(rank["trained"].parameters, reference) <= TOLERANCE
    assert_each_once(order, [rank["trained"] for rank in ranks])


def test_a_given_order_goes_on_with_another_number_of_ranks() -> None:
    first = run_ranks(3, part, "weighted", "changing", 14, None)
    second = run_ranks(2, part, "weighted", "two", None, first[0]["state"])
    reference = one_process(batches_of("weighted"))
    for rank in second:
        assert difference(rank["trained"].parameters, reference) <= TOLERANCE
    assert_each_once("weighted", [rank["trained"] for rank in (*first, *second)])


def by_rank(rank: int) -> str:
    with pytest.raises(evenstep.DivergedError) as refused:
        evenstep.init(plan=[10, 6]).loader(Samples(), order=[rank, *range(99)])
    return str(refused.value)


def test_ranks_with_different_orders_are_refused() -> None:
    assert run_ranks(2, by_rank)[0].endswith("must be the same on all ranks")


def loader_of(order: Any) -> Any:
    return evenstep.init(plan=[16]).loader(Samples(), order=order)


@pytest.mark.parametrize(
    ("order", "rule"),
    [
        ([0, SAMPLES], "order has the index 205: must be between 0 and 204"),
        ([-1, 3], "order has the index -1"),
        ([], "at least one whole number"),
        ([0.5], "at least one whole number"),
        ([[1], [2]], "at least one whole number"),
        (lambda _: torch.randperm(SAMPLES), "different indices in two calls: must depend only on the epoch"),
        (lambda _: ["a"], r"order\(0\) is a list: must be a sequence of indices"),
    ],
    ids=range(7),
)
def test_indices_that_break_a_rule_are_refused(order: Any, rule: str) -> None:
    with pytest.raises(evenstep.SettingError, match=rule):
        loader_of(order)


def test_epochs_of_different_lengths_are_refused() -> None:
    loader = loader_of(lambda epoch: range(32 + epoch))
    for _ in loader:
        loader._run.binding.complete()
    with pytest.raises(evenstep.SettingError, match=r"order\(1\) has 33 indices: must have 32"):
        next(iter(loader))


def test_a_second_loader_with_another_order_is_refused() -> None:
    job = evenstep.init(plan=[16])
    job.loader(Samples(), order=range(64))
    job.loader(Samples(), order=list(range(64)))
    with pytest.raises(evenstep.SettingError, match="one data set and one order"):
        job.loader(Samples(), order=range(1, 65))


@pytest.mark.parametrize("name", ["sampler", "batch_sampler"])
def test_samplers_are_refused_with_advice(name: str) -> None:
    arguments: dict[str, Any] = {name: weighted(0)}
    with pytest.raises(evenstep.SettingError, match=f"{name}: .*order="):
        evenstep.init(plan=[16]).loader(Samples(), **arguments)


class Stored(Handler):
    """Passes the messages of rank 0 to the other rank."""

    def emit(self, record: LogRecord) -> None:
        _get_default_store().set("told", record.getMessage())


def unlike(rank: int) -> tuple[str, str]:
    """Rank 0 looks at a batch alone; later, a function returns other indices on each rank from epoch 1 on."""
    opening._NOTICE_S = 0.01
    loader = evenstep.init(plan=[8, 8]).loader(Samples(16))
    if rank == 0:
        getLogger("evenstep").addHandler(Stored())
    told = _get_default_store().get("told").decode() if rank else ""
    next(iter(loader))

    job = evenstep.init(plan=[8, 8])
    loader = job.loader(Samples(16), order=lambda epoch: list(range(epoch * rank, 16)) + list(range(epoch * rank)))
    try:
        for _ in range(2):
            for _batch in loader:
                with job.step():
                    pass
    except evenstep.DivergedError as error:
        return told, str(error)
    return told, ""


def test_ranks_that_read_unlike_are_told() -> None:
    """A rank that comes later compares itself with the first; no rank waits in an epoch's beginning."""
    (_, first), (notice, other) = run_ranks(2, unlike)
    assert notice.startswith("rank 0 has waited for 0.01 s because other ranks have not read their first batch")
    assert (first == "") != (other == "")
    assert re.match(r"order\(1\): rank [01] has other indices \(checksum \d+\) than another rank", first or other)
