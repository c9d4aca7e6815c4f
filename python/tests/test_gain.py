"""The gain of a real run, compared with the measured one."""

import sys
from pathlib import Path

from ranks import run_ranks
from test_service import environ

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def two_ranks(_rank: int) -> object:
    """Trains with even shares and with planned ones in alternating blocks, at speeds 1:3."""
    sys.path.insert(0, str(BENCHMARKS))
    from gain import Case, affine, alternate  # noqa: PLC0415  # Only ranks load it.

    return alternate(Case(affine((0, 0), (1.5, 0.5)), samples=10 * 256), blocks=5)


def test_a_run_in_alternating_blocks_has_the_gain_that_it_reports(predictor: str, job_id: str) -> None:
    result, _ = run_ranks(2, two_ranks, environ=environ(predictor, job_id))
    true, said = result["true"], result["said"]
    # By the speeds 2; plans are even at first. Other programs may slow the blocks down unequally.
    assert true > 1.3, result
    assert said["lower"] * 0.9 < true < said["upper"] * 1.1, result
    assert said["upper"] - said["lower"] < 1, result
