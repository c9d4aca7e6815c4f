"""Losses on the way to the predictor: the mean over the samples of all ranks, whatever their shares."""

import math
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import evenstep
from evenstep.errors import SettingError
from evenstep.run.losses import Losses
from programs import fetch_json
from ranks import run_ranks
from training import Samples, loss_of, network, sgd

EPOCHS = 4
GLOBAL_BATCH, SAMPLES = 16, 208
#: The service rounds to four significant digits.
ROUNDED = 6e-4

#: Sums of losses and numbers of samples by iteration.
Sums = dict[int, tuple[float, int]]


def batches(job: evenstep.Job, way: str) -> Iterator[tuple[Any, bool]]:
    """Yields each batch, and whether it is the last of its iteration; after a hedged step, None."""
    if way == "steps":
        for step in job.steps(Samples(SAMPLES), global_batch=GLOBAL_BATCH):
            for batch in step:
                yield batch, False
            yield None, True
        return
    accumulate = 2 if way == "accumulate" else 1
    for at, batch in enumerate(job.loader(Samples(SAMPLES), global_batch=GLOBAL_BATCH, accumulate=accumulate)):
        yield batch, at % accumulate == accumulate - 1


def train(_rank: int, way: str) -> Sums:
    """The script of a user, which records its losses."""
    job = evenstep.init(timeout_s=5.0)
    model = DistributedDataParallel(network())
    model = model if way == "scale" else job.wrap(model)
    optimizer = sgd(model)
    sums: Sums = defaultdict(lambda: (0.0, 0))
    for _ in range(EPOCHS):
        for batch, is_last in batches(job, way):
            if batch:
                x, y, _ = batch
                loss = loss_of(model, x, y)
                turn = job._run.current
                if turn.samples or turn.passing:
                    total, samples = sums[turn.step.iteration]
                    sums[turn.step.iteration] = total + float(loss.detach()) * len(x), samples + len(x)
                if way == "scale":
                    loss = job.scale(loss)
                else:
                    job.record_loss(loss)
                loss.backward()
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
    job.close()
    return dict(sums)


@pytest.mark.parametrize("way", ["loader", "accumulate", "steps", "scale"])
def test_the_loss_of_an_iteration_is_that_of_all_its_samples(predictor: str, job_id: str, way: str) -> None:
    told = run_ranks(2, partial(train, way=way), environ={"EVENSTEP_SERVER": predictor, "EVENSTEP_JOB": job_id})
    history = fetch_json(f"{predictor}/v1/jobs/{job_id}/history?from_unix_ms=0")
    losses = {at: loss for at, loss in zip(history["iterations"], history["loss"], strict=True) if loss is not None}
    assert len(losses) >= 3, history
    for iteration, loss in losses.items():
        total, samples = map(sum, zip(*(sums.get(iteration, (0.0, 0)) for sums in told), strict=True))
        assert loss == pytest.approx(total / samples, rel=ROUNDED), (iteration, told)


def test_a_mean_is_over_samples_and_forgets_what_was_not_reported() -> None:
    losses = Losses()
    losses.record(0, 5, 100.0)
    losses.record(1, 3, torch.tensor(1.0, requires_grad=True))
    losses.record(1, 1, torch.tensor([5.0]))
    losses.record(1, 0, float("nan"))
    assert losses.take(1)() == 2.0
    assert losses.take(1)() is None
    losses.record(2, 1, float("inf"))
    assert losses.take(2)() == math.inf
    losses.record(3, 1, 1.0)
    assert losses.take(4)() is None


def test_a_loss_that_no_batch_has_is_an_error() -> None:
    with pytest.raises(SettingError, match=r"a loss of shape \(2,\) must be a scalar"):
        Losses().record(0, 1, torch.zeros(2))
    job = evenstep.init(plan=[64])
    next(iter(job.loader(Samples(), global_batch=64)))
    with pytest.raises(SettingError, match="no batch is being computed"):
        job.record_loss(1.0)
    job.close()
