"""The gradients of a training job: their weights, the learning rate, and out-of-memory errors."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from evenstep.errors import SettingError, UnsupportedError
from evenstep.gradients import buffers, first_step, fsdp, hook
from evenstep.hedge.trainee import TrainedModel
from evenstep.job import oom
from evenstep.job.job_run import JobRun
from evenstep.run.losses import Loss
from evenstep.run.run import Run

#: The error of gradients that would be weighted twice.
_TWICE = (
    "job.wrap and job.scale both weight the gradients: use job.wrap with DistributedDataParallel and fully_shard, and "
    "job.scale with wrappers that average gradients themselves"
)

_Optimizer = TypeVar("_Optimizer", bound=torch.optim.Optimizer)
_Model = TypeVar("_Model", bound=torch.nn.Module)


class JobGradients(JobRun):
    """The part of a job that weights gradients and learning rates by the local batches."""

    def wrap(
        self,
        model: _Model,
        *,
        loss: Loss = "mean",
        inner: hook.Hook | None = None,
        inner_state: Any = None,
    ) -> _Model:
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
        ddp = hook.ddp_of(model)
        if ddp is None and not fsdp.modules(model):
            raise UnsupportedError(
                f"wrap({type(model).__name__}): must be DistributedDataParallel, or made with fully_shard; with FSDP1, "
                "DeepSpeed and others that average gradients themselves, omit wrap and use job.scale(loss).backward()"
            )
        if getattr(ddp, "_use_python_reducer", False):
            raise UnsupportedError(
                "torch._dynamo.config.optimize_ddp='python_reducer' reduces gradients without DDP's reducer, so they "
                "cannot be weighted: use 'ddp_optimizer', the default, or job.scale(loss).backward() without wrap"
            )
        if any(isinstance(module, torch.nn.SyncBatchNorm) for module in model.modules()):
            raise UnsupportedError(
                "SyncBatchNorm sends gradients between ranks before they can be weighted: omit wrap and use "
                "job.scale(loss).backward()"
            )
        if self._is_scaled:
            raise UnsupportedError(_TWICE)
        hook.check_loss(loss)
        if ddp is None:
            fsdp.check_wrap(model, has_inner=inner is not None)
            fsdp.GradientWeights(model, loss, self._run_later).register()
        else:
            hook.check_group(ddp)
            weights = hook.GradientWeights(ddp, loss, self._run_later, inner, inner_state)
            weights.register(ddp.module if model is ddp else model)
        first_step.weighted.add(ddp.module if ddp else model)
        self._losses.add(loss)
        self._has_shards |= ddp is None
        self._avoids_singles |= buffers.needs_two_samples(model)
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
        if "tokens" not in self._losses:
            raise SettingError('count: requires job.wrap(.., loss="tokens")')
        self._run.binding.count(items)

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
        :meth:`wrap`. The loss must be the mean over this rank's batch. The framework must average over all ranks:
        meshes with tensor or pipeline parallelism are not supported.

        The compute time is then measured over the forward pass, to which the whole is proportional. If forward passes
        wait for other ranks (FSDP1, ZeRO-3), it does not show the speed of this rank; use ``init(plan=..)``. The waits
        of FSDP2 are left out.

        Raises:
            UnsupportedError: :meth:`wrap` was called, or the loop read batches ahead without :meth:`step`.
        """
        if self._trained_model:
            raise UnsupportedError(_TWICE)
        run = self._run
        self._is_scaled = True
        self._observer.scaled()
        run.binding.forward()
        turn = run.binding.backward()
        step = turn.step
        if step.work is not None and len(step.passes) > 1:
            raise UnsupportedError(
                f"job.scale in an iteration with passes of {list(step.passes)} samples: the means of its passes have "
                'unequal weights; use job.wrap(.., loss="tokens") and job.count, or neither max_tokens nor accumulate'
            )
        # Before the exchange thread sees the iteration: it reads the GPU of the device.
        run.sensor.measure_from_arrival(loss.device)
        if "torch.distributed.fsdp" in sys.modules:
            fsdp.measures(run.sensor)
        if loss.numel() == 1:
            run.losses.record(step.iteration, turn.samples, loss)
        run.gradients_ready()
        factor = step.weight * turn.factor * run.world_size
        # 0 times NaN or infinity is not 0.
        return loss * factor if factor else torch.nan_to_num(loss, nan=0.0, posinf=0.0, neginf=0.0) * 0.0

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

    def _is_unmarked(self, run: Run) -> bool:
        """Whether the loop has read a batch that it does not compute yet, so far as this job can see."""
        is_weighted = self._trained_model or self._options.claims or run.world_size == 1
        return not (is_weighted or run.binding.is_marked or run.current.begun)
