"""Batches sized by the plan, read by PyTorch's DataLoader."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, Sampler

from evenstep.errors import SettingError, UnsupportedError
from evenstep.run.empty import emptied
from evenstep.run.run import Run
from evenstep.run.step import Step, Turn

log = logging.getLogger("evenstep")

#: DataLoader arguments that evenstep's loader sets itself, and the advice for each.
_OURS = {
    "batch_size": "is set by the plan: pass global_batch, the number of samples over all ranks",
    "sampler": "pass its indices as order=, for example order=lambda epoch: list(sampler) with a generator seeded by "
    "the epoch",
    "batch_sampler": "batches are sized by the plan: pass the indices in order as order=, and global_batch",
}

#: Advice for data sets without random access.
_STREAMS = "read streams with `job.step(global_batch=..)`, as in docs/reference/python.md"

#: Number of samples that a rank with an empty share reads; batch norm needs at least two.
WEIGHTLESS_SAMPLES = 2

#: Advice for models and batches that cannot have length 0.
_AVOID = "avoid iterations with fewer samples than ranks or workers (drop_last=True) and plans with 0"

#: The error of other readers of the indices.
_SPLIT = (
    "another library reads the indices of job.loader, and would split the samples between ranks a second time: read "
    "job.loader itself; with Accelerate, use evenstep.accelerate.prepare"
)


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


class Loader(DataLoader[Any]):
    """A DataLoader of this rank's batches; each iterator covers one epoch.

    ``batch_size`` is None, as with a batch sampler of PyTorch: sizes vary, and ``latest`` has them.
    """

    #: Accelerate does not split it again.
    _is_accelerate_prepared = True

    def __init__(self, run: Run, dataset: Any, dataloader_kwargs: dict[str, Any]) -> None:
        """Creates the loader of a started run."""
        self._run = run
        #: The batches that were drawn, with the samples of their iterations.
        self._drawn: deque[tuple[Turn, list[int]]] = deque()
        self._latest: Turn | None = None
        #: Moves batches to a device.
        self._moved: Callable[[Any], Any] = lambda batch: batch
        self._has_told = False
        self._indices = _Indices(run, self._drawn)
        super().__init__(run.observer.dataset(dataset), batch_sampler=self._indices, **dataloader_kwargs)
        # PyTorch sets others with a batch sampler, and refuses to change them.
        vars(self).update(sampler=_NoSampler(dataset, run.world_size, run.rank), drop_last=run.order.drop_last)

    def set_epoch(self, epoch: int) -> None:
        """Does nothing, as ``sampler.set_epoch``: the loader counts its epochs and shuffles each of them."""

    def moves(self, batches: Callable[[Any], Any]) -> None:
        """Moves batches to a device before they are read."""
        self._moved = batches

    @property
    def accumulate(self) -> int:
        """The number of batches before each optimizer step; with ``max_tokens``, the minimum."""
        return self._run.order.accumulate

    @property
    def has_varying_passes(self) -> bool:
        """Whether iterations have different numbers of micro-batches."""
        costs = self._run.order.costs
        return self._run.order.has_own_passes or (costs is not None and costs.pass_max is not None)

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

        It is not if the batch did not fit into memory: its samples follow again.

        Raises:
            SettingError: no batch was read yet.
        """
        return self._turn.is_last and not self._turn.failed

    def __len__(self) -> int:
        """The number of batches in the current epoch: iterations times ``accumulate``.

        With ``max_tokens`` or ``micro_batch`` there may be more. With ``global_tokens`` the costs of all samples are
        read, once per epoch.
        """
        return self._run.iterations * self._run.order.accumulate

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # PyTorch names a class of its own.
        """Yields the remaining batches of the epoch: all of them, except after a resume."""
        run = self._run
        goes_on = run.begin_epoch()
        self._drawn.clear()
        self._indices.is_read = True
        batches = self._turns(super().__iter__())
        self._indices.is_read = False
        while True:
            run.binding.goes_on()
            run.sensor.loader_begins()
            begun = time.perf_counter()
            try:
                turn, batch = next(batches)
            except StopIteration as error:
                if self._drawn:
                    raise SettingError(
                        f"the data set raised StopIteration in iteration {self._drawn[0][0].step.iteration}: must "
                        "return a sample for each index below its length, or raise another error"
                    ) from error
                # A loop that reads ahead may still compute its last batch.
                run.sensor.loader_ends(0.0)
                run.binding.is_read = True
                run.settle()
                run.observer.epoch_ends()
                return
            run.sensor.loader_ends(time.perf_counter() - begun)
            # Few transformers compute 0 rows, and evenstep itself counts no micro-batch without samples.
            if not turn.samples and (sums := run.needs.sums) and (not turn.step.local_batch or "scaled" in sums):
                batch = self._emptied(batch, turn.step)
            self._latest = turn
            yield self._arrived(batch, turn)
            if not goes_on():
                raise SettingError(
                    "a second iterator has started the epoch again: read a job's data with one iterator at a time"
                )

    def _turns(self, batches: Iterator[Any]) -> Iterator[tuple[Turn, Any]]:
        """Yields batches in the order of their passes.

        An iteration of which a pass does not fit into memory is read again in smaller passes.
        """
        passes, repeated = self._run.passes, None
        for batch in batches:
            turn, samples = self._drawn.popleft()
            if turn.step is repeated:
                continue
            # A DataLoader's workers have drawn it before an earlier one did not fit.
            if passes is None or turn.micro or passes.may_fit(turn.step.batch_size):
                yield turn, batch
            else:
                turn.failed = True
            if turn.failed:
                repeated = turn.step
                yield from self._repeated(repeated, samples)

    def _repeated(self, step: Step, samples: list[int]) -> Iterator[tuple[Turn, Any]]:
        """Yields the batches of an iteration, until all passes of it have fitted."""
        while True:
            step = self._run.cut_again(step)
            for turn, indices in _turns_of(step, samples):
                # In this process, where the script's errors are raised as without workers. PyTorch prefers to read all
                # samples of a batch at once.
                read_all = getattr(self.dataset, "__getitems__", None)
                items = read_all(indices) if read_all else [self.dataset[index] for index in indices]
                yield turn, self.collate_fn(items)
                if turn.failed:
                    break
            else:
                return

    def _arrived(self, batch: Any, turn: Turn) -> Any:
        """Returns a batch on its device, which this loader does not keep."""
        moved = self._moved(batch)
        self._run.read(turn, moved)
        return moved

    def _emptied(self, batch: Any, step: Step) -> Any:
        """Returns the batch of a rank without samples, with length 0.

        Raises:
            UnsupportedError: that is impossible, and the training loop would count its samples.
        """
        begins = f"iteration {step.iteration}: {self._run.workers.noun} {self._run.rank} has no samples for this batch"
        try:
            cut = emptied(batch, min(WEIGHTLESS_SAMPLES, step.global_batch))
        except Exception as error:  # The script's own classes may raise any.
            if "scaled" not in self._run.needs.sums:
                return batch
            raise UnsupportedError(
                f'{begins}, and job.wrap(loss="scaled") requires length 0 then, but collate_fn returned '
                f"{error}: return tensors whose first dimension has the samples, or {_AVOID}"
            ) from error
        if not self._has_told:
            self._has_told = True
            log.warning("%s, and gets one of length 0; if the model cannot compute it, %s", begins, _AVOID)
        return cut


class _NoSampler(DistributedSampler[Any]):
    """The sampler that libraries find, so that they do not add another one."""

    def set_epoch(self, epoch: int) -> None:
        """Does nothing: the loader counts its epochs."""

    def __iter__(self) -> Iterator[Any]:
        raise UnsupportedError(_SPLIT)


class _Indices(Sampler[list[int]]):
    """A batch sampler that yields the indices of this rank's micro-batches in order."""

    def __init__(self, run: Run, drawn: deque[tuple[Turn, list[int]]]) -> None:
        self._run = run
        self._drawn = drawn
        #: Whether the loader is its reader.
        self.is_read = False

    def __len__(self) -> int:
        return self._run.iterations * self._run.order.accumulate

    def __iter__(self) -> Iterator[list[int]]:
        if not self.is_read:
            raise UnsupportedError(_SPLIT)
        return self._draw()

    def _draw(self) -> Iterator[list[int]]:
        run = self._run
        for step, samples in run.epoch_steps():
            for turn, indices in _turns_of(step, samples):
                self._drawn.append((turn, samples))
                yield run.observer.drawn(step, indices) if turn.samples else indices


def _turns_of(step: Step, samples: list[int]) -> Iterator[tuple[Turn, list[int]]]:
    """Yields the batches of a rank in an iteration, and the indices to read, of all its ``samples``."""
    begin = step.offset
    for micro in range(step.micro_batches):
        turn = Turn(step, micro)
        # The mean over no samples is NaN, and DDP waits for every rank's gradients, so this rank computes samples with
        # weight 0; or none of them, if losses are sums.
        yield turn, samples[begin : begin + turn.samples] or samples[:WEIGHTLESS_SAMPLES]
        begin += turn.samples
