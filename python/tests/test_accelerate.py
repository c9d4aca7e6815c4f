"""Accelerate with uneven batches trains as one process does."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import evenstep
import ranks
from evenstep.samples.order import Order
from training import (
    EPOCHS,
    SAMPLES,
    Samples,
    Trained,
    difference,
    loss_of,
    network,
    one_process,
    parameters,
    sgd,
)

accelerate = pytest.importorskip("accelerate", reason="evenstep[accelerate] is not installed")
prepare = pytest.importorskip(
    "evenstep.accelerate", reason="evenstep[accelerate] is not installed", exc_type=ImportError
).prepare
ranks.preload("accelerate", "evenstep.accelerate")

#: The required accuracy, in float64.
TOLERANCE = 1e-14
ORDER = Order(SAMPLES, 16, drop_last=True)


def plan(iteration: int) -> list[int]:
    return [[10, 4, 2], [14, 2, 0], [2, 6, 8]][iteration % 3]


def plan_of_two(iteration: int) -> list[int]:
    return [[13, 3], [16, 0]][iteration % 2]


def train(_rank: int, accumulate: int, costs: list[float] | None = None) -> Trained:
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    job = evenstep.init(plan=plan)
    model: Any = network()
    loader = job.loader(
        Samples(), drop_last=True, accumulate=accumulate, shuffle=costs is None, global_batch=16, cost=costs
    )
    model, optimizer, batches = prepare(job, accelerator, model, sgd(model), loader)
    trained = Trained([])
    for _ in range(EPOCHS):
        for x, y, index in batches:
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, x, y))
                optimizer.step()
                optimizer.zero_grad()
            if job._run.current.step.local_batch:
                trained.seen += index.tolist()
    trained.parameters = parameters(model)
    return trained


def train_halves(_rank: int, folder: str) -> list[list[float]]:
    """Saves after a few steps of the first epoch, and resumes from there with new objects."""
    for is_resumed in (False, True):
        accelerator = accelerate.Accelerator(cpu=True)
        job = evenstep.init(plan=plan_of_two)
        network_ = network()
        batches = job.loader(Samples(), drop_last=True)
        model, optimizer, loader = prepare(job, accelerator, network_, sgd(network_), batches)
        if is_resumed:
            accelerator.load_state(folder)
        for _ in range(EPOCHS if is_resumed else 1):
            for at, (x, y, _) in enumerate(loader):
                optimizer.zero_grad()
                accelerator.backward(loss_of(model, x, y))
                optimizer.step()
                if at == 4 and not is_resumed:
                    accelerator.save_state(folder)
                    break
    return parameters(model)


def forget_the_cpu(_rank: int) -> str:
    model = network()
    with pytest.raises(evenstep.SettingError) as refused:
        prepare(evenstep.init(plan=[8, 8]), accelerate.Accelerator(), model)
    return str(refused.value)


def prepare_wrongly(_rank: int) -> tuple[str, str, int]:
    """Returns errors, and the number of batches that Accelerate's own call leaves."""
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    job = evenstep.init(plan=[8, 8])
    loader = job.loader(Samples(), drop_last=True)
    with pytest.raises(evenstep.SettingError) as refused:
        prepare(job, accelerator, loader)
    with pytest.raises(evenstep.UnsupportedError) as skipped:
        list(accelerate.skip_first_batches(loader, 2))
    return str(refused.value), str(skipped.value), len(list(accelerator.prepare(loader)))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_uneven_batches_train_as_one_process_does(accumulate: int) -> None:
    results = ranks.run_ranks(3, train, accumulate)
    reference = one_process(order=ORDER)
    for trained in results:
        assert difference(trained.parameters, reference) <= TOLERANCE
    times = Counter(sample for trained in results for sample in trained.seen)
    # With drop_last each epoch skips its last 13.
    assert sum(times.values()) == EPOCHS * ORDER.steps * ORDER.global_batch
    assert max(times.values()) <= EPOCHS


def test_work_cut_by_cost_trains_as_one_process_does() -> None:
    results = ranks.run_ranks(3, train, 1, [1.0 + index % 7 for index in range(SAMPLES)])
    reference = one_process(order=Order(SAMPLES, 16, shuffle=False, drop_last=True))
    for trained in results:
        assert difference(trained.parameters, reference) <= TOLERANCE
    steps = EPOCHS * ORDER.steps
    counts = [len(trained.seen) for trained in results]
    assert sum(counts) == steps * ORDER.global_batch
    assert counts != [sum(plan(step)[rank] for step in range(steps)) for rank in range(3)], "cut by count"


def test_a_saved_state_goes_on_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    for resumed in ranks.run_ranks(2, train_halves, str(tmp_path)):
        assert difference(resumed, one_process(order=ORDER)) <= TOLERANCE


@pytest.mark.skipif(torch.cuda.is_available(), reason="with GPUs Accelerate uses them")
def test_ranks_that_accelerate_does_not_see_are_refused() -> None:
    for said in ranks.run_ranks(2, forget_the_cpu):
        assert "has 1 ranks, but the process group has 2" in said


def test_accumulation_must_be_the_loaders_and_batches_the_plans() -> None:
    for said, skipped, batches in ranks.run_ranks(2, prepare_wrongly):
        assert "would split the samples between ranks a second time" in skipped
        assert batches == ORDER.steps
        assert "gradient_accumulation_steps=2" in said
        assert "accumulate=1" in said
