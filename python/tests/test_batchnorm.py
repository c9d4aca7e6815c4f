"""Buffers with uneven batches: running statistics of all samples, others of the rank with most of them."""

import copy
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.parallel import DistributedDataParallel

import evenstep
from evenstep._native import Plan, Rate
from evenstep.samples import shares
from evenstep.samples.order import Order
from ranks import run_ranks
from training import EPOCHS, GLOBAL_BATCH, SAMPLES, Samples, difference, loss_of, parameters, sgd

#: The required accuracy, in float64.
TOLERANCE = 1e-13
ORDER = Order(SAMPLES, GLOBAL_BATCH, drop_last=True)
#: With None, running statistics are means over all iterations.
MOMENTA = (0.1, None)


def plan(iteration: int) -> list[int]:
    """Rank 0 has few samples, or none."""
    return [[4, 2, 10], [0, 10, 6], [8, 8, 0]][iteration % 3]


def network(momentum: float | None = 0.1) -> torch.nn.Module:
    torch.manual_seed(3)
    hidden, norm = torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16, momentum=momentum)
    return torch.nn.Sequential(hidden, norm, torch.nn.Tanh(), torch.nn.Linear(16, 3)).double()


def numbers(model: torch.nn.Module) -> list[list[float]]:
    """Returns the parameters and buffers."""
    return [*parameters(model), *(buffer.double().flatten().tolist() for buffer in model.buffers())]


def train(_rank: int, momentum: float | None) -> list[list[float]]:
    job = evenstep.init(plan=plan)
    loader = job.loader(Samples(), global_batch=GLOBAL_BATCH, drop_last=True)
    net = network(momentum)
    model = job.wrap(DistributedDataParallel(net))
    optimizer = sgd(model)
    for _ in range(EPOCHS):
        for x, y, _index in loader:
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
    return numbers(net)


def one_process(momentum: float | None) -> list[list[float]]:
    """The reference: one process normalises each rank's batch alone, and averages over samples."""
    data, model = Samples(), network(momentum)
    optimizer = sgd(model)
    for iteration in range(EPOCHS * ORDER.steps):
        epoch, step = divmod(iteration, ORDER.steps)
        at = ORDER.permutation(epoch)[step * GLOBAL_BATCH :][:GLOBAL_BATCH]
        before = copy.deepcopy(dict(model.named_buffers()))
        sums = {name: torch.zeros_like(buffer) for name, buffer in before.items() if buffer.is_floating_point()}
        optimizer.zero_grad()
        for part in at.split([batch for batch in plan(iteration) if batch]):
            for name, buffer in model.named_buffers():
                buffer.data.copy_(before[name])
            (loss_of(model, data.x[part], data.y[part]) * len(part) / GLOBAL_BATCH).backward()
            for name in sums:
                sums[name] += model.get_buffer(name) * len(part) / GLOBAL_BATCH
        for name, total in sums.items():
            model.get_buffer(name).copy_(total)
        optimizer.step()
    return numbers(model)


def trains(rank: int, name: str) -> list[int]:
    """Returns the sizes of this rank's batches in one epoch; 0 for batches that do not count."""
    plan, options, _first = SINGLES[name]
    job = evenstep.init(plan=plan, max_local_batch=(None, 1, 2)[rank] if name == "caps" else None)
    loader = job.loader(Samples(), **options)
    model = job.wrap(DistributedDataParallel(network()))
    sizes = []
    for x, y, _index in loader:
        loss_of(model, x, y).backward()
        sizes.append(len(x) if loader.latest.local_batch else 0)
    return sizes


#: Plans that give a rank a single sample, options of the loader, and the batches of the first iteration.
SINGLES: dict[str, tuple[list[int], dict[str, Any], tuple[int, ...]]] = {
    "a whole iteration": ([10, 5, 1], {}, (9, 5, 2)),
    "a remainder": ([12, 2, 2], {}, (12, 2, 2)),
    "micro-batches": ([8, 4, 4], {"drop_last": True, "accumulate": 4}, (2, 0, 2)),
    "caps": ([13, 1, 2], {}, (14, 0, 2)),
}


def kept(_rank: int) -> tuple[list[float], list[float]]:
    """Returns the statistics of a layer that keeps them, and of a model that distributes none."""
    job = evenstep.init(plan=[4, 2, 10])
    fixed, own = network(), network()
    fixed[1].eval()  # type: ignore[index]  # A Sequential.
    models = (
        job.wrap(DistributedDataParallel(fixed)),
        job.wrap(DistributedDataParallel(own, broadcast_buffers=False)),
    )
    x, y, _index = next(iter(job.loader(Samples(), global_batch=GLOBAL_BATCH)))
    for model in models:
        loss_of(model, x, y).backward()
    return fixed[1].running_mean.tolist(), own[1].running_mean.tolist()  # type: ignore[index]


class Observed(torch.nn.Module):
    """Buffers that follow the batches: of several types, in place and replaced, and one that DDP leaves alone."""

    mean: torch.Tensor
    seen: torch.Tensor
    last: torch.Tensor
    is_large: torch.Tensor
    own: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.net = network()[0]  # type: ignore[index]  # A Sequential.
        for name, buffer in (
            ("mean", torch.zeros(8).double()), ("seen", torch.tensor(0)), ("last", torch.zeros(8)),
            ("is_large", torch.tensor(False)), ("own", torch.zeros(())),
        ):  # fmt: skip
            self.register_buffer(name, buffer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * x.mean(0))
            self.seen += len(x)
            self.last = x.float().sum(0)
            self.is_large.copy_(torch.tensor(len(x) > 8))
            self.own += len(x)
        out: torch.Tensor = self.net(x)
        return out


def observed(_rank: int) -> tuple[list[list[float]], float]:
    """Returns the buffers after each iteration, and at the end the one that DDP leaves alone."""
    job, net, told = evenstep.init(plan=plan), Observed(), list[list[float]]()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ["own"])
    model = job.wrap(DistributedDataParallel(net))
    for x, _, _ in islice(job.loader(Samples(), global_batch=GLOBAL_BATCH, drop_last=True), 6):
        model(x).sum().backward()
        told.append(torch.cat([net.get_buffer(name).double().flatten() for name in BUFFERS]).tolist())
    return told, float(net.own)


BUFFERS = ("mean", "seen", "last", "is_large")


@dataclass(frozen=True)
class Results:
    """The results of one rank."""

    #: Parameters and buffers by the momentum of the layer.
    trained: dict[float | None, list[list[float]]]
    #: Sizes of batches, by the name of the plan.
    sizes: dict[str, list[int]]
    #: Running means that never change, and the rank's own running means.
    frozen: list[float]
    own: list[float]
    observed: tuple[list[list[float]], float]


def work(rank: int) -> Results:
    trained = {momentum: train(rank, momentum) for momentum in MOMENTA}
    sizes = {name: trains(rank, name) for name in SINGLES}
    return Results(trained, sizes, *kept(rank), observed(rank))


@pytest.fixture(scope="module")
def ranks() -> list[Results]:
    return run_ranks(3, work)


@pytest.mark.parametrize("momentum", MOMENTA)
def test_running_statistics_are_those_of_all_samples(ranks: list[Results], momentum: float | None) -> None:
    reference = one_process(momentum)
    for results in ranks:
        assert difference(results.trained[momentum], reference) <= TOLERANCE


def test_other_buffers_are_those_of_the_rank_with_most_samples(ranks: list[Results]) -> None:
    data, net, expected = Samples(), Observed(), []
    permutation = ORDER.permutation(0)
    for iteration in range(6):
        # No rank stays without samples.
        shares = [[4, 2, 10], [1, 9, 6], [7, 8, 1]][iteration % 3]
        parts = permutation[iteration * GLOBAL_BATCH :][:GLOBAL_BATCH].split(shares)
        net(data.x[max(parts, key=len)])
        expected.append(torch.cat([net.get_buffer(name).double().flatten() for name in BUFFERS]).tolist())
    for results in ranks:
        assert difference(results.observed[0], expected) <= TOLERANCE
    assert [results.observed[1] for results in ranks] == [2 * (4 + 1 + 7), 2 * (2 + 9 + 8), 2 * (10 + 6 + 1)]


@pytest.mark.parametrize("name", SINGLES)
def test_no_rank_gets_a_single_sample(ranks: list[Results], name: str) -> None:
    _plan, options, first = SINGLES[name]
    batches = list(zip(*(results.sizes[name] for results in ranks), strict=True))
    assert batches[0] == first
    assert all(1 not in sizes for sizes in batches)
    micro_batches = options.get("accumulate", 1)
    used = SAMPLES // GLOBAL_BATCH * GLOBAL_BATCH if "drop_last" in options else SAMPLES
    assert sum(map(sum, batches)) == used, "each sample once"
    assert len(batches) == -(-used // GLOBAL_BATCH) * micro_batches


@pytest.mark.parametrize(
    ("batches", "micro_batches", "allowed"),
    [
        ([10, 5, 1], 1, [9, 5, 2]),
        ([1, 1, 1], 1, [0, 3, 0]),
        ([2, 1, 0], 1, [3, 0, 0]),
        ([1, 1, 6], 1, [2, 2, 4]),
        ([1, 0, 0], 1, [1, 0, 0]),
        ([16, 4, 8], 4, [12, 8, 8]),
        ([4], 4, [4]),
    ],
)
def test_single_samples_move(batches: list[int], micro_batches: int, allowed: list[int]) -> None:
    plan = shares.without_singles(Plan.of(batches, Rate(0.5)), micro_batches)
    assert plan.batches == allowed
    assert plan.rate.at(0) == 0.5
    plan.checked(sum(batches))


@pytest.mark.parametrize(
    ("batches", "caps", "allowed"),
    [
        ([13, 1, 2], [None, 1, 2], [14, 0, 2]),
        ([13, 1, 2], [13, 1, 4], [13, 0, 3]),
        ([4, 1, 0], [4, 1, 5], [3, 0, 2]),
        ([2, 1, 2], [2, 2, 3], [2, 0, 3]),
    ],
)
def test_single_samples_move_within_the_caps(batches: list[int], caps: list[int | None], allowed: list[int]) -> None:
    assert shares.without_singles(Plan.of(batches), 1, caps).batches == allowed


def test_caps_that_leave_a_single_sample_are_refused() -> None:
    with pytest.raises(evenstep.SettingError) as error:
        shares.without_singles(Plan.of([1, 2, 2]), 1, [1, 2, 2])
    assert "max_local_batch=[1, 2, 2] by rank: batch norm requires" in str(error.value)
    assert "an iteration of 5 samples" in str(error.value)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.integers(1, 3), st.data())
def test_moved_samples_hold_every_cap(units: list[int], micro_batches: int, data: st.DataObject) -> None:
    batches = [unit * micro_batches for unit in units]
    caps = [data.draw(st.none() | st.integers(batch, 20)) for batch in batches]
    with suppress(evenstep.SettingError):
        moved = shares.without_singles(Plan.of(batches), micro_batches, caps).batches
        assert sum(moved) == sum(batches)
        assert micro_batches not in moved or sum(batches) == micro_batches
        assert all(cap is None or batch <= cap for batch, cap in zip(moved, caps, strict=True))


def test_bases_of_hedged_steps_move_too() -> None:
    before = Plan.of([20, 9, 3]).with_tail(0.5, 2, 1)
    after = shares.without_singles(before, 1)
    assert 1 in before.batches
    assert 1 not in after.batches
    assert after.tail is not None
    after.checked(32)


def test_statistics_stay_where_ddp_distributes_none(ranks: list[Results]) -> None:
    assert all(results.frozen == [0.0] * 16 for results in ranks)
    assert len({tuple(results.own) for results in ranks}) == 3
