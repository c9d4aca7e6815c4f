"""Loaders in loops that do not simply read every epoch to its end."""

from typing import Any

import pytest
from torch.utils.data import DataLoader

import evenstep
from evenstep.run import binding
from evenstep.run.loader import Loader
from ranks import run_ranks
from training import SAMPLES, Samples


def nothing(_samples: Any) -> None:
    """A collate function for loops that ignore the data."""


def alone(**options: Any) -> Loader:
    return evenstep.init(plan=[16]).loader(Samples(), **options)


def test_batches_that_are_none_are_batches() -> None:
    assert list(alone(collate_fn=nothing)) == [None] * 13


def test_batches_come_in_their_order_or_not_at_all() -> None:
    with pytest.raises(evenstep.SettingError, match="in_order=False: batches belong to iterations"):
        alone(num_workers=2, in_order=False)


class Stops(Samples):
    def __getitem__(self, index: int) -> Any:
        if index == 40:
            raise StopIteration
        return super().__getitem__(index)


def test_a_data_set_that_stops_early_is_no_end_of_the_epoch() -> None:
    batches = iter(evenstep.init(plan=[16]).loader(Stops(), shuffle=False))
    next(batches)
    next(batches)
    with pytest.raises(evenstep.SettingError, match="raised StopIteration in iteration 2"):
        next(batches)


def test_an_epoch_is_read_once_at_a_time() -> None:
    loader = alone()
    first, second = iter(loader), iter(loader)
    next(first)
    next(second)
    with pytest.raises(evenstep.SettingError, match="started the epoch again"):
        next(first)
    assert len(list(second)) == 12, "the newer iterator continues"


def test_who_is_left_late_does_no_harm() -> None:
    """Prefetching iterators of an abandoned epoch have drawn batches that are discarded."""
    loader = alone(num_workers=2, multiprocessing_context="fork")
    kept = iter(loader)
    assert len(next(kept)[2]) == 16
    seen = [sample for _, _, index in loader for sample in index.tolist()]
    assert sorted(seen) == list(range(SAMPLES))
    del kept
    assert len(loader) == len(list(loader)) == 13


def test_a_batch_that_was_dropped_is_not_taken_for_a_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "READ_AHEAD_MAX", 8)
    job = evenstep.init(plan=[16])
    loader = job.loader(Samples())
    assert len(list(loader)) == 13, "looking at batches has no limit"
    with pytest.raises(evenstep.SettingError, match="more than 8 batches were read"), job.step():
        pass
    batches = iter(loader)
    ahead = [next(batches) for _ in range(8)]
    with job.step() as step:
        assert step.iteration == 0
    ahead += [next(batches), next(batches)]
    with pytest.raises(evenstep.SettingError, match="the oldest are unknown"), job.step():
        pass


def few(_rank: int) -> list[int]:
    return [len(index) for _, _, index in evenstep.init().loader(Samples(2), global_batch=16)]


def test_a_data_set_smaller_than_the_ranks() -> None:
    assert run_ranks(3, few) == [[1], [1], [2]], "a rank without samples computes some with weight 0"


def test_it_is_a_data_loader_that_nobody_splits_again() -> None:
    loader = alone(drop_last=True, collate_fn=nothing)
    assert isinstance(loader, DataLoader)
    assert (loader.batch_size, loader.num_workers, loader.drop_last, loader.collate_fn) == (None, 0, True, nothing)
    first = [index.tolist() for _, _, index in alone(seed=1)]
    same = alone(seed=1)
    same.set_epoch(7)
    same.sampler.set_epoch(7)  # type: ignore[attr-defined]  # Scripts of distributed samplers call it.
    assert [index.tolist() for _, _, index in same] == first, "set_epoch changes nothing"
    for split in (loader.sampler, loader.batch_sampler, DataLoader(loader.dataset, batch_sampler=loader.batch_sampler)):
        with pytest.raises(evenstep.UnsupportedError, match="would split the samples between ranks a second time"):
            list(split)  # type: ignore[arg-type]  # A batch sampler may be None.
    assert len(list(loader)) == 12


def test_a_with_statement_ends_the_job_also_after_an_error() -> None:
    def fails(job: evenstep.Job) -> None:
        with job:
            next(iter(job.loader(Samples())))
            raise ZeroDivisionError

    job = evenstep.init(plan=[16])
    with pytest.raises(ZeroDivisionError):
        fails(job)
    with pytest.raises(evenstep.SettingError, match="the job was closed"):
        job.step(global_batch=16).__enter__()
    assert job.state_dict()["iteration"] == 0
