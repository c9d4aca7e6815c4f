"""Batches as the plan says, by PyTorch's own DataLoader."""

import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from evenstep.errors import SettingError
from evenstep.run import Run, Step, Turn

#: What a loader of ours decides itself.
_OURS = ("batch_size", "batch_sampler", "sampler", "shuffle", "drop_last")

#: Samples of the batch that a rank without samples computes with weight 0: batch norm needs two.
_GHOST_SAMPLES = 2

#: Iterations ahead of the last planned one that the predictor plans for, less what the exchange takes.
_AHEAD_MAX = 62


def reads_ahead(dataloader_kwargs: dict[str, Any], accumulate: int) -> int:
    """Iterations of which a DataLoader has drawn the indices when the training gets a batch.

    Raises:
        SettingError: further than plans are made ahead.
    """
    workers = dataloader_kwargs.get("num_workers", 0)
    batches = workers * (dataloader_kwargs.get("prefetch_factor") or 2) if workers else 0
    iterations = -(-batches // accumulate)
    if iterations > _AHEAD_MAX:
        raise SettingError(
            f"num_workers={workers} read {batches} batches ahead, which are {iterations} iterations: must be at most "
            f"{_AHEAD_MAX}; lower num_workers or prefetch_factor"
        )
    return iterations


def check(dataset: Any, dataloader_kwargs: dict[str, Any]) -> None:
    """Refuses what would break that every sample comes exactly once.

    Raises:
        SettingError: the data set has no random access, or an argument decides what the plan decides.
    """
    if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise SettingError(
            f"{type(dataset).__name__}: must have a length and random access (a map-style data set), so that every "
            "sample comes exactly once; streams have `with job.step(global_batch=..)`"
        )
    for name in _OURS:
        if name in dataloader_kwargs:
            raise SettingError(
                f"{name}: the plan decides it; job.loader takes global_batch, shuffle, drop_last and seed"
            )
    if not dataloader_kwargs.get("in_order", True):
        raise SettingError("in_order=False: batches belong to iterations, and must come in their order")


class Loader:
    """An iterable of this rank's batches, an epoch each time."""

    def __init__(self, run: Run, dataset: Any, dataloader_kwargs: dict[str, Any]) -> None:
        """Of a run that has begun."""
        self._run = run
        self._drawn: deque[Turn] = deque()
        self._latest: Step | None = None
        self._dataloader: DataLoader[Any] = DataLoader(
            run.observer.dataset(dataset), batch_sampler=_Indices(run, self._drawn), **dataloader_kwargs
        )

    @property
    def dataset(self) -> Any:
        """What is trained on."""
        return self._dataloader.dataset

    @property
    def accumulate(self) -> int:
        """Batches that come before each optimizer step."""
        return self._run.order.accumulate

    @property
    def latest(self) -> Step:
        """The iteration that the batch read last is of: for loops that look at batches before they train on them.

        Raises:
            SettingError: none was read yet.
        """
        if self._latest is None:
            raise SettingError("no batch was read yet")
        return self._latest

    def __len__(self) -> int:
        """Batches of an epoch: iterations times micro-batches."""
        return self._run.order.steps * self._run.order.accumulate

    def __iter__(self) -> Iterator[Any]:
        """What is left of the epoch: all of it, but after a resume."""
        run = self._run
        goes_on = run.begin_epoch()
        self._drawn.clear()
        batches = iter(self._dataloader)
        while True:
            begun = time.perf_counter()
            batch = next(batches, None)
            if not self._drawn:
                run.settle()
                run.observer.epoch_ends()
                return
            run.sensor.loader_waited(time.perf_counter() - begun)
            turn = self._drawn.popleft()
            self._latest = turn.step
            run.read(turn)
            yield batch
            if not goes_on():
                raise SettingError("an epoch was begun again meanwhile: read a job's data by one iterator at a time")


class _Indices:
    """A batch sampler: the indices of this rank's micro-batches, in their order."""

    def __init__(self, run: Run, drawn: deque[Turn]) -> None:
        self._run = run
        self._drawn = drawn

    def __len__(self) -> int:
        return self._run.order.steps * self._run.order.accumulate

    def __iter__(self) -> Iterator[list[int]]:
        run = self._run
        permutation = run.order.permutation(run.progress.epoch)
        for step in run.steps_of_epoch():
            begin = step.position * run.order.global_batch + step.offset
            for micro in range(step.micro_batches):
                self._drawn.append(Turn(step, micro))
                first, size = begin + micro * step.batch_size, step.batch_size
                indices = permutation[first : first + size].tolist()
                run.observer.drawn(step, indices)
                # A mean over nothing is NaN, and DDP waits for every rank's gradients: samples of weight 0.
                yield indices or permutation[begin - step.offset :][: min(_GHOST_SAMPLES, step.global_batch)].tolist()
