"""The training job: the package's main interface."""

import atexit
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch.nn.parallel import DistributedDataParallel

from evenstep import hook, loader, oom
from evenstep.errors import SettingError, UnsupportedError
from evenstep.hedge.begin import claims_of, hedged
from evenstep.hedge.claims import Claims
from evenstep.hedge.steps import Steps
from evenstep.hedge.trainee import TrainedModel
from evenstep.observer import Observer
from evenstep.opening import Fixed, OpenRun, RunOptions, checked_job_options, open_run
from evenstep.order import Order
from evenstep.run import Run, Step, Turn
from evenstep.settings import Settings
from evenstep.wire.ids import check_job_id

#: Maximum time that the end of a run waits for the last reports to be delivered, in seconds.
_CLOSE_S = 5.0

#: Number of iterations of a stream; practically unlimited.
_STREAM_STEPS = 2**32

_Optimizer = TypeVar("_Optimizer", bound=torch.optim.Optimizer)


def init(
    *,
    plan: Fixed | None = None,
    server: str | None = None,
    job: str | None = None,
    quantum: int = 1,
    max_local_batch: int | None = None,
    job_options: Mapping[str, Any] | None = None,
    timeout_s: float = 2.0,
) -> "Job":
    """Creates the training job from the arguments and the environment.

    It reads torchrun's variables, ``EVENSTEP_SERVER`` and ``EVENSTEP_JOB``.

    No request is sent before :meth:`Job.loader` or :meth:`Job.steps`. Without a server and without a plan, all workers
    get equal batches.

    Args:
        plan: local batches by rank, such as ``[24, 12, 16]``, or a function that returns them for an iteration. No
            predictor is needed then.
        server: predictor URLs, comma-separated; default ``EVENSTEP_SERVER``.
        job: id of this run at the predictor; default ``EVENSTEP_JOB``, else torchrun's ``--rdzv-id``.
        quantum: every local batch is a multiple of it.
        max_local_batch: the largest batch, in samples, that fits into this worker's memory.
        job_options: other job options: the fields of ``PUT /v1/jobs/{job}`` (``rule``, ``min_gain``, ...).
        timeout_s: timeout of a request to the predictor, in seconds. Training steps do not wait for requests.

    Raises:
        SettingError: an argument or environment variable breaks its rule.
    """
    settings = Settings.read()
    if quantum < 1:
        raise SettingError(f"quantum={quantum}: must be at least 1")
    if max_local_batch is not None and max_local_batch < 1:
        raise SettingError(f"max_local_batch={max_local_batch}: must be at least 1")
    settings = replace(
        settings,
        server=server or settings.server,
        job=settings.job if job is None else check_job_id(job),
    )
    job_options = checked_job_options(job_options or {})
    return Job(
        RunOptions(settings, plan, quantum, max_local_batch, job_options, claims=False, tail=None, timeout_s=timeout_s)
    )


class Job:
    """The part of a training job that runs in this process. Create it with :func:`init`."""

    def __init__(self, job_options: RunOptions) -> None:
        """Stores the options; :func:`init` validates them."""
        self._observer = Observer.current
        self._options = self._observer.job_made(job_options)
        self._opened: OpenRun | None = None
        self._state: dict[str, Any] | None = None
        self._trained_model: TrainedModel | None = None
        self._claims: Claims | None = None

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
        **dataloader_kwargs: Any,
    ) -> loader.Loader:
        """Returns an iterable of this rank's batches, sized by the plan.

        Over all ranks, every sample occurs exactly once per epoch. All ranks must call it with the same arguments,
        after ``init_process_group``.

        Args:
            dataset: a map-style data set, with a length and random access.
            global_batch: number of samples per iteration over all ranks; default the sum of the given plan.
            shuffle: use a new seeded permutation for each epoch; otherwise keep the order of the data set.
            seed: seed of the permutations.
            drop_last: skip the last iteration of an epoch if it has fewer samples.
            accumulate: number of micro-batches before each optimizer step. They have equal sizes.
            **dataloader_kwargs: passed to PyTorch's DataLoader (``num_workers``, ``collate_fn``, ``pin_memory``, ...).

        Raises:
            SettingError: an argument breaks its rule.
            DivergedError: ranks differ in a value that must be the same.
            RejectedError: the predictor rejects this run.
        """
        loader.check(dataset, dataloader_kwargs)
        order = Order(len(dataset), self._global_batch(global_batch), seed, shuffle, drop_last, accumulate)
        run = self._begin(order, loader.reads_ahead(dataloader_kwargs, accumulate))
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
                1.
            min_chunk: minimum number of samples in a chunk; default the quantum.

        Raises:
            SettingError: an argument breaks its rule.
            DivergedError: ranks differ in a value that must be the same.
            RejectedError: the predictor rejects this run.
        """
        loader.check(dataset, {})
        if micro_batch is not None and micro_batch < 1:
            raise SettingError(f"micro_batch={micro_batch}: must be at least 1")
        job_options = hedged(self._options, tail, min_chunk)
        if self._opened and job_options != self._options:
            raise SettingError(
                f"job.steps(tail={tail}, min_chunk={min_chunk}): cannot be changed after the run has started; use "
                "the first values, and either job.steps or job.loader"
            )
        self._options = job_options
        order = Order(len(dataset), self._global_batch(global_batch), seed, shuffle, drop_last)
        return Steps(
            self._begin(order, reads_ahead=0),
            dataset,
            lambda: self._trained(TrainedModel(model) if model else None),
            self._claims_of,
            collate_fn=collate_fn,
            micro_batch=micro_batch or self._options.max_local_batch,
            tail=self._options.tail,
        )

    @contextmanager
    def step(self, *, global_batch: int | None = None) -> Iterator[Step]:
        """Marks an iteration, or one micro-batch with gradient accumulation.

        With ``job.loader``, use it in loops that read batches ahead: each call begins the oldest batch that was read
        and not begun. Without it, the loop must train on the batch that it read last.

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
        model: DistributedDataParallel,
        *,
        loss: hook.Loss = "mean",
        inner: hook.Hook | None = None,
        inner_state: Any = None,
    ) -> DistributedDataParallel:
        """Weights gradients by local batch and measures compute time.

        The result of uneven local batches is the gradient of one process.

        Args:
            model: a DistributedDataParallel model. It gets a communication hook and is returned.
            loss: the reduction of the loss: ``"mean"`` over the batch (the default of PyTorch's losses), ``"sum"``, or
                ``"scaled"`` if DDP's average over ranks is already right.
            inner: another communication hook that gets the weighted gradients, such as ``fp16_compress_hook``.
            inner_state: the state of ``inner``.

        Raises:
            UnsupportedError: the model is not DDP, or uses synchronized batch norm.
        """
        if not isinstance(model, DistributedDataParallel):
            raise UnsupportedError(
                f"wrap({type(model).__name__}): must be DistributedDataParallel; with FSDP, DeepSpeed and others "
                "that average gradients themselves, omit wrap and use job.scale(loss).backward()"
            )
        if any(isinstance(module, torch.nn.SyncBatchNorm) for module in model.modules()):
            raise UnsupportedError(
                "SyncBatchNorm sends gradients between ranks before they can be weighted: omit wrap and use "
                "job.scale(loss).backward()"
            )
        if loss not in ("mean", "sum", "scaled"):
            raise SettingError(f'loss={loss!r}: must be "mean", "sum" or "scaled"')
        group, world_size = model.process_group, model.process_group.size()

        def weight() -> float:
            step = self._run.current.step
            return hook.weight(loss, step.local_batch, step.global_batch, world_size)

        ready = self._gradients_ready
        self._trained_model = TrainedModel(model, loss, has_inner=inner is not None)
        self._observer.wrapped(loss, has_inner=inner is not None)
        model.register_comm_hook(None, hook.weighted(weight, group, ready, inner, inner_state))
        model.module.register_forward_pre_hook(self._forward_begins(model), with_kwargs=True)
        return model

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Scales the loss so that the average of gradients over ranks is the gradient of one process.

        Use it with FSDP, DeepSpeed and other frameworks that average gradients themselves; never together with
        :meth:`wrap`. The loss must be the mean over this rank's batch.

        The compute time is then measured over the forward pass, to which the whole is proportional. If forward passes
        wait for other ranks (FSDP, ZeRO-3), it does not show the speed of this rank; use ``init(plan=..)``.
        """
        self._observer.scaled()
        run = self._run
        step = run.current.step
        run.gradients_ready()
        run.sensor.measure_from_arrival(loss.device)
        factor = step.weight * run.world_size
        # 0 times NaN or infinity is not 0.
        return loss * factor if factor else torch.nan_to_num(loss, nan=0.0, posinf=0.0, neginf=0.0) * 0.0

    # Learning rate and memory

    @property
    def lr_multiplier(self) -> float:
        """The factor for the schedule's learning rate in this iteration."""
        return self._run.current.step.lr_multiplier

    def optimizer(self, optimizer: _Optimizer) -> _Optimizer:
        """Makes an optimizer follow the job's learning-rate rule.

        The learning rate is multiplied before each step and restored afterwards, so schedulers see and change the
        unscaled rate.
        """
        kept: list[Any] = []

        def before(opt: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
            multiplier = self.lr_multiplier
            for group in opt.param_groups:
                kept.append(group["lr"])
                group["lr"] = group["lr"] * multiplier

        def after(opt: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
            for group, rate in zip(opt.param_groups, kept, strict=True):
                group["lr"] = rate
            kept.clear()

        optimizer.register_step_pre_hook(before)
        optimizer.register_step_post_hook(after)
        return optimizer

    @contextmanager
    def on_oom(self) -> Iterator[None]:
        """Reports out-of-memory errors in the block to the predictor, then re-raises them.

        In data-parallel training no rank can continue alone. Let the processes end and torchrun restart them
        (``--max-restarts``). From then on, this worker gets a smaller batch than the one that did not fit.
        """
        try:
            yield
        except oom.OUT_OF_MEMORY as error:
            oom.report(self._options, self._run.current.step, error)
            raise

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Returns the progress of the run, the same on all ranks, to save with model and optimizer.

        An iteration counts as done when its gradients are complete, so call this after the optimizer's step. The state
        has constant size. Resuming replays no iterations.
        """
        return self._run.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the progress of a checkpoint; call it on all ranks, before :meth:`loader`.

        The number of ranks may have changed.

        Raises:
            SettingError: the run has already started.
        """
        if self._opened:
            raise SettingError(
                "load_state_dict: must be called before job.loader, which starts at the restored position"
            )
        self._state = dict(state)

    def close(self) -> None:
        """Delivers the last reports and leaves the job; called automatically when the process ends."""
        opened, self._opened = self._opened, None
        if opened and opened.exchange:
            opened.exchange.close(_CLOSE_S)
        if opened and opened.predictor:
            opened.predictor.close(_CLOSE_S)
        if self._claims:
            self._claims.line.close(_CLOSE_S)
        atexit.unregister(self.close)

    # Internals

    @property
    def _run(self) -> Run:
        if self._opened is None:
            raise SettingError("the run has not started: call job.loader first")
        return self._opened.run

    def _begin(self, order: Order, reads_ahead: int) -> Run:
        if self._opened is None:
            self._observer.run_begins(order)
            self._opened = open_run(self._options, order, reads_ahead, self._state)
            atexit.register(self.close)
        elif self._opened.run.order != order:
            raise SettingError(
                f"a job has one data set and one order, {self._opened.run.order}; got {order}: create a new job with "
                "evenstep.init()"
            )
        return self._opened.run

    def _stream(self, size: int) -> None:
        """Prepares the next iteration of a stream, with ``size`` samples."""
        whole = self._opened.run.order.global_batch if self._opened else size
        if not 1 <= size <= whole:
            raise SettingError(
                f"step(global_batch={size}): must be between 1 and {whole}, the global batch of the first iteration"
            )
        run = self._begin(Order(whole * _STREAM_STEPS, whole, shuffle=False), reads_ahead=0)
        done = run.progress
        run.read(Turn(run.step(done.iteration, done.epoch, done.position, size), 0))

    def _trained(self, given: TrainedModel | None) -> TrainedModel:
        """Returns the model of hedged steps: the wrapped one, else the given one."""
        wrapped = self._trained_model
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

    def _gradients_ready(self) -> None:
        self._run.gradients_ready()

    def _forward_begins(self, model: DistributedDataParallel) -> Callable[..., None]:
        def begins(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self._opened is None or not (model.training and torch.is_grad_enabled()):
                return
            run = self._run
            if run.is_hedging:
                return
            if not model.require_backward_grad_sync and run.order.accumulate == 1:
                raise UnsupportedError(
                    "no_sync with one weight for several batches would give a wrong gradient: use job.loader(.., "
                    "accumulate=N), where N is the number of batches per optimizer step"
                )
            sizes = [
                value.shape[0] for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor) and value.ndim
            ]
            if sizes and not run.is_expected(sizes):
                raise UnsupportedError(
                    f"the model got a batch of {sizes[0]}, but the last batch read has "
                    f"{run.current.step.batch_size}: loops that read ahead must mark iterations with `with "
                    "job.step()`"
                )
            run.sensor.forward_begins(model.device)

        return begins
