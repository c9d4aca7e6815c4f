"""Batches of a worker of an elastic job, read by PyTorch's DataLoader."""

import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

from torch.utils.data import DataLoader, Sampler

from evenstep.errors import SettingError, UnsupportedError
from evenstep.run.loader import WEIGHTLESS_SAMPLES, reads_ahead
from evenstep.run.step import Step
from evenstep.samples.progress import Progress


class Reader(Protocol):
    """The job of a loader."""

    #: The batches that were read and did not begin.
    waiting: deque[Step]

    @property
    def progress(self) -> Progress:
        """The position after the last complete iteration."""

    @property
    def generation(self) -> int:
        """The number of times that the set of workers has changed."""

    @property
    def is_over(self) -> bool:
        """Whether all epochs are trained."""

    def join(self) -> None:
        """Becomes a member before the first batch; later calls do nothing."""

    def places(self) -> Iterator[tuple[Step, list[int]]]:
        """Yields the remaining iterations of the epoch for this worker, with the samples that it reads."""

    def waited(self, seconds: float) -> None:
        """Records a wait for data."""


class ElasticLoader(DataLoader[Any]):
    """A DataLoader of this worker's batches; each iterator covers the rest of an epoch."""

    def __init__(self, job: Reader, dataset: Any, dataloader_kwargs: dict[str, Any]) -> None:
        """Creates the loader of a job, which it joins with its first batch."""
        self._job = job
        #: The iterations whose indices were drawn.
        self._drawn: deque[Step] = deque()
        #: The number of iterations that are drawn ahead.
        self.ahead = reads_ahead(dataloader_kwargs, 1)
        super().__init__(dataset, batch_sampler=_Indices(job, self._drawn), **dataloader_kwargs)

    def set_epoch(self, epoch: int) -> None:
        """Does nothing: the loader counts its epochs and shuffles each of them."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # PyTorch names a class of its own.
        """Yields the remaining batches of the epoch; an iteration follows again if a worker was lost in it."""
        job = self._job
        job.join()
        epoch = job.progress.epoch
        while job.progress.epoch == epoch and not job.is_over:
            generation = job.generation
            self._drawn.clear()
            batches = super().__iter__()
            while job.generation == generation and job.progress.epoch == epoch:
                begun = time.perf_counter()
                try:
                    batch = next(batches)
                except StopIteration as error:
                    raise SettingError(
                        f"iteration {job.progress.iteration} has no batch: the data set must return a sample for each "
                        "index below its length"
                    ) from error
                job.waited(time.perf_counter() - begun)
                step = self._drawn.popleft()
                job.waiting.append(step)
                yield batch
                if job.generation == generation and job.progress.iteration <= step.iteration:
                    raise UnsupportedError(
                        f"iteration {step.iteration} was read and not trained: put each batch of an elastic job into "
                        "one `with job.step()`, before the next one is read"
                    )


class _Indices(Sampler[list[int]]):
    """A batch sampler of this worker's iterations, from the position of the job on."""

    def __init__(self, job: Reader, drawn: deque[Step]) -> None:
        self._job, self._drawn = job, drawn

    def __iter__(self) -> Iterator[list[int]]:
        for step, samples in self._job.places():
            self._drawn.append(step)
            # The mean over no samples is NaN, so a worker without samples computes some, with weight 0.
            yield samples[step.offset : step.offset + step.local_batch] or samples[:WEIGHTLESS_SAMPLES]
