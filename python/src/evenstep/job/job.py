"""The training job: the package's main interface."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import torch

from evenstep.errors import SettingError
from evenstep.gradients.ranks import check_shares, finds_stages
from evenstep.gradients.reduction import Hook
from evenstep.hedge.steps import Steps
from evenstep.job import oom
from evenstep.job.gradients import Gradients
from evenstep.job.lifecycle import Lifecycle
from evenstep.job.samples import Samples
from evenstep.run.loader import Loader, check
from evenstep.run.losses import Loss
from evenstep.run.run import Run
from evenstep.run.step import Step
from evenstep.samples.costs import Costs, Layout, SampleCosts
from evenstep.samples.order import GivenIndices, Indices, Order
from evenstep.settings.options import RunOptions

_Optimizer = TypeVar("_Optimizer", bound=torch.optim.Optimizer)
_Model = TypeVar("_Model", bound=torch.nn.Module)


class Job:
    """The part of a training job that runs in this process. Create it with :func:`evenstep.init`.

    Example:
        One process, which gets all samples. With torchrun, each rank gets its part of each iteration.

        >>> import torch.distributed as dist
        >>> from torch.nn.parallel import DistributedDataParallel
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> job = evenstep.init()
        >>> loader = job.loader(torch.arange(5.0), global_batch=2, shuffle=False)
        >>> model = job.wrap(DistributedDataParallel(torch.nn.Linear(1, 1)))
        >>> for x in loader:
        ...     model(x[:, None]).mean().backward()
        ...     print(x.tolist())
        [0.0, 1.0]
        [2.0, 3.0]
        [4.0]
        >>> job.state_dict()["iteration"]
        3
        >>> job.close()
        >>> dist.destroy_process_group()
    """

    def __init__(self, job_options: RunOptions) -> None:
        """Creates the parts of a job; :func:`evenstep.init` validates the options."""
        self._life = Lifecycle(job_options)
        self._gradients = Gradients(self._life)
        self._samples = Samples(self._life, self._gradients)

    def __enter__(self) -> "Job":  # noqa: PYI034  # Self is newer than Python 3.10.
        """Returns the job, for ``with evenstep.init() as job``."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the job, also after an error."""
        self.close()

    def loader(
        self,
        dataset: Any,
        *,
        global_batch: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        accumulate: int = 1,
        micro_batch: int | Literal["auto"] | None = None,
        order: Indices | None = None,
        cost: SampleCosts | None = None,
        global_tokens: int | None = None,
        max_tokens: int | None = None,
        hidden_size: int | None = None,
        layout: Layout = "packed",
        **dataloader_kwargs: Any,
    ) -> Loader:
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
            micro_batch: maximum number of samples per forward pass on this rank, instead of ``accumulate``. Each rank
                has as many passes as its samples need, and gradients are reduced in the last one. Do not divide the
                loss, and step the optimizer if :attr:`Loader.is_last`. Requires :meth:`wrap`. ``"auto"`` finds the
                largest number that fits into memory, with :meth:`on_oom`.
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
        check(dataset, dataloader_kwargs)
        given = None if order is None else GivenIndices.of(order, len(dataset))
        costs = Costs.of_arguments(
            cost, len(dataset), global_batch, global_tokens, max_tokens, hidden_size=hidden_size, layout=layout
        )
        # A given order needs no permutation: seeds that have no effect must not make the orders of two calls differ.
        samples, shuffle, seed = (given.samples, False, 0) if given else (len(dataset), shuffle, seed)
        size = self._samples.size(global_batch, costs)
        is_own = micro_batch is not None
        whole = Order(samples, size, seed, shuffle, drop_last, accumulate, given, costs, has_own_passes=is_own)
        return self._samples.loader(whole, dataset, micro_batch, dataloader_kwargs)

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
        check(dataset, {})
        costs = Costs.of_arguments(
            cost, len(dataset), global_batch, global_tokens, max_tokens, hidden_size=hidden_size, layout=layout
        )
        order = Order(len(dataset), self._samples.size(global_batch, costs), seed, shuffle, drop_last, costs=costs)
        return self._samples.steps(order, dataset, model, collate_fn, micro_batch, tail=tail, min_chunk=min_chunk)

    @contextmanager
    def step(self, batch: Any = ..., *, global_batch: int | None = None) -> Iterator[Step]:
        """Marks an iteration, or one micro-batch with gradient accumulation.

        With ``job.loader``, use it in loops that read batches ahead. Without it, each forward pass must be of the batch
        that the loop read last; further batches may be read after the forward pass.

        Batches begin in the order in which they were read. A batch may begin again until its iteration is trained.
        Without ``batch``, each call begins the oldest batch that was read and not begun; give it if the loop reads an
        epoch or more ahead, or leaves epochs early.

        Without a loader, use it for data streams: this rank must take ``step.local_batch`` of the next ``global_batch``
        samples, starting at ``step.offset``. The loop itself must use each sample exactly once.

        Args:
            batch: the batch, as ``job.loader`` yielded it, or a tensor in its lists and dictionaries, before
                ``.to(device)``: the same object.
            global_batch: number of samples of this iteration over all ranks, without a loader only. The first value is
                the job's global batch and the maximum for later iterations.

        Raises:
            DivergedError: the loop has left an epoch early, and ranks had read different numbers of batches ahead.
            SettingError: no batch was read, ``batch`` is trained or is not the loader's, or ``global_batch`` breaks its
                rule.
            UnsupportedError: the loop skips batches, or may have dropped some.
        """
        if global_batch is not None:
            if batch is not ...:
                raise SettingError(
                    "step(batch, global_batch=..): must be one of them; batches of streams have no loader"
                )
            self._samples.stream(global_batch)
        run = self._run
        turn = run.mark(batch)
        if self._life.options.mesh and not turn.step.smallest_batch and finds_stages(run):
            check_shares(turn.step)
        # The loop may free it inside of the block.
        del batch
        yield turn.step
        run.binding.leave()

    def wrap(self, model: _Model, *, loss: Loss = "mean", inner: Hook | None = None, inner_state: Any = None) -> _Model:
        """Weights gradients by local batch and measures compute time.

        The result of uneven local batches is the gradient of one process.

        Args:
            model: a DistributedDataParallel model, or the result of ``torch.compile`` for one, or a model made with
                ``fully_shard`` (FSDP2). Its parameters get hooks, and it is returned.
            loss: the reduction of the loss.

                - ``"mean"`` over the batch, the default of PyTorch's losses: you get the gradient of the mean over the
                  samples of the iteration.
                - ``"sum"`` over the batch: you get the same gradient, of the mean over the samples of the iteration.
                - ``"tokens"``, a sum over the tokens of the batch: you get the gradient of the mean over the tokens of
                  the iteration. It requires :meth:`count`.
                - ``"scaled"``: you get the gradient of DDP's or FSDP's own reduction, with 0 for ranks without samples.

                ``"tokens"`` requires one reduction per iteration: run earlier backward passes under ``no_sync``.
            inner: a communication hook that gets the weighted gradients, such as ``fp16_compress_hook``.
            inner_state: the state of ``inner``.

        Raises:
            UnsupportedError: the model is neither DDP nor FSDP2, is on a part of the ranks, or uses synchronized batch
                norm; or :meth:`scale` was called.
        """
        self._gradients.wrap(model, loss, inner, inner_state)
        return model

    def count(self, items: float | torch.Tensor) -> None:
        """Tells the number of tokens in a batch, for ``wrap(loss="tokens")``.

        Call it once for each batch, before its backward pass. The numbers of all ranks and micro-batches are added. A
        batch of a rank without samples does not count.

        Args:
            items: the number of tokens over which the loss is a sum, or the sum of their weights. A tensor is not read
                by this process, so it may be on the GPU.

        Raises:
            SettingError: the batch was counted before, no batch was read, or the loss is not ``"tokens"``.
        """
        self._gradients.count(items)

    def record_loss(self, loss: float | torch.Tensor) -> None:
        """Records the loss of a batch for the loss chart of the predictor's page.

        Call it between the forward and the backward pass, in each iteration or in some. It does not wait for a GPU, for
        other ranks or for the predictor. The chart shows the mean over the samples of all ranks and micro-batches. A
        loss that is not finite on any rank is a gap. :meth:`scale` records its loss itself.

        Args:
            loss: the mean loss over this rank's batch, a scalar. A batch of a rank without samples does not count.

        Raises:
            SettingError: no batch is being computed, or the loss is not a scalar.
        """
        run = self._run
        turn = run.binding.computing
        if turn is None:
            raise SettingError(
                "record_loss: no batch is being computed: call it between the forward and the backward pass of the "
                "wrapped model"
            )
        run.losses.record(turn.step.iteration, turn.samples if turn.passing is None else turn.passing, loss)

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Scales the loss so that the average of gradients over ranks is the gradient of one process.

        Use it with FSDP, DeepSpeed and other frameworks that average gradients themselves; never together with
        :meth:`wrap`. The loss must be the mean over this rank's batch. The framework must average over all ranks,
        or over the ranks of ``init(mesh=..)``.

        The compute time is then measured over the forward pass, to which the whole is proportional. If forward passes
        wait for other ranks (FSDP1, ZeRO-3), it does not show the speed of this rank; use ``init(plan=..)``. The waits
        of FSDP2 are left out.

        Raises:
            UnsupportedError: :meth:`wrap` was called, or the loop read batches ahead without :meth:`step`.
        """
        return self._gradients.scale(loss)

    def reduce(self, value: torch.Tensor) -> torch.Tensor:
        """Returns the mean over all samples of the iteration, from each rank's mean over its batch.

        A rank's own loss or accuracy describes its share only. All ranks must call this together: it waits for the
        slowest, so log every tenth iteration or less. With gradient accumulation, pass the mean over the micro-batches.
        With :meth:`steps`, call it after the inner loop, with the mean over all its samples. It weights by the training
        batch, so add the losses of a validation with ``all_reduce``, with their numbers of samples.

        Args:
            value: a tensor of any shape, the same on all ranks; for example the loss.

        Raises:
            UnsupportedError: :meth:`scale` was not called yet for the batch that was read last.
        """
        return self._gradients.reduce(value)

    @property
    def lr_multiplier(self) -> float:
        """The factor for the schedule's learning rate in this iteration."""
        return self._run.current.step.lr_multiplier

    def optimizer(self, optimizer: _Optimizer) -> _Optimizer:
        """Makes an optimizer follow the job's learning-rate rule.

        The learning rate is multiplied before each step and restored afterwards, so schedulers see and change the
        unscaled rate. After the end of the job the optimizer uses the unscaled rate.
        """
        self._gradients.follow_rate(optimizer)
        return optimizer

    @contextmanager
    def on_oom(self) -> Iterator[None]:
        """Reports out-of-memory errors in the block to the predictor, then re-raises them.

        In data-parallel training no rank can continue alone. Let the processes end and torchrun restart them
        (``--max-restarts``). From then on, this worker gets a smaller batch than the one that did not fit.

        With ``loader(micro_batch=..)``, put one pass into each block. A pass that does not fit raises no error
        then: the loader yields the samples of its iteration again, in passes of half as many.
        """
        attempt = None
        try:
            attempt = self._gradients.attempt()
            yield
        except RuntimeError as error:
            if oom.is_out_of_memory(error):
                if attempt and attempt.repeat(self._run, error):
                    return
                oom.report(self._life.options, self._life.place, self._run.current, error)
            raise

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
        run = self._run
        return self._life.metrics.read(self._life.place, run.plans(run.binding.trained.iteration).batches)

    def state_dict(self) -> dict[str, Any]:
        """Returns the progress of the run, to save with model and optimizer.

        It is the same on all ranks, except for the sizes of passes with ``micro_batch``. An iteration counts as done
        when its gradients are complete, so call this after the optimizer's step. The state has constant size.
        Resuming replays no iterations.
        """
        return self._life.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the progress of a checkpoint; call it on all ranks, before the first batch is read.

        The number of ranks may have changed.

        Raises:
            SettingError: a batch was read already, or the checkpoint does not fit the loader.
        """
        self._life.load(state)

    def close(self) -> None:
        """Delivers the last reports and leaves the job; called automatically when the process ends.

        :meth:`state_dict` still returns the progress. Another run needs another job. In a child of ``os.fork`` it does
        nothing: the job continues in its own process.
        """
        self._life.close()

    @property
    def _run(self) -> Run:
        return self._life.run
