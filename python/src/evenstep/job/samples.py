"""The samples of a training job: loaders, hedged steps and streams."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch

from evenstep.errors import SettingError, UnsupportedError
from evenstep.hedge.begin import claims_of
from evenstep.hedge.claims import Claims
from evenstep.hedge.steps import Steps
from evenstep.hedge.trainee import TrainedModel
from evenstep.job.gradients import Gradients
from evenstep.job.lifecycle import CLOSE_S, Lifecycle
from evenstep.run import loader
from evenstep.run.passes import Passes
from evenstep.run.run import Run
from evenstep.run.step import Turn
from evenstep.samples.costs import Costs
from evenstep.samples.epoch import Place
from evenstep.samples.order import STREAM_STEPS, Order

log = logging.getLogger("evenstep")

#: Advice for second loaders.
_VALIDATION = (
    "read a validation set with PyTorch's DataLoader, on rank r of n the samples range(r, len(dataset), n), and add "
    "the losses of all ranks with all_reduce"
)


class Samples:
    """Gives this rank its samples."""

    def __init__(self, life: Lifecycle, gradients: Gradients) -> None:
        """Starts without a data set; the first one opens the run of ``life``, which ``gradients`` follow."""
        self._life = life
        self._gradients = gradients
        self._dataset: Any = None
        #: Whether a warning about another data set was logged.
        self._has_warned = False
        self._claims: Claims | None = None

    def size(self, global_batch: int | None, costs: Costs | None) -> int:
        """Returns the number of samples of an iteration, by default the sum of the given plan.

        With a budget, costs end an iteration, so it does not count.

        Raises:
            SettingError: it is missing.
        """
        if costs and costs.budget:
            return 1
        plan = self._life.options.fixed
        if global_batch is None:
            if plan is None:
                raise SettingError("global_batch is missing: pass it, or use init(plan=..)")
            global_batch = sum(plan(0) if callable(plan) else plan)
        return self._life.observer.global_batch(global_batch)

    def loader(
        self, order: Order, dataset: Any, micro_batch: int | Literal["auto"] | None, dataloader_kwargs: dict[str, Any]
    ) -> loader.Loader:
        """Returns a loader of batches; see :meth:`Job.loader`."""
        passes = None if micro_batch is None else Passes(micro_batch)
        # Workers of a DataLoader draw indices before their iteration begins, so plans must be known that much earlier.
        run = self._begin(order, loader.reads_ahead(dataloader_kwargs, order.accumulate))
        if passes and run.world_size < len(run.workers.of_ranks):
            raise UnsupportedError(
                "micro_batch with workers of several ranks, init(mesh=..), which need equal passes: use accumulate=N"
            )
        if passes:
            if run.passes is None:
                run.passes = passes
                run.limits_of(self._life.state)
            if run.passes.setting != micro_batch:
                raise SettingError(
                    f"micro_batch={micro_batch}: the job began with micro_batch={run.passes.setting}, and must keep it"
                )
            self._gradients.reduce_last(run)
        # After the order was compared: a data set of another length is an error, one of the same length may be right.
        self._warn_of_another(dataset)
        return loader.Loader(run, dataset, dataloader_kwargs)

    def steps(
        self,
        order: Order,
        dataset: Any,
        model: torch.nn.Module | None,
        collate_fn: Callable[[list[Any]], Any] | None,
        micro_batch: int | None,
        *,
        tail: float | None,
        min_chunk: int | None,
    ) -> Steps:
        """Returns hedged steps; see :meth:`Job.steps`."""
        if micro_batch is not None and micro_batch < 1:
            raise SettingError(f"micro_batch={micro_batch}: must be at least 1")
        if micro_batch is not None and order.costs is not None:
            raise SettingError(
                f"micro_batch={micro_batch} with cost: must be max_tokens, because passes are cut by cost"
            )
        self._life.hedge(tail, min_chunk)
        run = self._begin(order, reads_ahead=0)
        self._warn_of_another(dataset)
        return Steps(
            run,
            dataset,
            partial(self._gradients.trained, model),
            self._claims_of,
            collate_fn=collate_fn,
            micro_batch=micro_batch or self._life.options.max_local_batch,
            tail=self._life.options.tail,
        )

    def stream(self, size: int) -> None:
        """Prepares the next iteration of a stream, with ``size`` samples; see :meth:`Job.step`."""
        life = self._life
        # A checkpoint may have been written before a smaller iteration.
        before = life.state.get("global_batch", size)
        whole = life.run.order.global_batch if life.opened else before
        if not 1 <= size <= whole:
            raise SettingError(
                f"step(global_batch={size}): must be between 1 and {whole}, the global batch of the first iteration"
            )
        run = self._begin(Order(whole * STREAM_STEPS, whole, shuffle=False), reads_ahead=0)
        run.start()
        done = run.binding.next
        place = Place(done.iteration, done.epoch, done.position, done.position * whole, size, is_last=False)
        run.read(Turn(run.step(place), 0))

    def _begin(self, order: Order, reads_ahead: int) -> Run:
        """Returns the run; the first call opens it, together with all ranks."""
        order = self._life.observer.order(order)
        run = self._life.started_run()
        if run is None:
            run = self._life.open(order, reads_ahead)
            self._gradients.follow(run)
        elif run.order != order:
            raise SettingError(
                f"a job has one data set and one order, {run.order}; got {order}: {_VALIDATION}; for another training "
                "create another job with evenstep.init()"
            )
        # After the comparison of ranks, so that a rank with another order does not fail alone.
        self._gradients.check(order)
        return run

    def _warn_of_another(self, dataset: Any) -> None:
        if self._dataset is None:
            self._dataset = dataset
        elif self._dataset is not dataset and not self._has_warned:
            self._has_warned = True
            log.warning(
                "the job got another data set with as many samples, whose epochs continue the job's: right if its "
                "samples are the same; %s",
                _VALIDATION,
            )

    def _claims_of(self, trainee: TrainedModel) -> Claims:
        """Returns this rank's claims. All ranks create them together in the first iteration."""
        if self._claims is None:
            self._claims = claims_of(trainee, self._life.options)
            self._life.ends.callback(self._claims.line.close, CLOSE_S)
        return self._claims
