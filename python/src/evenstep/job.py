"""A training job as a script sees it."""

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
from evenstep.hedge.trainee import Trainee
from evenstep.observer import Observer
from evenstep.opening import Fixed, Opened, Wishes, checked_wishes, open_run
from evenstep.order import Order
from evenstep.run import Run, Step, Turn
from evenstep.settings import Settings
from evenstep.wire.ids import check_job_id

#: How long the end of a run waits for the last reports to be delivered, in seconds.
_CLOSE_S = 5.0

#: Iterations of a stream: more than anybody has.
_STREAM_STEPS = 2**32

_Optimizer = TypeVar("_Optimizer", bound=torch.optim.Optimizer)


def init(
    *,
    plan: Fixed | None = None,
    server: str | None = None,
    job: str | None = None,
    quantum: int = 1,
    max_local_batch: int | None = None,
    wishes: Mapping[str, Any] | None = None,
    timeout_s: float = 2.0,
) -> "Job":
    """Joins the training job that torchrun's environment, ``EVENSTEP_SERVER`` and ``EVENSTEP_JOB`` describe.

    Nothing is asked or sent before a loader is made. Without a server and without a plan all workers get even shares.

    Args:
        plan: batches by rank, such as ``[24, 12, 16]``, or a function of the iteration that gives them: no predictor
            is needed then.
        server: predictors, comma-separated; default ``EVENSTEP_SERVER``.
        job: names this run at the predictor; default ``EVENSTEP_JOB``, else torchrun's ``--rdzv-id``.
        quantum: every local batch is a multiple of it.
        max_local_batch: the most that this worker can hold.
        wishes: other job options, as the fields of ``PUT /v1/jobs/{job}`` (``rule``, ``min_gain``, ...).
        timeout_s: how long a request to the predictor may take; none is on the way of a step.

    Raises:
        SettingError: a value breaks its rule.
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
    job_wishes = checked_wishes(wishes or {})
    return Job(
        Wishes(settings, plan, quantum, max_local_batch, job_wishes, claims=False, tail=None, timeout_s=timeout_s)
    )


class Job:
    """One process's part of a training job. Made by :func:`init`."""

    def __init__(self, wishes: Wishes) -> None:
        """Keeps what is wished; :func:`init` checks it."""
        self._observer = Observer.current
        self._wishes = self._observer.job_made(wishes)
        self._opened: Opened | None = None
        self._state: dict[str, Any] | None = None
        self._trainee: Trainee | None = None
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
        """Batches of this rank, as large as the plan says. Over all ranks every sample comes exactly once an epoch.

        All ranks call it alike, after ``init_process_group``.

        Args:
            dataset: map-style: with a length and random access.
            global_batch: samples of an iteration over all ranks; default the sum of a given plan.
            shuffle: a new seeded permutation each epoch; otherwise samples come in their order.
            seed: of the permutations.
            drop_last: leave out the last iteration of an epoch where it has fewer samples.
            accumulate: micro-batches of an iteration: so many batches come before each optimizer step, equally large.
            **dataloader_kwargs: of PyTorch's DataLoader (``num_workers``, ``collate_fn``, ``pin_memory``, ...).

        Raises:
            SettingError: a value breaks its rule.
            DivergedError: ranks differ in what must be the same.
            RefusedError: the predictor refuses this run.
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
        """Hedged steps: each rank gets what it will surely do in time, and whoever is free claims the rest.

        ::

            for step in job.steps(dataset, global_batch=512, model=model):
                optimizer.zero_grad()
                for x, y in step:
                    loss_fn(model(x), y).backward()
                optimizer.step()

        All ranks call it alike, after ``init_process_group``; once for each epoch, or once for all of them. Which
        samples an iteration has, and its gradient, are those of :meth:`loader`. A rank may have no batch in an
        iteration. The gradient is there when the inner loop ends, and replaces what was in ``grad``; parameters that
        nobody used have zeros. Batch norm sees base and chunks as batches of their own.

        Args:
            dataset: map-style: with a length and random access; read in this process.
            global_batch: samples of an iteration over all ranks; default the sum of a given plan.
            model: DistributedDataParallel, or any module where the process is alone; not needed with :meth:`wrap`,
                which may also come between this and the first iteration.
            shuffle: a new seeded permutation each epoch; otherwise samples come in their order.
            seed: of the permutations.
            drop_last: leave out the last iteration of an epoch where it has fewer samples.
            collate_fn: makes a batch of a list of samples; default PyTorch's.
            micro_batch: the most samples of a pass; more than that are several, and their gradients add up. Default
                ``init(max_local_batch=..)``.
            tail: without a predictor: this part of each iteration is a tail, above 0 and at most 1.
            min_chunk: no chunk of a tail is smaller; default the quantum.

        Raises:
            SettingError: a value breaks its rule.
            DivergedError: ranks differ in what must be the same.
            RefusedError: the predictor refuses this run.
        """
        loader.check(dataset, {})
        if micro_batch is not None and micro_batch < 1:
            raise SettingError(f"micro_batch={micro_batch}: must be at least 1")
        wishes = hedged(self._wishes, tail, min_chunk)
        if self._opened and wishes != self._wishes:
            raise SettingError(
                f"job.steps(tail={tail}, min_chunk={min_chunk}): the run has begun otherwise; these stay as they are, "
                "and a run has either job.steps or job.loader"
            )
        self._wishes = wishes
        order = Order(len(dataset), self._global_batch(global_batch), seed, shuffle, drop_last)
        return Steps(
            self._begin(order, reads_ahead=0),
            dataset,
            lambda: self._trained(Trainee(model) if model else None),
            self._claims_of,
            collate_fn=collate_fn,
            micro_batch=micro_batch or self._wishes.max_local_batch,
            tail=self._wishes.tail,
        )

    @contextmanager
    def step(self, *, global_batch: int | None = None) -> Iterator[Step]:
        """Marks an iteration (a micro-batch of it, where it accumulates).

        With ``job.loader``, for loops that read ahead of their training: it takes the oldest batch that the loader gave
        and that was not begun. Without this the loop is taken to train on the batch that it read last.

        Without a loader, for data that comes as a stream: ``step.local_batch`` says how many samples this rank takes of
        the next ``global_batch``, and ``step.offset`` from where on. That each comes exactly once is up to the loop.

        Args:
            global_batch: samples of this iteration over all ranks, where there is no loader. The first iteration's is
                the job's; no later one may have more.

        Raises:
            SettingError: no batch was read, or a value breaks its rule.
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
        """Weights gradients by local batches, so that uneven ones give the gradient of one process; and measures speed.

        Args:
            model: wrapped in DistributedDataParallel already; it is returned as it is, with a communication hook.
            loss: what the loss is of its batch: the ``"mean"`` over its samples (the default of PyTorch's losses),
                their ``"sum"``, or ``"scaled"`` such that DDP's average over ranks is right as it is.
            inner: another communication hook, which gets the weighted gradients (``fp16_compress_hook``).
            inner_state: its state.

        Raises:
            UnsupportedError: it is not DDP, or has synchronised batch norm.
        """
        if not isinstance(model, DistributedDataParallel):
            raise UnsupportedError(
                f"wrap({type(model).__name__}): must be DistributedDataParallel; with FSDP, DeepSpeed and others that "
                "average gradients themselves leave wrap out, and use job.scale(loss).backward()"
            )
        if any(isinstance(module, torch.nn.SyncBatchNorm) for module in model.modules()):
            raise UnsupportedError(
                "SyncBatchNorm lets gradients cross between ranks before they can be weighted: leave wrap out, and use "
                "job.scale(loss).backward()"
            )
        if loss not in ("mean", "sum", "scaled"):
            raise SettingError(f'loss={loss!r}: must be "mean", "sum" or "scaled"')
        group, world_size = model.process_group, model.process_group.size()

        def weight() -> float:
            step = self._run.current.step
            return hook.weight(loss, step.local_batch, step.global_batch, world_size)

        ready = self._gradients_ready
        self._trainee = Trainee(model, loss, has_inner=inner is not None)
        self._observer.wrapped(loss, has_inner=inner is not None)
        model.register_comm_hook(None, hook.weighted(weight, group, ready, inner, inner_state))
        model.module.register_forward_pre_hook(self._forward_begins(model), with_kwargs=True)
        return model

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss such that an average of gradients over ranks is the gradient of one process.

        For FSDP, DeepSpeed and whatever else averages by itself; never together with :meth:`wrap`. The loss is the mean
        over this rank's batch. Compute time is then that of the forward pass, in whose proportion the whole is; where
        forward passes wait for other ranks (FSDP, ZeRO-3) that says nothing of this rank, and a given plan is better.
        """
        self._observer.scaled()
        run = self._run
        step = run.current.step
        run.gradients_ready()
        run.sensor.measure_from_arrival(loss.device)
        factor = step.weight * run.world_size
        # 0 times what is not finite is not 0.
        return loss * factor if factor else torch.nan_to_num(loss, nan=0.0, posinf=0.0, neginf=0.0) * 0.0

    # The learning rate, and memory

    @property
    def lr_multiplier(self) -> float:
        """What to multiply the schedule's learning rate by in this iteration."""
        return self._run.current.step.lr_multiplier

    def optimizer(self, optimizer: _Optimizer) -> _Optimizer:
        """Lets an optimizer follow the learning-rate instruction: its rate is multiplied for each step, and put back.

        So schedulers see, and change, the rate that they know.
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
        """Guards an iteration: where the device runs out of memory, the predictor hears of it before the error goes on.

        Under data parallelism no rank can go on alone: let the processes end, and torchrun begin them again
        (``--max-restarts``). From then on this worker gets less than what did not fit.
        """
        try:
            yield
        except oom.OUT_OF_MEMORY as error:
            oom.report(self._wishes, self._run.current.step, error)
            raise

    # State

    def state_dict(self) -> dict[str, Any]:
        """Where the run stands, the same on all ranks: what a checkpoint needs beside model and optimizer.

        Iterations count as done once their gradients are there: take it after the optimizer's step. Nothing of it grows
        with the run, and resuming replays nothing.
        """
        return self._run.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where a checkpoint stands; on all ranks, before :meth:`loader`.

        The number of ranks may have changed.

        Raises:
            SettingError: the run has begun already.
        """
        if self._opened:
            raise SettingError("load_state_dict: must come before job.loader, which begins where the state stands")
        self._state = dict(state)

    def close(self) -> None:
        """Delivers the last reports and leaves the job; the end of the process does it too."""
        opened, self._opened = self._opened, None
        if opened and opened.exchange:
            opened.exchange.close(_CLOSE_S)
        if opened and opened.predictor:
            opened.predictor.close(_CLOSE_S)
        if self._claims:
            self._claims.line.close(_CLOSE_S)
        atexit.unregister(self.close)

    # Inside

    @property
    def _run(self) -> Run:
        if self._opened is None:
            raise SettingError("the run has not begun: make job.loader first")
        return self._opened.run

    def _begin(self, order: Order, reads_ahead: int) -> Run:
        if self._opened is None:
            self._observer.run_begins(order)
            self._opened = open_run(self._wishes, order, reads_ahead, self._state)
            atexit.register(self.close)
        elif self._opened.run.order != order:
            raise SettingError(f"a job trains on one data set in one order: {self._opened.run.order}, and not {order}")
        return self._opened.run

    def _stream(self, size: int) -> None:
        """The next iteration of a stream is as large as this."""
        whole = self._opened.run.order.global_batch if self._opened else size
        if not 1 <= size <= whole:
            raise SettingError(f"step(global_batch={size}): must be 1 to {whole}, what the first iteration had")
        run = self._begin(Order(whole * _STREAM_STEPS, whole, shuffle=False), reads_ahead=0)
        done = run.progress
        run.read(Turn(run.step(done.iteration, done.epoch, done.position, size), 0))

    def _trained(self, given: Trainee | None) -> Trainee:
        """The model of hedged steps: what was wrapped, else what was given."""
        wrapped = self._trainee
        if given and wrapped and given.model is not wrapped.model:
            raise SettingError("job.steps(model=..) and job.wrap(..) must be about the same model")
        if trainee := wrapped or given:
            return trainee
        raise SettingError("job.steps: which model is trained? Pass model=, or wrap it before the first iteration")

    def _claims_of(self, trainee: Trainee) -> Claims:
        """This rank's claims, begun by the first iteration; all ranks come here alike."""
        if self._claims is None:
            self._claims = claims_of(trainee, self._wishes)
        return self._claims

    def _global_batch(self, global_batch: int | None) -> int:
        plan = self._wishes.fixed
        if global_batch is None:
            if plan is None:
                raise SettingError("global_batch: must be given, unless init(plan=..) does")
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
                    "no_sync: gradients of several batches with one weight would be wrong: say job.loader(.., "
                    "accumulate=N), where N batches come before each optimizer step"
                )
            sizes = [
                value.shape[0] for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor) and value.ndim
            ]
            if sizes and not run.is_expected(sizes):
                raise UnsupportedError(
                    f"the model is given a batch of {sizes[0]}, and the batch that was read last has "
                    f"{run.current.step.batch_size}: loops that read ahead must mark iterations with `with job.step()`"
                )
            run.sensor.forward_begins(model.device)

        return begins
