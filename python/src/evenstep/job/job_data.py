"""The data of a training job: loaders, hedged steps and streams."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from evenstep.errors import SettingError, UnsupportedError
from evenstep.gradients import hook
from evenstep.hedge.begin import claims_of, hedged
from evenstep.hedge.claims import Claims
from evenstep.hedge.steps import Steps
from evenstep.hedge.trainee import TrainedModel
from evenstep.job.job_run import VALIDATION, JobRun
from evenstep.run import loader
from evenstep.run.step import Step, Turn
from evenstep.samples.costs import Costs, Layout, SampleCosts
from evenstep.samples.epoch import Place
from evenstep.samples.order import STREAM_STEPS, GivenIndices, Indices, Order

log = logging.getLogger("evenstep")


class JobData(JobRun):
    """The part of a job that gives this rank its samples."""

    def loader(
        self,
        dataset: Any,
        *,
        global_batch: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        accumulate: int = 1,
        order: Indices | None = None,
        cost: SampleCosts | None = None,
        global_tokens: int | None = None,
        max_tokens: int | None = None,
        hidden_size: int | None = None,
        layout: Layout = "packed",
        **dataloader_kwargs: Any,
    ) -> loader.Loader:
        """Returns an iterable of this rank's batches, sized by the plan.

        Over all ranks, every sample occurs exactly once per epoch, or as often as in ``order``. All ranks must call it
        with the same arguments, after ``init_process_group``, and read the first batch together. That raises
        RejectedError if the predictor rejects this run.

        Args:
            dataset: a map-style data set, with a length and random access.
            global_batch: number of samples per iteration over all ranks; default the sum of the given plan.
            shuffle: use a new seeded permutation for each epoch; otherwise keep the order of the data set.
            seed: seed of the permutations.
            drop_last: skip the last iteration of an epoch if it has fewer samples.
            accumulate: number of micro-batches before each optimizer step. They have equal sizes. Only in a last
                iteration that does not divide they differ, and each counts by its samples: divide the loss as usual.
            order: the indices of an epoch's samples, instead of ``shuffle`` and ``seed``: a sequence, or a function of
                the epoch. Samples may occur several times or not at all, as weighted samplers draw them. The indices
                must be the same on all ranks, and each epoch must have the same number of them.
            cost: the cost of each sample, usually its number of tokens, or a function that returns it for an index. The
                plan then balances costs instead of counts, and each rank gets any of the samples. ``shuffle`` uses
                another permutation than without costs.
            global_tokens: maximum cost of an iteration over all ranks, instead of ``global_batch``: it has successive
                samples until the next one would exceed it. Requires ``cost``.
            max_tokens: maximum cost of one forward pass. Ranks split their samples into as many micro-batches as
                needed, all ranks into the same number; :attr:`Loader.is_last` tells the last one. Requires ``cost``.
            hidden_size: width of a transformer. Its attention makes the work of a sample of L tokens proportional to
                L + L^2 / (6 hidden_size) at first; the share of L^2 is then learned from compute times, as without a
                width. The limits above count tokens. Requires ``cost``.
            layout: how ``collate_fn`` arranges the samples of a pass. ``"packed"`` means one after the other, so that a
                pass costs their sum. ``"padded"`` means padded to the longest one.
            **dataloader_kwargs: passed to PyTorch's DataLoader (``num_workers``, ``collate_fn``, ``pin_memory``, ...).

        Raises:
            SettingError: an argument breaks its rule.
            DivergedError: ranks differ in a value that must be the same.
        """
        loader.check(dataset, dataloader_kwargs)
        given = None if order is None else GivenIndices.of(order, len(dataset))
        # A given order needs no permutation: seeds that have no effect must not make the orders of two calls differ.
        samples, shuffle, seed = (given.samples, False, 0) if given else (len(dataset), shuffle, seed)
        costs = Costs.of_arguments(
            cost,
            len(dataset),
            global_batch=global_batch,
            global_tokens=global_tokens,
            max_tokens=max_tokens,
            hidden_size=hidden_size,
            layout=layout,
        )
        # With a budget, costs end an iteration, so the order's number of samples does not count.
        size = 1 if costs and costs.budget else self._global_batch(global_batch)
        whole = Order(samples, size, seed, shuffle, drop_last, accumulate, given, costs)
        # Workers of a DataLoader draw indices before their iteration begins, so plans must be known that much earlier.
        run = self._begin(whole, loader.reads_ahead(dataloader_kwargs, accumulate))
        # After the order was compared: a data set of another length is an error, one of the same length may be right.
        self._tell_of_another(dataset)
        return loader.Loader(run, dataset, dataloader_kwargs)

    def steps(
        self,
        dataset: Any,
        *,
        global_batch: int | None = None,
        model: torch.nn.Module | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        micro_batch: int | None = None,
        tail: float | None = None,
        min_chunk: int | None = None,
        cost: SampleCosts | None = None,
        global_tokens: int | None = None,
        max_tokens: int | None = None,
        hidden_size: int | None = None,
        layout: Layout = "packed",
    ) -> Steps:
        """Returns an iterable of hedged steps.

        Each rank gets a base batch, and free ranks claim chunks of a shared tail.

        ::

            for step in job.steps(dataset, global_batch=512, model=model):
                optimizer.zero_grad()
                for x, y in step:
                    loss_fn(model(x), y).backward()
                optimizer.step()

        All ranks must call it with the same arguments, after ``init_process_group``, either once per epoch or once for
        all epochs. The samples of an iteration and its gradient are the same as with :meth:`loader`.

        - A rank may have no batch in an iteration.
        - The gradient is complete when the inner loop ends. It replaces the contents of ``grad``; unused parameters get
          zeros.
        - Batch norm treats the base batch and each chunk as separate batches.

        Args:
            dataset: a map-style data set, with a length and random access; read in this process.
            global_batch: number of samples per iteration over all ranks; default the sum of the given plan.
            model: a DistributedDataParallel model; with a single process, any module. Not needed if :meth:`wrap` is
                called before the first iteration.
            shuffle: use a new seeded permutation for each epoch; otherwise keep the order of the data set.
            seed: seed of the permutations.
            drop_last: skip the last iteration of an epoch if it has fewer samples.
            collate_fn: makes a batch from a list of samples; default PyTorch's.
            micro_batch: maximum number of samples per forward pass. Larger batches are split, and their gradients are
                added. Default ``init(max_local_batch=..)``.
            tail: without a predictor, the fraction of each iteration that becomes the shared tail; above 0 and at most
                1. With it, no predictor is started.
            min_chunk: minimum number of samples in a chunk, with ``cost`` its minimum cost; default the quantum.
            cost: the cost of each sample, as in :meth:`loader`. Base batches and chunks are cut by cost.
            global_tokens: maximum cost of an iteration, as in :meth:`loader`.
            max_tokens: maximum cost of one forward pass, instead of ``micro_batch``. Requires ``cost``.
            hidden_size: width of a transformer, as in :meth:`loader`.
            layout: how ``collate_fn`` arranges the samples of a pass, as in :meth:`loader`.

        Raises:
            SettingError: an argument breaks its rule.
            DivergedError: ranks differ in a value that must be the same.
        """
        loader.check(dataset, {})
        if micro_batch is not None and micro_batch < 1:
            raise SettingError(f"micro_batch={micro_batch}: must be at least 1")
        if micro_batch is not None and cost is not None:
            raise SettingError(
                f"micro_batch={micro_batch} with cost: must be max_tokens, because passes are cut by cost"
            )
        job_options = hedged(self._options, tail, min_chunk)
        if self._opened and job_options != self._options:
            raise SettingError(
                f"job.steps(tail={tail}, min_chunk={min_chunk}): cannot be changed after the run has started; use "
                "the first values, and either job.steps or job.loader"
            )
        self._options = job_options
        costs = Costs.of_arguments(
            cost,
            len(dataset),
            global_batch=global_batch,
            global_tokens=global_tokens,
            max_tokens=max_tokens,
            hidden_size=hidden_size,
            layout=layout,
        )
        size = 1 if costs and costs.budget else self._global_batch(global_batch)
        order = Order(len(dataset), size, seed, shuffle, drop_last, costs=costs)
        run = self._begin(order, reads_ahead=0)
        self._tell_of_another(dataset)
        return Steps(
            run,
            dataset,
            lambda: self._trained(None if model is None else TrainedModel(hook.ddp_of(model) or model)),
            self._claims_of,
            collate_fn=collate_fn,
            micro_batch=micro_batch or self._options.max_local_batch,
            tail=self._options.tail,
        )

    @contextmanager
    def step(self, batch: Any = None, *, global_batch: int | None = None) -> Iterator[Step]:
        """Marks an iteration, or one micro-batch with gradient accumulation.

        With ``job.loader``, use it in loops that read batches ahead. Without it, each forward pass must be of the batch
        that the loop read last; further batches may be read after the forward pass.

        Batches begin in the order in which they were read. A batch may begin again until its iteration is trained.
        Without ``batch``, each call begins the oldest batch that was read and not begun; give it if the loop reads an
        epoch or more ahead, or leaves epochs early.

        Without a loader, use it for data streams: this rank must take ``step.local_batch`` of the next ``global_batch``
        samples, starting at ``step.offset``. The loop itself must use each sample exactly once.

        Args:
            batch: the batch, as ``job.loader`` yielded it, or a tensor of it, before ``.to(device)``: the same object.
            global_batch: number of samples of this iteration over all ranks, without a loader only. The first value is
                the job's global batch and the maximum for later iterations.

        Raises:
            DivergedError: the loop has left an epoch early, and ranks had read different numbers of batches ahead.
            SettingError: no batch was read, ``batch`` is trained or is not the loader's, or ``global_batch`` breaks its
                rule.
            UnsupportedError: the loop skips batches, or may have dropped some.
        """
        if global_batch is not None:
            if batch is not None:
                raise SettingError(
                    "step(batch, global_batch=..): must be one of them; batches of streams have no loader"
                )
            self._stream(global_batch)
        run = self._run
        turn = run.mark(batch)
        # The loop may free it inside of the block.
        del batch
        yield turn.step
        run.binding.leave()

    def _tell_of_another(self, dataset: Any) -> None:
        if self._dataset is None:
            self._dataset = dataset
        elif self._dataset is not dataset and not self._is_told:
            self._is_told = True
            log.warning(
                "the job got another data set with as many samples, whose epochs continue the job's: right if its "
                "samples are the same; %s",
                VALIDATION,
            )

    def _stream(self, size: int) -> None:
        """Prepares the next iteration of a stream, with ``size`` samples."""
        # A checkpoint may have been written before a smaller iteration.
        before = (self._state or {}).get("global_batch", size)
        whole = self._opened.run.order.global_batch if self._opened else before
        if not 1 <= size <= whole:
            raise SettingError(
                f"step(global_batch={size}): must be between 1 and {whole}, the global batch of the first iteration"
            )
        run = self._begin(Order(whole * STREAM_STEPS, whole, shuffle=False), reads_ahead=0)
        run.start()
        done = run.binding.next
        place = Place(done.iteration, done.epoch, done.position, done.position * whole, size, is_last=False)
        run.read(Turn(run.step(place), 0))

    def _trained(self, given: TrainedModel | None) -> TrainedModel:
        """Returns the model of hedged steps: the wrapped one, else the given one."""
        wrapped = self._trained_model
        if self._wrapped_models > 1:
            raise UnsupportedError(
                f"job.steps with {self._wrapped_models} wrapped models: must be one, because ranks have different "
                "numbers of passes and only its gradients would be summed after them; put the models into one module "
                "and wrap that, or use job.loader"
            )
        if given and wrapped and given.model is not wrapped.model:
            raise SettingError("job.steps(model=..) and job.wrap(..) got different models: pass the same model")
        if trainee := wrapped or given:
            return trainee
        raise SettingError("job.steps has no model: pass model=, or call job.wrap before the first iteration")

    def _claims_of(self, trainee: TrainedModel) -> Claims:
        """Returns this rank's claims. All ranks create them together in the first iteration."""
        if self._claims is None:
            self._claims = claims_of(trainee, self._options)
        return self._claims

    def _global_batch(self, global_batch: int | None) -> int:
        plan = self._options.fixed
        if global_batch is None:
            if plan is None:
                raise SettingError("global_batch is missing: pass it, or use init(plan=..)")
            global_batch = sum(plan(0) if callable(plan) else plan)
        return self._observer.global_batch(global_batch)
