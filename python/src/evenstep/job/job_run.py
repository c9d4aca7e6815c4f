"""The run of a training job: its start, its state and its end."""

import atexit
import os
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from evenstep.errors import SettingError, UnsupportedError
from evenstep.gradients.first_step import check_first_step, follow_steps
from evenstep.job.kubeflow import TIMEOUT_S, StatusPoster
from evenstep.job.metrics import Metrics, trainjob_status
from evenstep.run.observer import Observer
from evenstep.run.run import Run
from evenstep.samples.order import Order
from evenstep.settings.options import RunOptions
from evenstep.start.opening import OpenRun, open_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenstep.hedge.claims import Claims
    from evenstep.hedge.trainee import TrainedModel
    from evenstep.run.losses import Loss

#: Maximum time that the end of a run waits for the last reports to be delivered, in seconds.
_CLOSE_S = 5.0

#: Advice for second loaders.
VALIDATION = (
    "read a validation set with PyTorch's DataLoader, on rank r of n the samples range(r, len(dataset), n), and add "
    "the losses of all ranks with all_reduce"
)


class JobRun:
    """The part of a job that starts, saves and ends its run."""

    def __init__(self, job_options: RunOptions) -> None:
        """Stores the options; :func:`init` validates them."""
        self._observer = Observer.current
        self._options = self._observer.job_made(job_options)
        #: The process of this job.
        self._process = os.getpid()
        self._opened: OpenRun | None = None
        # The job holds the model, and the garbage collector does not see that DDP holds its hook.
        started = weakref.WeakMethod(self._started_run)
        #: Returns the run, which starts later, without holding the job.
        self._run_later: Callable[[], Run | None] = lambda: get() if (get := started()) else None
        self._state: dict[str, Any] | None = None
        #: Whether a model was made with ``fully_shard``.
        self._has_shards = False
        #: The model that was wrapped last, and the number of wrapped models.
        self._trained_model: TrainedModel | None = None
        self._wrapped_models = 0
        self._claims: Claims | None = None
        self._dataset: Any = None
        #: Whether a warning about another data set was logged.
        self._is_told = False
        #: Whether the training scales its losses.
        self._is_scaled = False
        self._metrics = Metrics()
        #: Posts the progress of this run, on rank 0 of a TrainJob of Kubeflow.
        self._poster: StatusPoster | None = None
        #: Functions that remove the hooks of optimizers at the end of the job.
        self._ends: list[Callable[[], None]] = []
        #: The reductions of the losses of the wrapped models.
        self._losses: set[Loss] = set()
        #: Whether a model cannot compute a batch of length 0.
        self._needs_samples = False
        #: Whether a wrapped model cannot compute a batch of a single sample.
        self._avoids_singles = False

    def metrics(self) -> dict[str, float]:
        """Returns numbers for TensorBoard and other loggers, by name. Call it on rank 0, every tenth iteration or less.

        It does not wait for other ranks. It sends two requests to the predictor and waits at most 0.5 s for both. After
        a failed request it sends none for 30 s. Times are the predictor's forecasts for the newest plan, which is a few
        iterations ahead. They are absent without a predictor, until workers are measured, and on hosts that cannot
        reach it.

        - ``evenstep/local_batch/rank_0``, ...: samples, or units of cost. With hedged steps, without claimed chunks.
        - ``evenstep/compute_time_s/rank_0``, ...: forward and backward passes, in seconds.
        - ``evenstep/step_time_s``: the slowest rank, in seconds: the expected maximum of uncertain times.
        - ``evenstep/wait_s/rank_0``, ...: wait for the slowest rank, in seconds.
        - ``evenstep/gain``: estimated time with even shares over the measured time, of the job so far; 1 means no gain.
          The same value as on the predictor's page. Absent in the first iterations.

        Raises:
            SettingError: the run has not started.
        """
        run, plans = self._run, self._opened.plans if self._opened else None
        batches = run.plans(run.progress.iteration).batches
        return self._metrics.read(plans.place if plans else None, batches)

    def state_dict(self) -> dict[str, Any]:
        """Returns the progress of the run, the same on all ranks, to save with model and optimizer.

        An iteration counts as done when its gradients are complete, so call this after the optimizer's step. The state
        has constant size. Resuming replays no iterations.
        """
        return self._run.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the progress of a checkpoint; call it on all ranks, before the first batch is read.

        The number of ranks may have changed.

        Raises:
            SettingError: a batch was read already, or the checkpoint does not fit the loader.
        """
        opened = self._opened
        if opened and not opened.run.starts:
            raise SettingError(
                f"load_state_dict: the first batch was read already, and {opened.run.progress.iteration} iterations "
                "are done: load the checkpoint before the loop over job.loader, or continue it in a new job of "
                "evenstep.init()"
            )
        if opened:
            opened.restore(state)
        self._state = dict(state)

    def close(self) -> None:
        """Delivers the last reports and leaves the job; called automatically when the process ends.

        In a child of ``os.fork`` it does nothing: the job continues in its own process.
        """
        if os.getpid() != self._process:
            return
        opened, self._opened = self._opened, None
        poster, self._poster = self._poster, None
        if poster:
            poster.stop()
        while self._ends:
            self._ends.pop()()
        if opened:
            opened.close(_CLOSE_S)
        if self._claims:
            self._claims.line.close(_CLOSE_S)
        if poster:
            poster.join(_CLOSE_S + TIMEOUT_S)
        atexit.unregister(self.close)

    def _started_run(self) -> Run | None:
        return self._opened.run if self._opened else None

    @property
    def _run(self) -> Run:
        if self._opened is None:
            raise SettingError("the run has not started: call job.loader first")
        return self._opened.run

    def _begin(self, order: Order, reads_ahead: int) -> Run:
        order = self._observer.order(order)
        if self._opened is None:
            self._opened = open_run(self._options, order, reads_ahead, self._state)
            # Ranks may have numbered themselves.
            self._options = replace(self._options, settings=self._opened.begin.job_options.settings)
            self._see_models(self._opened.run)
            atexit.register(self.close)
            if self._opened.run.rank == 0:
                status = trainjob_status(self._opened, self._options.epochs)
                self._poster = StatusPoster.of_environment(os.environ, status)
            self._ends += [handle.remove for handle in follow_steps(self._opened.run, self._is_weighted)]
            if self._opened.run.world_size > 1:
                self._ends.append(check_first_step(self._opened.run, self._is_weighted, self._only_wraps).remove)
        elif self._opened.run.order != order:
            raise SettingError(
                f"a job has one data set and one order, {self._opened.run.order}; got {order}: {VALIDATION}; for "
                "another training create another job with evenstep.init()"
            )
        return self._opened.run

    def _see_models(self, run: Run) -> None:
        run.avoids_singles, run.needs_equal_passes = self._avoids_singles, "mean" in self._losses
        needs_samples = self._needs_samples or self._avoids_singles or "mean" in self._losses
        run.sums = () if needs_samples else frozenset(self._losses)
        if self._has_shards and run.order.has_unequal_passes:
            raise UnsupportedError(
                "fully_shard may add the gradients of micro-batches before they can be weighted, and the remainder of "
                "an epoch has unequal ones: pass drop_last=True or another global_batch to job.loader"
            )

    def _is_weighted(self) -> bool:
        return self._is_scaled or self._options.claims or self._trained_model is not None

    def _only_wraps(self) -> bool:
        return not (self._is_scaled or self._options.claims)
