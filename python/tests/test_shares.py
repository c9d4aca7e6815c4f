"""Even shares and given plans stay below the caps of the ranks."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.nn.parallel import DistributedDataParallel

import evenstep
from evenstep._native import Plan
from evenstep.samples import shares
from evenstep.samples.order import Order
from evenstep.settings.options import RunOptions, job_spec
from evenstep.settings.settings import Settings
from ranks import run_ranks
from training import EPOCHS, Samples, difference, loss_of, network, one_process, parameters, sgd

CAPS = st.lists(st.none() | st.integers(1, 30), min_size=1, max_size=5)


@given(st.integers(1, 60), CAPS, st.integers(1, 5))
def test_even_shares_hold_every_cap_or_are_impossible(size: int, caps: list[int | None], quantum: int) -> None:
    room = sum(size if cap is None else cap // quantum * quantum for cap in caps)
    batches: list[int] = []
    with suppress(evenstep.SettingError):
        batches = shares.even(size, caps, quantum).batches
    if not batches:
        assert room < size, "the caps hold all samples"
        return
    assert sum(batches) == size
    assert all(cap is None or batch <= cap for batch, cap in zip(batches, caps, strict=True))
    assert sum(batch % quantum > 0 for batch in batches) <= 1
    free = [batch for batch, cap in zip(batches, caps, strict=True) if cap is None or batch + quantum <= cap]
    assert not free or max(free) - min(free) <= quantum, "the others have equal shares"


@given(st.integers(1, 60), CAPS, st.data())
def test_a_remainder_gives_no_rank_more_than_a_whole_iteration(size: int, caps: list[int | None], data: Any) -> None:
    assume(sum(size if cap is None else cap for cap in caps) >= size)
    whole = shares.even(size, caps, 1)
    rest = whole.resized(data.draw(st.integers(1, size)), 1)
    assert all(fewer <= more for fewer, more in zip(rest.batches, whole.batches, strict=True))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any), st.integers(1, 3), st.data())
def test_ranks_without_samples_get_some_from_the_largest(quanta: list[int], quantum: int, data: Any) -> None:
    plan = Plan.of([batch * quantum for batch in quanta])
    caps = data.draw(st.just([]) | st.lists(st.none() | st.integers(1, 2), min_size=len(quanta), max_size=len(quanta)))
    wanted = data.draw(st.none() | st.lists(st.booleans(), min_size=len(quanta), max_size=len(quanta)).filter(any))
    filled = shares.without_empty(plan, wanted and Plan.of([int(rank) for rank in wanted]), quantum, caps)
    assert filled.size == plan.size
    filled.checked(plan.size)
    for rank, (before, after) in enumerate(zip(plan.batches, filled.batches, strict=True)):
        gets = sum(quanta) >= len(quanta) and (wanted is None or wanted[rank])
        fits = not caps or caps[rank] is None or quantum <= caps[rank]
        assert after == (quantum if gets and fits else 0) if not before else quantum <= after <= before


def capped(rank: int, caps: list[int]) -> tuple[list[int], list[list[float]]]:
    job = evenstep.init(max_local_batch=caps[rank])
    loader = job.loader(Samples(), global_batch=16)
    model = job.wrap(DistributedDataParallel(network()))
    optimizer = sgd(model)
    batches = []
    for _ in range(EPOCHS):
        for x, y, _index in loader:
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
            batches.append(job._run.current.step.local_batch)
    return batches, parameters(model)


def test_even_shares_hold_the_caps_of_all_ranks() -> None:
    ranks = run_ranks(3, capped, [2, 20, 20])
    whole = [batches[0] for batches, _ in ranks]
    assert whole == [2, 7, 7]
    for (batches, trained), most in zip(ranks, whole, strict=True):
        assert max(batches) == most
        assert difference(trained, one_process()) <= 1e-13


def later(iteration: int) -> list[int]:
    return [6, 5, 5] if iteration < 2 else [1, 14, 1]


def of_a_remainder(iteration: int) -> list[int]:
    return [6, 5, 5] if iteration < 2 else [0, 0, 5]


def refused(rank: int, options: dict[str, Any], caps: list[int]) -> str:
    with pytest.raises(evenstep.SettingError) as error:
        for _ in evenstep.init(max_local_batch=caps[rank], **options).loader(Samples(), global_batch=16):
            pass
    return str(error.value)


@pytest.mark.parametrize(
    ("options", "caps", "rule"),
    [
        ({"plan": [6, 5, 5]}, [16, 16, 4], "5 exceeds max_local_batch=4 of rank 2"),
        (
            {},
            [2, 6, 7],
            "max_local_batch=[2, 6, 7] by rank: all ranks together hold 15 samples, but global_batch is 16",
        ),
        (
            {"job_options": {"max_local_batch": 5}},
            [16, 16, 4],
            "max_local_batch=[5, 5, 4] by rank: all ranks together hold 14 samples, but global_batch is 16",
        ),
        ({"quantum": 4}, [6, 6, 6], "hold 12 samples in whole quanta of 4, but global_batch is 16"),
        ({"plan": later}, [12, 12, 12], "14 exceeds max_local_batch=12 of rank 1"),
        ({"plan": of_a_remainder}, [16, 16, 16], "of iteration 2 sums to 5, but the iteration has 16 samples"),
    ],
    ids=["a plan", "even shares", "the job's cap", "quanta", "a later plan", "a plan of a remainder"],
)
def test_what_breaks_a_cap_is_refused_on_all_ranks(options: dict[str, Any], caps: list[int], rule: str) -> None:
    for told in run_ranks(3, refused, options, caps):
        assert rule in told


def resumed(_rank: int, batches: list[int]) -> list[int]:
    earlier = evenstep.init(plan=[8, 8])
    earlier.loader(Samples())
    job = evenstep.init(max_local_batch=13)
    job.load_state_dict({**earlier.state_dict(), "plan": json.loads(Plan.of(batches).to_json())})
    next(iter(job.loader(Samples(), global_batch=16)))
    return job._run.plans(0).batches


@pytest.mark.parametrize(
    ("stored", "used"),
    [([12, 4], [12, 4]), ([5, 0], [8, 8]), ([14, 2], [8, 8])],
    ids=["fits", "a remainder", "above a cap"],
)
def test_a_run_goes_on_with_the_stored_plan_if_it_fits(stored: list[int], used: list[int]) -> None:
    """A remainder of 5 samples was on one rank, which must not get all samples of whole iterations."""
    assert run_ranks(2, resumed, stored) == [used, used]


@given(st.integers(1, 99), st.integers(1, 8), st.integers(1, 2))
def test_micro_batches_are_nearly_equal_and_hold_all_samples(samples: int, count: int, least: int) -> None:
    sizes = shares.micro_batches(samples, count, least)
    used = [size for size in sizes if size]
    assert (sum(sizes), len(sizes)) == (samples, count)
    assert list(sizes) == sorted(sizes, reverse=True)
    assert max(used) - min(used) <= 1
    assert min(used) >= min(samples, least)
    assert len(used) == count or max(used) < 2 * least


def test_sizes_that_cannot_be_split_are_refused() -> None:
    def sized(accumulate: int, quantum: int) -> str:
        options = RunOptions(Settings.read({}), None, 1, None, {"allowed_sizes": [8, 10]}, timeout_s=1.0)
        with pytest.raises(evenstep.SettingError) as error:
            job_spec(options, Order(64, 16, accumulate=accumulate), quantum)
        return str(error.value)

    assert "allowed_sizes has 10: must be multiples of 4, because accumulate=4" in sized(4, 4)
    assert "allowed_sizes has 10: must be multiples of quantum=8" in sized(1, 8)
