"""Property tests of the order of samples and of the split of iterations."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep._native import Plan, Rate, Share, Tail, apportion
from evenstep.errors import DivergedError, SettingError
from evenstep.samples.order import Order

BATCHES = st.lists(st.integers(0, 300), min_size=1, max_size=9).filter(any)


@given(st.integers(1, 300), st.integers(1, 90), st.integers(0, 2**62), st.booleans())
def test_every_sample_comes_exactly_once_an_epoch(samples: int, global_batch: int, seed: int, shuffle: bool) -> None:
    order = Order(samples, global_batch, seed, shuffle)
    for epoch in (0, 1, 7):
        permutation = order.permutation(epoch)
        sizes = [order.size(step) for step in range(order.steps)]
        assert sum(sizes) == samples
        assert all(size == global_batch for size in sizes[:-1])
        assert sorted(permutation.tolist()) == list(range(samples))
        assert order.size(order.steps) == sizes[0], "the next epoch starts like this one"


def test_epochs_and_seeds_differ_and_are_the_same_again() -> None:
    order = Order(100, 10, seed=7)
    first, second = order.permutation(0), order.permutation(1)
    assert first.tolist() == Order(100, 10, seed=7).permutation(0).tolist()
    assert first.tolist() != second.tolist()
    assert first.tolist() != Order(100, 10, seed=8).permutation(0).tolist()
    assert Order(100, 10, shuffle=False).permutation(3).tolist() == list(range(100))


def test_a_last_iteration_may_be_dropped() -> None:
    assert (Order(205, 16).steps, Order(205, 16).size(12)) == (13, 13)
    assert Order(205, 16, drop_last=True).steps == 12


def test_only_a_remainder_has_unequal_micro_batches() -> None:
    assert Order(205, 16, accumulate=4).has_unequal_passes
    assert not Order(205, 16, accumulate=4, drop_last=True).has_unequal_passes
    assert not Order(208, 16, accumulate=4).has_unequal_passes
    assert not Order(204, 16, accumulate=4).has_unequal_passes


@pytest.mark.parametrize(
    ("order", "rule"),
    [
        ({"samples": 0}, "0 samples"),
        ({"global_batch": 0}, "global_batch=0"),
        ({"accumulate": 0}, "accumulate=0"),
        ({"accumulate": 3}, "global_batch=16: must be a multiple of accumulate=3"),
        ({"samples": 15, "drop_last": True}, "only 15 samples"),
    ],
)
def test_what_cannot_be_walked_through_is_refused(order: dict[str, Any], rule: str) -> None:
    with pytest.raises(SettingError, match=rule):
        Order(**{"samples": 205, "global_batch": 16, **order})


@given(st.integers(0, 5000), BATCHES, st.integers(1, 16))
def test_a_split_is_exact_in_quanta_and_in_proportion(size: int, weights: list[int], quantum: int) -> None:
    batches = apportion(size, weights, quantum)
    assert sum(batches) == size
    assert sum(batch % quantum != 0 for batch in batches) <= 1, "one rank gets the samples below a quantum"
    whole = size // quantum * quantum
    for batch, weight in zip(batches, weights, strict=True):
        exact = whole * weight / sum(weights)
        assert exact - quantum < batch < exact + 2 * quantum
        assert batch == 0 or weight > 0 or whole == 0


def test_splits_of_known_sizes() -> None:
    assert apportion(16, [1, 1, 1]) == [6, 5, 5]
    assert apportion(100, [24, 12, 16]) == [46, 23, 31]
    assert apportion(20, [1, 1, 1], quantum=8) == [8, 8, 4]
    assert apportion(3, [0, 0]) == [2, 1]


@given(BATCHES, st.integers(1, 400), st.integers(1, 8))
def test_a_plan_of_another_size_covers_it(batches: list[int], size: int, quantum: int) -> None:
    plan = Plan.of(batches, Rate(0.5)).resized(size, quantum).checked(size)
    assert plan.rate == Rate(0.5)
    assert Plan.from_json(plan.to_json()) == plan


def test_plans_that_leave_something_out_or_overlap_are_refused() -> None:
    tail = Tail(offset=6, chunks=(3, 1), pools=(2,), pool=(0, None), speed=(1.5, None))
    plan = Plan((Share(2, 4), Share(0, 2)), tail=tail)
    assert plan.checked(10).size == 10
    assert Plan.from_json(plan.to_json()) == plan
    for shares in [(Share(0, 4), Share(3, 6)), (Share(0, 4), Share(5, 5)), (Share(1, 9), Share(0, 0))]:
        with pytest.raises(DivergedError, match="exactly once"):
            Plan(shares).checked(10)


def test_a_ramp_goes_on_without_answers() -> None:
    """Dynamic Mini-batch SGD growing fourfold over 32 iterations: c(t) = 1 + 3 t / 32."""
    rate = Rate(1.75, (1.0, 4.0, 100, 32))
    for gone, multiplier in [(0, 1.0), (1, 1.09375), (8, 1.75), (16, 2.5), (31, 3.90625), (32, 4.0), (99, 4.0)]:
        assert rate.at(100 + gone) == multiplier
    assert rate.at(99) == 1.0
    plan = Plan.of([3, 1], rate)
    assert Plan.from_json(plan.to_json()).rate == rate
    assert Rate(0.5).at(7) == 0.5
