"""The order of an epoch and the cut of an iteration, as the native module computes them."""

import array
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from evenstep._native import Cut, Shuffle
from evenstep.errors import SettingError

#: Written and checked by ``crates/rules/tests/integration/cut_golden.rs``.
CUTS = Path(__file__).parents[2] / "crates" / "rules" / "tests" / "cuts.json"


def test_cuts_are_those_of_rust() -> None:
    goldens = json.loads(CUTS.read_text())
    assert len(goldens) >= 12
    for golden in goldens:
        cut = Cut(golden["costs"], golden["weights"], **golden["options"])
        parts = [cut.part(index) for index in range(len(golden["weights"]))]
        assert (parts, cut.passes) == (golden["parts"], golden["passes"]), golden["name"]
        costs = [math.fsum(golden["costs"][position] for part in passes for position in part) for passes in parts]
        assert [cut.cost(index) for index in range(len(parts))] == pytest.approx(costs)


def test_the_excess_is_that_of_the_last_part_over_the_bound() -> None:
    assert Cut([1.0] * 18, [1, 2, 2, 4]).excess == 0
    assert Cut([1.0] * 4, [1, 1, 1]).excess == pytest.approx(0.5)
    assert Cut([9.0, 1.0], [1, 1]).excess == 0, "no part can finish before the largest sample"


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"costs": [1.0, math.nan]}, "cost NaN of sample 1: must be a number from 1e-30 to 1e30"),
        ({"costs": [0.0, 1.0]}, "cost 0 of sample 0"),
        ({"weights": [0, 0]}, "none of the 2 weights is positive"),
        ({"lengths": [1]}, "1 lengths for 2 costs"),
        ({"max_tokens": 5}, "max_tokens requires the lengths"),
        ({"padded": True}, "padded requires the lengths"),
        ({"lengths": [3, 9], "max_tokens": 8}, "length 9 of sample 1: exceeds max_tokens 8 divided by least 1"),
        ({"lengths": [3, 5], "max_tokens": 8, "least": 2}, "length 5 of sample 1: .* max_tokens 8 divided by least 2"),
        ({"least": 0}, "least 0: must be from 1"),
        ({"passes": 0}, "passes 0: must be from 1"),
    ],
)
def test_arguments_that_break_a_rule_are_named(changed: dict[str, Any], rule: str) -> None:
    with pytest.raises(SettingError, match=rule):
        Cut(**{"costs": [1.0, 2.0], "weights": [1, 2], **changed})


def test_unknown_parts_are_refused() -> None:
    cut = Cut([1.0], [1, 1])
    for read in (cut.part, cut.cost):
        with pytest.raises(IndexError, match="part 2: must be below 2"):
            read(2)


def indices(shuffle: Shuffle, begin: int, end: int) -> list[int]:
    """The indices at these positions."""
    return array.array("q", shuffle.indices(begin, end)).tolist()


def test_a_shuffle_is_a_permutation_in_any_pieces() -> None:
    shuffle = Shuffle(1000, 7)
    whole = indices(shuffle, 0, 1000)
    assert sorted(whole) == list(range(1000))
    assert [index for begin in range(0, 1000, 30) for index in indices(shuffle, begin, min(begin + 30, 1000))] == whole
    assert indices(Shuffle(1000, 8), 0, 1000) != whole
    assert indices(shuffle, 1000, 1000) == []
    tensor = torch.frombuffer(bytearray(shuffle.indices(10, 20)), dtype=torch.int64)
    assert tensor.tolist() == whole[10:20]


def test_a_shuffle_is_that_of_rust() -> None:
    """The values are those of ``crates/rules/src/shuffle.rs``."""
    assert indices(Shuffle(10, 1), 0, 10) == [2, 5, 3, 7, 4, 1, 9, 6, 0, 8]
    assert indices(Shuffle(10_000_000, 2026), 0, 4) == [7256425, 5839476, 3632349, 1145051]


@pytest.mark.parametrize(
    ("samples", "begin", "end", "rule"),
    [
        (0, 0, 0, "samples 0: must be at least 1"),
        (10, 3, 11, "positions 3 to 11: must be in order and at most 10"),
        (10, 4, 3, "positions 4 to 3: must be in order"),
        (1 << 40, 0, (1 << 24) + 1, "at most 16777216 in one call"),
    ],
)
def test_positions_that_break_a_rule_are_named(samples: int, begin: int, end: int, rule: str) -> None:
    with pytest.raises(SettingError, match=rule):
        Shuffle(samples, 1).indices(begin, end)
