"""The interval between exchanges."""

import pytest

from evenstep.exchange.report import Report, TailWork, merged
from evenstep.settings.budget import WARM_UP, Budget
from evenstep.settings.settings import Settings

#: Maximum number of iterations between two exchanges.
MOST = 60


class Simulated:
    """Simulates exchanges with a CPU time, and iterations with a duration."""

    def __init__(self, share: float) -> None:
        self.now_s = self.cpu_s = 0.0
        self.at = 0
        self.budget = Budget(MOST, share, clock=lambda: self.now_s)

    def exchange(self, cost_s: float, iteration_s: float) -> int:
        """Makes an exchange and trains up to the next one."""
        iterations = self.budget.iterations(self.at, self.cpu_s)
        self.cpu_s += cost_s
        self.at += iterations
        self.now_s += iterations * iteration_s
        return iterations


@pytest.mark.parametrize(
    ("cost_s", "iteration_s", "iterations"),
    [
        (0.001, 0.050, 10),
        (0.0012, 0.100, 6),
        (0.001, 0.600, 1),
        (0.0, 0.050, 1),
        (0.001, 0.0001, MOST),
        (0.001, 0.0, MOST),
    ],
)
def test_exchanges_take_a_fifth_of_a_percent(cost_s: float, iteration_s: float, iterations: int) -> None:
    simulated = Simulated(0.002)
    said = [simulated.exchange(cost_s, iteration_s) for _ in range(20)]
    assert said == [1] * (WARM_UP - 1) + [iterations] * (21 - WARM_UP)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.3])
@pytest.mark.parametrize("cost_s", [0.0002, 0.001, 0.004])
@pytest.mark.parametrize("iteration_s", [0.02, 0.07, 1.5])
def test_the_share_is_kept_and_made_use_of(share: float, cost_s: float, iteration_s: float) -> None:
    simulated = Simulated(share)
    for _ in range(20):
        iterations = simulated.exchange(cost_s, iteration_s)
    if iterations < MOST:
        assert cost_s <= share * iterations * iteration_s * (1 + 1e-5)
    if iterations > 1:
        assert cost_s > share * (iterations - 1) * iteration_s * (1 - 1e-5)


def test_one_exchange_that_was_dear_changes_nothing() -> None:
    simulated = Simulated(0.002)
    for _ in range(20):
        simulated.exchange(0.001, 0.05)
    assert [simulated.exchange(cost_s, 0.05) for cost_s in (0.5, 0.001, 0.001)] == [10, 10, 10]


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "much"])
def test_a_share_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=f"EVENSTEP_OVERHEAD='{value}': must be a number above 0"):
        Settings.read({"EVENSTEP_OVERHEAD": value}, "node-a")


def test_a_stretch_is_reported_by_the_mean_of_its_last_share() -> None:
    reports = [
        Report(3, 8, 0.9, 0.5),
        Report(4, 16, 0.1, 0.02),
        Report(5, 16, 0.3, 0.04),
        # Its start was not observed.
        Report(6, 16, 0.0, 0.7),
        Report(7, 16, 0.2, 0.0, peak_memory_bytes=7),
    ]
    report = merged(reports)
    assert (report.iteration, report.local_batch, report.peak_memory_bytes) == (7, 16, 7)
    assert report.compute_time_s == pytest.approx(0.2)
    assert report.loader_wait_s == pytest.approx(0.02)


def test_what_was_claimed_or_not_measured_is_no_mean() -> None:
    before = Report(3, 16, 0.9)
    for last in (Report(4, 16, 0.2, tail=TailWork(1, 4, 0.05, 0.0)), Report(4, 8, 0.0)):
        assert merged([before, last]) == last
