"""The training job: the package's main interface."""

import atexit
import logging
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, TypeVar, get_args

import torch
import torch.distributed as dist

from evenstep import batchnorm, fsdp, hook, loader, oom
from evenstep._native import check_job_id
from evenstep.costs import Costs, SampleCosts
from evenstep.epoch import Place
from evenstep.errors import SettingError, UnsupportedError
from evenstep.first_step import check_first_step
from evenstep.hedge.begin import claims_of, hedged
from evenstep.hedge.claims import Claims
from evenstep.hedge.steps import Steps
from evenstep.hedge.trainee import TrainedModel
from evenstep.kubeflow import TIMEOUT_S, StatusPoster
from evenstep.metrics import Metrics, trainjob_status
from evenstep.observer import Observer
from evenstep.opening import OpenRun, open_run
from evenstep.options import Fixed, RunOptions, checked_job_options
from evenstep.order import GivenIndices, Indices, Order
from evenstep.run import Run
from evenstep.settings import Settings
from evenstep.step import Step, Turn

log = logging.getLogger("evenstep")

#: Maximum time that the end of a run waits for the last reports to be delivered, in seconds.
_CLOSE_S = 5.0

#: Number of iterations of a stream; practically unlimited.
_STREAM_STEPS = 2**32

#: The error of gradients that would be weighted twice.
_TWICE = (
    "job.wrap and job.scale both weight the gradients: use job.wrap with DistributedDataParallel and fully_shard, and "
    "job.scale with wrappers that average gradients themselves"
)

#: Advice for second loaders.
_VALIDATION = (
    "read a validation set with PyTorch's DataLoader, on rank r of n the samples range(r, len(dataset), n), and add "
    "the losses of all ranks with all_reduce"
)

#: How a collate function arranges the samples of a pass.
Layout = Literal["packed", "padded"]

_Optimizer = TypeVar("_Optimizer", bound=torch.optim.Optimizer)
_Model = TypeVar("_Model", bound=torch.nn.Module)


def init(
    *,
    plan: Fixed | None = None,
    server: str | None = None,
    job: str | None = None,
    quantum: int = 1,
    max_local_batch: int | None = None,
    job_options: Mapping[str, Any] | None = None,
    epochs: int | None = None,
    timeout_s: float = 2.0,
) -> "Job":
    """Creates the training job from the arguments and the environment.

    It reads torchrun's variables, ``EVENSTEP_SERVER`` and ``EVENSTEP_JOB``.

    Rank 0 starts the predictor in :meth:`Job.loader` or :meth:`Job.steps`, if there are several processes and neither a
    server nor a plan is given. No request is sent before the first batch.

    Args:
        plan: local batches by rank, such as ``[24, 12, 16]``, or a function that returns them for an iteration. No
            predictor is needed then.
        server: predictor URLs, comma-separated, or ``"off"`` for equal batches without a predictor; default
            ``EVENSTEP_SERVER``.
        job: id of this run at the predictor; default ``EVENSTEP_JOB``, else an automatic one.
        quantum: every local batch is a multiple of it.
        max_local_batch: the largest local batch of this worker, in samples: all micro-batches of an iteration together.
        job_options: other job options: the fields of ``PUT /v1/jobs/{job}`` (``rule``, ``min_gain``, ...).
        epochs: number of epochs that the script trains, for the progress of a TrainJob of Kubeflow.
        timeout_s: timeout of a request to the predictor, in seconds. Training steps do not wait for requests.

    Raises:
        SettingError: an argument or environment variable breaks its rule.

    Example:
        >>> job = evenstep.init(plan=[24, 12, 16])  # the local batches of ranks 0, 1 and 2
        >>> evenstep.init(max_local_batch=0)
        Traceback (most recent call last):
        evenstep.errors.SettingError: max_local_batch=0: must be at least 1
    """
    settings = Settings.read()
    if quantum < 1:
        raise SettingError(f"quantum={quantum}: must be at least 1")
    if max_local_batch is not None and max_local_batch < 1:
        raise SettingError(f"max_local_batch={max_local_batch}: must be at least 1")
    if epochs is not None and epochs < 1:
        raise SettingError(f"epochs={epochs}: must be at least 1")
    settings = replace(
        settings,
        server=server or settings.server,
        job=settings.job if job is None else check_job_id(job),
    )
    job_options = checked_job_options(job_options or {})
    return Job(
        RunOptions(
            settings,
            plan,
            quantum,
            max_local_batch,
            job_options,
            claims=False,
            tail=None,
            timeout_s=timeout_s,
            epochs=epochs,
        )
    )


class Job:
    """The part of a training job that runs in this process. Create it with :func:`init`.

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
        """Stores the options; :func:`init` validates them."""
        self._observer = Observer.current
        self._options = self._observer.job_made(job_options)
        self._opened: OpenRun | None = None
        self._state: dict[str, Any] | None = None
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
        #: Whether a wrapped model needs the numbers of tokens.
        self._is_counting = False
        #: Whether a wrapped model cannot compute a batch of a single sample.
        self._avoids_singles = False
        #: Whether the loss of a wrapped model is a mean over each micro-batch.
        self._needs_equal_passes = False

    # Data

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
            accumulate: number of micro-batches before each optimizer step. They have equal sizes.
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
        samples, shuffle, seed = (given.samples, False, 0) if given else (len(dataset), shuffle, seed)
        costs = _costs(
            cost,
            len(dataset),
            global_batch=global_batch,
            global_tokens=global_tokens,
            max_tokens=max_tokens,
            hidden_size=hidden_size,
            layout=layout,
        )
        size = 1 if costs and costs.budget else self._global_batch(global_batch)
        whole = Order(samples, size, seed, shuffle, drop_last, accumulate, given, costs)
        run = self._begin(whole, loader.reads_ahead(dataloader_kwargs, accumulate))
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
        costs = _costs(
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
    def step(self, *, global_batch: int | None = None) -> Iterator[Step]:
        """Marks an iteration, or one micro-batch with gradient accumulation.

        With ``job.loader``, use it in loops that read batches ahead: each call begins the oldest batch that was read
        and not begun. Without it, each forward pass must be of the batch that the loop read last; further batches may
        be read after the forward pass.

        Without a loader, use it for data streams: this rank must take ``step.local_batch`` of the next ``global_batch``
        samples, starting at ``step.offset``. The loop itself must use each sample exactly once.

        Args:
            global_batch: number of samples of this iteration over all ranks, without a loader only. The first value is
                the job's global batch and the maximum for later iterations.

        Raises:
            SettingError: no batch was read, or ``global_batch`` breaks its rule.
        """
        if global_batch is not None:
            self._stream(global_batch)
        run = self._run
        step = run.begin()
        yield step
        run.gradients_ready()

    # Gradients

    def wrap(
        self,
        model: _Model,
        *,
        loss: hook.Loss = "mean",
        inner: hook.Hook | None = None,
        inner_state: Any = None,
    ) -> _Model:
        """Weights gradients by local batch and measures compute time.

        The result of uneven local batches is the gradient of one process.

        Args:
            model: a DistributedDataParallel model, or the result of ``torch.compile`` for one, or a model made with
                ``fully_shard`` (FSDP2). It gets a communication hook and is returned.
            loss: the reduction of the loss.

                - ``"mean"`` over the batch, the default of PyTorch's losses: you get the gradient of the mean over the
                  samples of the iteration.
                - ``"sum"`` over the batch: you get the same gradient, of the mean over the samples of the iteration.
                - ``"tokens"``, a sum over the tokens of the batch: you get the gradient of the mean over the tokens of
                  the iteration. It requires :meth:`count`.
                - ``"scaled"``: you get the gradient of DDP's or FSDP's own reduction, with 0 for ranks without samples.

                All but ``"mean"`` allow one reduction per iteration: run earlier backward passes under ``no_sync``.
            inner: another communication hook that gets the weighted gradients, such as ``fp16_compress_hook``.
            inner_state: the state of ``inner``.

        Raises:
            UnsupportedError: the model is neither DDP nor FSDP2, is on a part of the ranks, or uses synchronized batch
                norm; or :meth:`scale` was called.
        """
        ddp = hook.ddp_of(model)
        if ddp is None and not fsdp.modules(model):
            raise UnsupportedError(
                f"wrap({type(model).__name__}): must be DistributedDataParallel, or made with fully_shard; with FSDP1, "
                "DeepSpeed and others that average gradients themselves, omit wrap and use job.scale(loss).backward()"
            )
        if any(isinstance(module, torch.nn.SyncBatchNorm) for module in model.modules()):
            raise UnsupportedError(
                "SyncBatchNorm sends gradients between ranks before they can be weighted: omit wrap and use "
                "job.scale(loss).backward()"
            )
        if self._is_scaled:
            raise UnsupportedError(_TWICE)
        hook.check_loss(loss)
        # The job holds the model, and the garbage collector does not see that DDP holds its hook.
        opened = weakref.WeakMethod(self._started_run)
        opened_run = lambda: get() if (get := opened()) else None  # noqa: E731  # The run starts later.
        if ddp is None:
            fsdp.check_wrap(model, has_inner=inner is not None)
            fsdp.GradientWeights(model, loss, opened_run).register()
        else:
            hook.check_group(ddp)
            weights = hook.GradientWeights(ddp, loss, opened_run, inner, inner_state)
            try:
                ddp.register_comm_hook(None, weights.reduce)
            except RuntimeError as error:
                raise UnsupportedError(
                    "wrap: this DistributedDataParallel model has a communication hook already: pass the script's own "
                    "hook as inner=, and make a new DistributedDataParallel(model.module) for each job"
                ) from error
            # A hook is not to be compiled. Outside of a compiled model it is not even seen by the compiler.
            observed = ddp.module if model is ddp else model
            observed.register_forward_pre_hook(torch.compiler.disable(weights.forward_begins), with_kwargs=True)
        self._is_counting |= loss == "tokens"
        self._needs_equal_passes |= loss == "mean"
        self._avoids_singles |= batchnorm.needs_two_samples(model)
        if self._opened:
            self._see_models(self._opened.run)
        self._trained_model = TrainedModel(ddp or model, loss, has_inner=inner is not None)
        self._wrapped_models += 1
        self._observer.wrapped(loss, has_inner=inner is not None)
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
        if not self._is_counting:
            raise SettingError('count: requires job.wrap(.., loss="tokens")')
        self._run.count(items)

    def record_loss(self, loss: float | torch.Tensor) -> None:
        """Records the loss of a batch for the loss chart of the predictor's page.

        Call it between the forward and the backward pass, in each iteration or in some. It does not wait for a GPU, for
        other ranks or for the predictor. The chart shows the mean over the samples of all ranks and micro-batches. A
        loss that is not finite is a gap. :meth:`scale` records its loss itself.

        Args:
            loss: the mean loss over this rank's batch, a scalar. A batch of a rank without samples does not count.

        Raises:
            SettingError: no batch is being computed, or the loss is not a scalar.
        """
        self._run.record_loss(loss)

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Scales the loss so that the average of gradients over ranks is the gradient of one process.

        Use it with FSDP, DeepSpeed and other frameworks that average gradients themselves; never together with
        :meth:`wrap`. The loss must be the mean over this rank's batch. The framework must average over all ranks:
        meshes with tensor or pipeline parallelism are not supported.

        The compute time is then measured over the forward pass, to which the whole is proportional. If forward passes
        wait for other ranks (FSDP, ZeRO-3), it does not show the speed of this rank; use ``init(plan=..)``.

        Raises:
            UnsupportedError: :meth:`wrap` was called, or the loop read batches ahead without :meth:`step`.
        """
        if self._trained_model:
            raise UnsupportedError(_TWICE)
        run = self._run
        self._is_scaled = True
        self._observer.scaled()
        run.computes()
        step = run.current.step
        if len(step.passes) > 1:
            raise UnsupportedError(
                f"job.scale in an iteration with passes of {list(step.passes)} samples: the means of its passes have "
                'unequal weights; use job.wrap(.., loss="tokens") and job.count, or neither max_tokens nor accumulate'
            )
        # Before the exchange thread sees the iteration: it reads the GPU of the device.
        run.sensor.measure_from_arrival(loss.device)
        if loss.numel() == 1:
            run.losses.record(step.iteration, step.batch_size, loss)
        run.gradients_ready()
        factor = step.weight * run.world_size
        # 0 times NaN or infinity is not 0.
        return loss * factor if factor else torch.nan_to_num(loss, nan=0.0, posinf=0.0, neginf=0.0) * 0.0

    def reduce(self, value: torch.Tensor) -> torch.Tensor:
        """Returns the mean over all samples of the iteration, from each rank's mean over its batch.

        A rank's own loss or accuracy describes its share only. All ranks must call this together: it waits for the
        slowest, so log every tenth iteration or less. With gradient accumulation, pass the mean over the micro-batches.
        With :meth:`steps`, call it after the inner loop, with the mean over all its samples.

        Args:
            value: a tensor of any shape, the same on all ranks; for example the loss.

        Raises:
            UnsupportedError: :meth:`scale` was not called yet for the batch that was read last.
        """
        run = self._run
        if self._is_unmarked(run):
            raise UnsupportedError(
                f"job.reduce: the batch of iteration {run.current.step.iteration} is not being computed yet: call it "
                "after the forward pass of the wrapped model, or after job.scale"
            )
        weight = run.computed.weight
        mean = value.detach() * 1.0
        # 0 times NaN is not 0.
        mean = mean * weight if weight else torch.zeros_like(mean)
        if run.world_size > 1:
            with run.sensor.paused():
                dist.all_reduce(mean)
        return mean

    def metrics(self) -> dict[str, float]:
        """Returns numbers for TensorBoard and other loggers, by name. Call it on rank 0, every tenth iteration or less.

        It does not wait for other ranks. It sends one request to the predictor and waits at most 0.5 s; after a failed
        request it sends none for 30 s. All but the local batches are the predictor's forecasts for the newest plan,
        which is a few iterations ahead. They are absent without a predictor, until workers are measured, and on hosts
        that cannot reach the predictor.

        - ``evenstep/local_batch/rank_0``, ...: samples, or units of cost. With hedged steps, without claimed chunks.
        - ``evenstep/compute_time_s/rank_0``, ...: forward and backward passes, in seconds.
        - ``evenstep/step_time_s``: the slowest rank, in seconds: the expected maximum of uncertain times.
        - ``evenstep/wait_s/rank_0``, ...: wait for the slowest rank, in seconds.
        - ``evenstep/gain``: the step time with even shares, divided by ``step_time_s``; 1 means no gain.

        Raises:
            SettingError: the run has not started.
        """
        run, plans = self._run, self._opened.plans if self._opened else None
        batches = run.plans(run.progress.iteration).batches
        return self._metrics.read(plans.place if plans else None, batches)

    # Learning rate and memory

    @property
    def lr_multiplier(self) -> float:
        """The factor for the schedule's learning rate in this iteration."""
        return self._run.current.step.lr_multiplier

    def optimizer(self, optimizer: _Optimizer) -> _Optimizer:
        """Makes an optimizer follow the job's learning-rate rule.

        The learning rate is multiplied before each step and restored afterwards, so schedulers see and change the
        unscaled rate. After the end of the job the optimizer uses the unscaled rate.
        """
        kept: list[Any] = []

        def restore(opt: torch.optim.Optimizer, *_: Any) -> None:
            for group, rate in zip(opt.param_groups, kept, strict=False):
                group["lr"] = rate
            kept.clear()

        def multiply(opt: torch.optim.Optimizer, *_: Any) -> None:
            # A step that raised an error has left the multiplied rate.
            restore(opt)
            multiplier = self._run.computed.lr_multiplier
            for group in opt.param_groups:
                kept.append(group["lr"])
                group["lr"] = group["lr"] * multiplier

        handles = optimizer.register_step_pre_hook(multiply), optimizer.register_step_post_hook(restore)
        self._ends += [handle.remove for handle in handles]
        return optimizer

    @contextmanager
    def on_oom(self) -> Iterator[None]:
        """Reports out-of-memory errors in the block to the predictor, then re-raises them.

        In data-parallel training no rank can continue alone. Let the processes end and torchrun restart them
        (``--max-restarts``). From then on, this worker gets a smaller batch than the one that did not fit.
        """
        try:
            yield
        except RuntimeError as error:
            if oom.is_out_of_memory(error):
                place = self._opened.plans.place if self._opened and self._opened.plans else None
                oom.report(self._options, place, self._run.current, error)
            raise

    # Checkpoints

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
        """Delivers the last reports and leaves the job; called automatically when the process ends."""
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

    # Internals

    def _started_run(self) -> Run | None:
        return self._opened.run if self._opened else None

    @property
    def _run(self) -> Run:
        if self._opened is None:
            raise SettingError("the run has not started: call job.loader first")
        return self._opened.run

    def _begin(self, order: Order, reads_ahead: int) -> Run:
        if self._opened is None:
            self._observer.run_begins(order)
            self._opened = open_run(self._options, order, reads_ahead, self._state)
            self._see_models(self._opened.run)
            atexit.register(self.close)
            if self._opened.run.rank == 0:
                status = trainjob_status(self._opened, self._options.epochs)
                self._poster = StatusPoster.of_environment(os.environ, status)
            if self._opened.run.world_size > 1:
                self._ends.append(check_first_step(self._opened.run, self._is_weighted).remove)
        elif self._opened.run.order != order:
            raise SettingError(
                f"a job has one data set and one order, {self._opened.run.order}; got {order}: {_VALIDATION}; for "
                "another training create another job with evenstep.init()"
            )
        return self._opened.run

    def _see_models(self, run: Run) -> None:
        run.avoids_singles, run.needs_equal_passes = self._avoids_singles, self._needs_equal_passes

    def _tell_of_another(self, dataset: Any) -> None:
        if self._dataset is None:
            self._dataset = dataset
        elif self._dataset is not dataset and not self._is_told:
            self._is_told = True
            log.warning(
                "the job got another data set with as many samples, whose epochs continue the job's: right if its "
                "samples are the same; %s",
                _VALIDATION,
            )

    def _is_unmarked(self, run: Run) -> bool:
        """Whether the loop has read a batch that it does not compute yet, so far as this job can see."""
        return not (self._trained_model or self._options.claims or run.is_explicit or run.current.begun)

    def _is_weighted(self) -> bool:
        return self._is_scaled or self._options.claims or self._trained_model is not None

    def _stream(self, size: int) -> None:
        """Prepares the next iteration of a stream, with ``size`` samples."""
        # A checkpoint may have been written before a smaller iteration.
        before = (self._state or {}).get("global_batch", size)
        whole = self._opened.run.order.global_batch if self._opened else before
        if not 1 <= size <= whole:
            raise SettingError(
                f"step(global_batch={size}): must be between 1 and {whole}, the global batch of the first iteration"
            )
        run = self._begin(Order(whole * _STREAM_STEPS, whole, shuffle=False), reads_ahead=0)
        run.start()
        done = run.progress
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


def _costs(
    cost: SampleCosts | None,
    samples: int,
    *,
    global_batch: int | None,
    global_tokens: int | None,
    max_tokens: int | None,
    hidden_size: int | None,
    layout: Layout,
) -> Costs | None:
    """Returns the checked costs of a data set; None without costs.

    Raises:
        SettingError: an argument breaks its rule.
    """
    if layout not in get_args(Layout):
        raise SettingError(f"layout={layout!r}: must be one of {', '.join(map(repr, get_args(Layout)))}")
    if cost is None:
        given = {"global_tokens": global_tokens, "max_tokens": max_tokens, "hidden_size": hidden_size}
        for name, limit in given.items():
            if limit is not None:
                raise SettingError(f"{name}={limit}: requires cost=, the number of tokens of each sample")
        return None
    if global_tokens is not None and global_batch is not None:
        raise SettingError(
            f"global_batch={global_batch} and global_tokens={global_tokens}: must be one of them, because each decides "
            "which samples an iteration has"
        )
    is_padded = layout == "padded"
    return Costs.of(
        cost, samples, budget=global_tokens, pass_max=max_tokens, is_padded=is_padded, hidden_size=hidden_size
    )
