"""Batches sized by the plan, read by PyTorch's DataLoader."""

import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset

from evenstep.errors import SettingError
from evenstep.run.run import Run
from evenstep.run.step import Step, Turn

#: DataLoader arguments that evenstep's loader sets itself, and the advice for each.
_OURS = {
    "batch_size": "is set by the plan: pass global_batch, the number of samples over all ranks",
    "sampler": "pass its indices as order=, for example order=lambda epoch: list(sampler) with a generator seeded by "
    "the epoch",
    "batch_sampler": "batches are sized by the plan: pass the indices in order as order=, and global_batch",
}

#: Advice for data sets without random access.
_STREAMS = "read streams with `job.step(global_batch=..)`, as in docs/reference/python.md"

#: Number of samples that a rank with an empty share computes with weight 0; batch norm needs at least two.
_WEIGHTLESS_SAMPLES = 2


def reads_ahead(dataloader_kwargs: dict[str, Any], accumulate: int) -> int:
    """Returns the number of iterations whose indices a DataLoader draws ahead of the training."""
    workers = dataloader_kwargs.get("num_workers", 0)
    batches = workers * (dataloader_kwargs.get("prefetch_factor") or 2) if workers else 0
    return -(-batches // accumulate)


def check(dataset: Any, dataloader_kwargs: dict[str, Any]) -> None:
    """Checks that every sample can occur exactly once per epoch.

    Raises:
        SettingError: the data set has no random access, or an argument conflicts with the plan.
    """
    # IterableDataset has the method, which raises NotImplementedError.
    is_indexed = getattr(type(dataset), "__getitem__", Dataset.__getitem__) is not Dataset.__getitem__
    has_random_access = is_indexed and hasattr(dataset, "__len__")
    if isinstance(dataset, IterableDataset) or not has_random_access:
        advice = "wrap it: Subset(dataset, range(len(dataset)))" if has_random_access else _STREAMS
        raise SettingError(
            f"{type(dataset).__name__}: must be a map-style data set, with a length and random access, so that "
            f"every sample occurs exactly once; {advice}"
        )
    for name, advice in _OURS.items():
        if name in dataloader_kwargs:
            raise SettingError(f"{name}: {advice}")
    if not dataloader_kwargs.get("in_order", True):
        raise SettingError(
            "in_order=False: batches belong to iterations and must keep their order; remove the argument"
        )


class Loader:
    """An iterable of this rank's batches; each iterator covers one epoch."""

    def __init__(self, run: Run, dataset: Any, dataloader_kwargs: dict[str, Any]) -> None:
        """Creates the loader of a started run."""
        self._run = run
        self._drawn: deque[Turn] = deque()
        self._latest: Turn | None = None
        self._dataloader: DataLoader[Any] = DataLoader(
            run.observer.dataset(dataset), batch_sampler=_Indices(run, self._drawn), **dataloader_kwargs
        )

    @property
    def dataset(self) -> Any:
        """The training data set."""
        return self._dataloader.dataset

    @property
    def accumulate(self) -> int:
        """The number of batches before each optimizer step; with ``max_tokens``, the minimum."""
        return self._run.order.accumulate

    @property
    def has_varying_passes(self) -> bool:
        """Whether iterations have different numbers of micro-batches."""
        costs = self._run.order.costs
        return costs is not None and costs.pass_max is not None

    @property
    def latest(self) -> Step:
        """The iteration of the last batch read, for loops that inspect batches before training on them.

        Raises:
            SettingError: no batch was read yet.
        """
        return self._turn.step

    @property
    def _turn(self) -> Turn:
        if self._latest is None:
            raise SettingError("no batch was read yet: read one from job.loader first")
        return self._latest

    @property
    def is_last(self) -> bool:
        """Whether the batch read last is the last micro-batch of its iteration, so the optimizer may step after it.

        Raises:
            SettingError: no batch was read yet.
        """
        return self._turn.is_last

    def __len__(self) -> int:
        """The number of batches in the current epoch: iterations times ``accumulate``.

        With ``max_tokens`` there may be more. With ``global_tokens`` the costs of all samples are read, once per epoch.
        """
        return self._run.iterations * self._run.order.accumulate

    def __iter__(self) -> Iterator[Any]:
        """Yields the remaining batches of the epoch: all of them, except after a resume."""
        run = self._run
        goes_on = run.begin_epoch()
        self._drawn.clear()
        batches = iter(self._dataloader)
        while True:
            run.binding.goes_on()
            run.sensor.loader_begins()
            begun = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration as error:
                if self._drawn:
                    raise SettingError(
                        f"the data set raised StopIteration in iteration {self._drawn[0].step.iteration}: must return "
                        "a sample for each index below its length, or raise another error"
                    ) from error
                # A loop that reads ahead may still compute its last batch.
                run.sensor.loader_ends(0.0)
                run.binding.is_read = True
                run.settle()
                run.observer.epoch_ends()
                return
            run.sensor.loader_ends(time.perf_counter() - begun)
            turn = self._drawn.popleft()
            self._latest = turn
            run.read(turn)
            yield batch
            if not goes_on():
                raise SettingError(
                    "a second iterator has started the epoch again: read a job's data with one iterator at a time"
                )


class _Indices:
    """A batch sampler that yields the indices of this rank's micro-batches in order."""

    def __init__(self, run: Run, drawn: deque[Turn]) -> None:
        self._run = run
        self._drawn = drawn

    def __len__(self) -> int:
        return self._run.iterations * self._run.order.accumulate

    def __iter__(self) -> Iterator[list[int]]:
        run = self._run
        for step, samples in run.epoch_steps():
            begin = step.offset
            for micro in range(step.micro_batches):
                turn = Turn(step, micro)
                self._drawn.append(turn)
                indices = run.observer.drawn(step, samples[begin : begin + turn.samples])
                begin += turn.samples
                # The mean over no samples is NaN, and DDP waits for every rank's gradients, so this rank computes
                # samples with weight 0.
                yield indices or samples[:_WEIGHTLESS_SAMPLES]
