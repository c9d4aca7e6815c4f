"""Lightning with uneven batches trains as one process does."""

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

lightning = pytest.importorskip("lightning.pytorch", reason="evenstep[lightning] is not installed")
EvenstepCallback = pytest.importorskip(
    "evenstep.lightning", reason="evenstep[lightning] is not installed", exc_type=ImportError
).EvenstepCallback
ranks.preload("lightning.pytorch", "evenstep.lightning")

#: The required accuracy, in float64.
TOLERANCE = 1e-14
ORDER = Order(SAMPLES, 16, drop_last=True)


def plan(iteration: int) -> list[int]:
    return [[12, 4], [16, 0], [2, 14]][iteration % 3]


class Module(lightning.LightningModule):  # type: ignore[name-defined]  # The package may be missing.
    """A module that is validated after each epoch and records its samples."""

    def __init__(self, job: evenstep.Job, accumulate: int, costs: list[float] | None = None) -> None:
        super().__init__()
        self.costs = costs
        self.network = network()
        self.job = job
        self.accumulate = accumulate
        self.seen: list[int] = []

    def train_dataloader(self) -> Any:
        return self.job.loader(
            Samples(),
            drop_last=True,
            accumulate=self.accumulate,
            shuffle=self.costs is None,
            global_batch=16,
            cost=self.costs,
        )

    def val_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(Samples(20), batch_size=5)

    def configure_optimizers(self) -> Any:
        return sgd(self)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        x, y, index = batch
        if self.job._run.current.step.local_batch:
            self.seen += index.tolist()
        return loss_of(self.network, x, y)

    def validation_step(self, batch: Any, _: int) -> None:
        self.log("validation", loss_of(self.network, batch[0], batch[1]), sync_dist=True)


def trainer(job: evenstep.Job, accumulate: int = 1, **options: Any) -> Any:
    callbacks = [EvenstepCallback(job), *options.pop("callbacks", [])]
    return lightning.Trainer(
        **{"max_epochs": EPOCHS, "enable_checkpointing": False, **options},
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        accumulate_grad_batches=accumulate,
        callbacks=callbacks,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def train(_rank: int, accumulate: int, costs: list[float] | None = None) -> Trained:
    job = evenstep.init(plan=plan)
    module = Module(job, accumulate, costs)
    trainer(job, accumulate).fit(module)
    return Trained(parameters(module), module.seen)


def train_halves(_rank: int, folder: str, is_cut: bool) -> list[list[float]]:
    """Writes a checkpoint after five steps, and resumes from there with new objects."""
    job = evenstep.init(plan=[13, 3])
    module = Module(job, 1)
    writer = lightning.callbacks.ModelCheckpoint(folder, "half", every_n_train_steps=5, save_top_k=-1)
    fit = trainer(job, max_epochs=-1, max_steps=5 if is_cut else 6, enable_checkpointing=True, callbacks=[writer])
    fit.fit(module)
    if is_cut:
        fit.save_checkpoint(f"{folder}/half.ckpt")

    job = evenstep.init(plan=[13, 3])
    module = Module(job, 1)
    trainer(job).fit(module, ckpt_path=f"{folder}/half.ckpt")
    return parameters(module)


def one_process_of(steps: list[tuple[int, int]]) -> list[list[float]]:
    """The reference for shortened epochs: iterations by epoch and position."""
    data, model = Samples(), network()
    optimizer = sgd(model)
    for epoch, step in steps:
        at = ORDER.permutation(epoch)[step * ORDER.global_batch :][: ORDER.global_batch]
        optimizer.zero_grad()
        loss_of(model, data.x[at], data.y[at]).backward()
        optimizer.step()
    return parameters(model)


def train_wrongly(_rank: int) -> tuple[str, str]:
    job = evenstep.init(plan=plan)
    with pytest.raises(evenstep.UnsupportedError) as overfits:
        trainer(job, overfit_batches=2).fit(Module(job, 1))
    with pytest.raises(evenstep.SettingError) as refused:
        trainer(job, 2).fit(Module(job, 1))
    return str(refused.value), str(overfits.value)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_uneven_batches_train_as_one_process_does(accumulate: int) -> None:
    results = ranks.run_ranks(2, train, accumulate)
    reference = one_process(order=ORDER)
    for trained in results:
        assert difference(trained.parameters, reference) <= TOLERANCE
    times = Counter(sample for trained in results for sample in trained.seen)
    # With drop_last each epoch skips its last 13.
    assert sum(times.values()) == EPOCHS * ORDER.steps * ORDER.global_batch
    assert max(times.values()) <= EPOCHS


def test_work_cut_by_cost_trains_as_one_process_does() -> None:
    results = ranks.run_ranks(2, train, 1, [1.0 + index % 7 for index in range(SAMPLES)])
    reference = one_process(order=Order(SAMPLES, 16, shuffle=False, drop_last=True))
    for trained in results:
        assert difference(trained.parameters, reference) <= TOLERANCE
    steps = EPOCHS * ORDER.steps
    counts = [len(trained.seen) for trained in results]
    assert sum(counts) == steps * ORDER.global_batch
    assert counts != [sum(plan(step)[rank] for step in range(steps)) for rank in range(2)], "cut by count"


@pytest.mark.parametrize("is_cut", [False, True], ids=["midway", "cut by max_steps"])
def test_a_checkpoint_goes_on_where_it_was_written(is_cut: bool, tmp_path: Path) -> None:
    steps = [(epoch, step) for epoch in range(EPOCHS) for step in range(ORDER.steps)]
    reference = one_process_of(steps[:5] + steps[ORDER.steps :] if is_cut else steps)
    for resumed in ranks.run_ranks(2, train_halves, str(tmp_path), is_cut):
        assert difference(resumed, reference) <= TOLERANCE


def test_accumulation_must_be_the_loaders_and_batches_the_plans() -> None:
    for said, overfits in ranks.run_ranks(2, train_wrongly):
        assert overfits.startswith("overfit_batches=2: Lightning would replace the sampler")
        assert "accumulate_grad_batches=2" in said
        assert "accumulate=1" in said
