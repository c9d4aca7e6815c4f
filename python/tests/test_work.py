"""The quadratic share of the work is learned from compute times, and is the same on all ranks."""

import math
import random
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
import torch.distributed as dist

from documents import LENGTHS, SAMPLES, train
from evenstep._native import Plan
from evenstep.exchange.exchange import Exchange, Submission
from evenstep.exchange.report import Report
from evenstep.samples.costs import Costs, CutRules
from evenstep.samples.work import Observed, Prior, Work, mean
from ranks import run_ranks

RULES = CutRules(passes=1, least=1, is_equal=True)
SPEEDS = [1, 2, 2, 4]


class Data:
    """Log-normal lengths, and the time of a transformer of some width for them."""

    def __init__(self, sigma: float, width: float, seed: int, samples: int = 64) -> None:
        self._random = random.Random(seed)  # noqa: S311
        self._sigma, self._width, self.samples = sigma, width, samples
        self.costs = Costs.of(self.lengths(4096), 4096)
        ratio = self.costs.mean_square / self.costs.mean / (6 * width)
        self.share = ratio / (1 + ratio)

    def lengths(self, samples: int) -> list[float]:
        return [512 * math.exp(self._random.gauss(0, self._sigma)) for _ in range(samples)]

    def time_s(self, work: Work, speed: float, noise: float) -> float:
        true = replace(work, share=self.share).total
        return true / speed * math.exp(self._random.gauss(0, noise))


def learned(data: Data, prior: Prior, noise: float, iterations: int) -> tuple[float, float]:
    """Returns the share after iterations on four ranks, and by how much the last 50 end late on average."""
    observed, share, late = [Observed() for _ in SPEEDS], prior.share, []
    for _ in range(iterations):
        lengths = data.lengths(data.samples)
        works = data.costs.cut(Plan.of(SPEEDS), lengths, share, RULES).works
        for own, work, speed in zip(observed, works, SPEEDS, strict=True):
            own.see(data.time_s(work, speed, noise), work)
        ends = [replace(work, share=data.share).total / speed for work, speed in zip(works, SPEEDS, strict=True)]
        total = replace(data.costs.of_samples(lengths, 0), share=data.share).total
        late.append(max(ends) / (total / sum(SPEEDS)) - 1)
        share = prior.updated([own.evidence(share) for own in observed])
    return share, math.fsum(late[-50:]) / 50


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.2])
@pytest.mark.parametrize(("sigma", "width"), [(1.0, 1024), (1.0, 4096), (1.27, 512)])
def test_the_share_is_found(sigma: float, width: float, noise: float) -> None:
    data = Data(sigma, width, seed=1)
    share, late = learned(data, Prior.of(None), noise, 300)
    assert share == pytest.approx(data.share, abs=0.02 + 0.3 * noise)
    linear = Data(sigma, width, seed=1)
    _, unlearned = learned(linear, Prior(0.0, 1e-9), noise, 300)
    assert late < 0.5 * unlearned


def test_work_in_proportion_to_the_lengths_stays_so() -> None:
    data = Data(1.0, 1e12, seed=2)
    assert learned(data, Prior.of(None), 0.1, 300)[0] < 0.01
    assert learned(data, Prior.of(0.2), 0.1, 300)[0] < 0.02, "a wrong width is corrected"


def test_without_evidence_the_share_stays() -> None:
    observed = Observed()
    assert observed.evidence(0.3) == (0.0, 0.0)
    for _ in range(20):
        # Always the same work: the time tells nothing about its parts.
        observed.see(0.1, Work(100.0, 150.0, 0.0))
        observed.see(0.1, None)
        observed.see(0.0, Work(100.0, 10.0, 0.0))
    precision, moment = observed.evidence(0.3)
    assert precision == pytest.approx(0, abs=1e-12)
    assert Prior.of(0.25).updated([(precision, moment)]) == pytest.approx(0.2)


def test_a_few_slow_iterations_do_not_move_the_share() -> None:
    observed, calm = Observed(), Observed()
    data = Data(1.0, 4096, seed=3)
    for iteration in range(200):
        work = data.costs.of_samples(data.lengths(16), 0.0)
        time_s = data.time_s(work, 1.0, 0.02)
        calm.see(time_s, work)
        observed.see(time_s * (20 if iteration % 40 == 0 else 1), work)
    prior = Prior.of(None)
    assert prior.updated([observed.evidence(0.0)]) == pytest.approx(prior.updated([calm.evidence(0.0)]), abs=0.03)


def test_the_unit_of_work_does_not_depend_on_the_share() -> None:
    lengths = Data(1.0, 2048, seed=4).lengths(1000)
    costs = Costs.of(lengths, 1000)
    works = [costs.of_samples(lengths, share).total for share in (0.0, 0.3, 1.0)]
    assert works == pytest.approx([sum(lengths)] * 3, rel=1e-6)
    assert mean([Work(1.0, 3.0, 0.5), Work(3.0, 5.0, 0.25)]) == Work(2.0, 4.0, 0.25)


def exchanged(rank: int) -> list[tuple[int, float]]:
    """Submits iterations as a training does; each rank's times tell something else."""
    data, group = Data(1.0, 1024, seed=rank), dist.new_group(timeout=timedelta(seconds=60))
    assert isinstance(group, dist.ProcessGroup)
    plans = [(0, Plan.of([1, 1, 1]))]
    exchange = Exchange(group, 2, plans, dict, None, prior=Prior.of(None))
    shares = []
    for iteration in range(60):
        exchange.plan(iteration)
        share = exchange.share(iteration)
        shares.append((iteration, share))
        work = data.costs.of_samples(data.lengths(16), share)
        time_s = data.time_s(work, 1.0, 0.03)
        exchange.submit(Submission(iteration, partial(Report, iteration, 16, time_s, work=work), is_last=False))
    exchange.settle(30)
    exchange.close(5)
    dist.barrier()
    return shares


def test_all_ranks_use_the_same_share_in_each_iteration() -> None:
    first, *others = run_ranks(3, exchanged)
    assert others == [first, first]
    assert len({share for _, share in first}) > 2, "the share was learned"
    assert first[-1][1] == pytest.approx(Data(1.0, 1024, seed=0).share, abs=0.05)


def test_a_checkpoint_keeps_the_share() -> None:
    options = {"global_tokens": 500, "hidden_size": 2}
    state = run_ranks(2, train, [1, 1], options, None, 4)[0].state
    assert state["quadratic_share"] == pytest.approx(Costs.of(LENGTHS, SAMPLES, hidden_size=2).prior.share)
    state["quadratic_share"] = 0.5
    assert run_ranks(2, train, [1, 1], options, state, 6)[0].state["quadratic_share"] == 0.5
