"""The DDP communication hook that weights the gradients of uneven batches.

The weighted sum over ranks is the gradient of one process. A hook leaves the training loop unchanged.
``SyncBatchNorm`` needs a scaled loss instead, because its gradients cross between ranks before the hook.
"""

import logging
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_args

import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # missing in torch's type stubs.
from torch.nn.parallel import DistributedDataParallel

from evenstep.errors import SettingError, UnsupportedError
from evenstep.gradients import batchnorm, items
from evenstep.measure.device import cuda_backend
from evenstep.run.losses import Loss

if TYPE_CHECKING:
    from evenstep.run.run import Run
    from evenstep.run.step import Step

log = logging.getLogger("evenstep")

#: A communication hook of DDP.
Hook = Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]

#: The label of tokens that do not count, in PyTorch and Transformers.
_IGNORED = -100


def weight(loss: Loss, local_batch: int, size: int, world_size: int) -> float:
    """Returns the weight of a rank's gradient in the sum over ranks.

    Let ``g_i`` be the gradient of the mean over the ``n_i`` samples of rank i. The gradient of the mean over all ``N``
    samples is ``sum_i (n_i / N) g_i``. If the loss is a sum over samples, it is ``sum_i g_i / N``. If it is a sum over
    tokens, the sum over ranks is divided by the number of tokens later. A rank without samples has the weight 0.
    """
    if not local_batch:
        return 0.0
    if loss == "mean":
        return local_batch / size
    if loss == "sum":
        return 1 / size
    return 1.0 if loss == "tokens" else 1 / world_size


def apply_weight(gradient: torch.Tensor, weight: float) -> None:
    """Multiplies a gradient in place; weight 0 also clears NaN and infinity."""
    if weight == 0:
        gradient.zero_()
    elif weight != 1:
        gradient.mul_(weight)


def check_loss(loss: Loss) -> None:
    """Checks the name of a reduction.

    Raises:
        SettingError: it is unknown.
    """
    if loss not in get_args(Loss):
        raise SettingError(f"loss={loss!r}: must be one of {', '.join(map(repr, get_args(Loss)))}")


def ddp_of(model: Any) -> DistributedDataParallel | None:
    """Returns the DDP model that a model is, or that ``torch.compile`` got; None for other models."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, DistributedDataParallel) else None


def check_group(model: DistributedDataParallel) -> None:
    """Checks that a model sums its gradients over all ranks, because plans split each iteration over all ranks.

    Raises:
        UnsupportedError: the model's process group is a part of the ranks.
    """
    size, world_size = model.process_group.size(), dist.get_world_size()
    if size != world_size:
        raise UnsupportedError(
            f"the model's process group has {size} of the {world_size} ranks: must have all of them, because evenstep "
            "splits each iteration over all ranks; with tensor or pipeline parallelism, or several groups of replicas, "
            "train with equal batches and without evenstep"
        )


def _trained_parameters(model: DistributedDataParallel) -> int:
    """Returns the number of parameters whose gradients DDP reduces."""
    named = model.module.named_parameters()
    return sum(parameter.requires_grad and name not in model.parameters_to_ignore for name, parameter in named)


class GradientWeights:
    """Weights the gradients of one DDP model and observes its passes."""

    def __init__(
        self,
        model: DistributedDataParallel,
        loss: Loss,
        run: Callable[[], "Run | None"],
        inner: Hook | None = None,
        state: Any = None,
    ) -> None:
        """Creates the hooks of a model.

        Args:
            model: the model.
            loss: the reduction of the loss.
            run: returns the run, or None if it has not started.
            inner: another hook that averages over ranks, for example with compression; gets the weighted gradients.
            state: the state of ``inner``.
        """
        # DDP keeps this object in C++, where the garbage collector sees no cycle.
        self._model = weakref.ref(model)
        self._loss = loss
        self._run = run
        self._inner = inner
        self._state = state
        self._group = model.process_group
        self._world_size = self._group.size()
        self._total: items.Total | None = None
        self._statistics = batchnorm.RunningStatistics(model)
        #: The last iteration whose gradients were reduced, and whose later passes are checked.
        self._reduced = self._checked = -1
        self._has_looked_for_padding = loss != "mean"
        #: The types of devices whose sums are waited for at the last bucket. Gloo's futures are complete before a sum
        #: has arrived on a GPU.
        self._waited = {"cpu", "cuda"} if cuda_backend(self._group) == "gloo" else {"cpu"}
        #: The sums over ranks that were started and not waited for yet.
        self._open: list[tuple[dist.Work, torch.Tensor]] = []
        #: The statistics of the last reduction: a GPU may read them after the hook has returned.
        self._pending: batchnorm.PendingStatistics | None = None
        #: In a reduction without numbered buckets: number of all parameters, and of those in buckets up to now.
        self._unnumbered, self._placed = (_trained_parameters(model) if model.static_graph else 0), 0

    def reduce(self, _: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Sums the weighted gradients of a bucket over ranks; the communication hook.

        Raises:
            SettingError: no batch was read, or its tokens were not counted.
            UnsupportedError: the gradients would be wrong.
        """
        run = self._run()
        if run is None:
            raise SettingError("gradients before the run has started: call job.loader before the first backward pass")
        gradient = bucket.buffer()
        is_first, is_last = self._place(bucket)
        if is_first:
            # An earlier backward pass may have failed.
            self._open.clear()
            bind_gradients(run)
            if self._loss == "tokens":
                self._total = items.total(run.items(), gradient.device, self._group)
        step = run.current.step
        if is_last:
            self._reduced = step.iteration
            # Before this rank waits for the others.
            run.gradients_ready()
        own = weight(self._loss, step.local_batch, step.global_batch, self._world_size)
        # Inner hooks divide by the number of ranks.
        apply_weight(gradient, own * (self._world_size if self._inner else 1))
        summed: torch.futures.Future[torch.Tensor]
        if self._inner:
            if self._total:
                # A compressed sum over all tokens could overflow.
                with run.sensor.paused():
                    self._total.divide(gradient)
            summed = self._inner(self._state, bucket)
        elif gradient.device.type in self._waited:
            return self._sum_now(gradient, step, is_last=is_last)
        else:
            summed = self._allreduce(gradient).get_future().then(lambda future: future.value()[0])
            if total := self._total:
                divide = total.divide
                summed = summed.then(lambda future: divide(future.value()))
        if not is_last:
            return summed
        self._pending = pending = self._statistics.begin(step.weight, self._group)
        return pending.stored_with(summed) if pending else summed

    def _allreduce(self, gradient: torch.Tensor) -> dist.Work:
        # The same as dist.all_reduce without its argument checks, which would take microseconds in each step.
        return self._group.allreduce([gradient])

    def _sum_now(self, gradient: torch.Tensor, step: "Step", *, is_last: bool) -> torch.futures.Future[torch.Tensor]:
        """Returns a complete future. With the last bucket, it waits for the sums of all."""
        self._open.append((self._allreduce(gradient), gradient))
        if is_last:
            self._wait(step)
        # Without its device, readers of the future would not wait for the GPU.
        devices: list[int | str | torch.device] = [] if gradient.device.type == "cpu" else [gradient.device]
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        done.set_result(gradient)
        return done

    def _place(self, bucket: GradBucket) -> tuple[bool, bool]:
        """Returns whether a bucket is the first, and whether it is the last of a reduction.

        In the first reduction of a static graph, DDP passes all buckets at the end, each with the index 0.
        """
        if self._placed == self._unnumbered:
            return bucket.index() == 0, bucket.is_last()
        is_first = self._placed == 0
        self._placed = min(self._placed + len(bucket.parameters()), self._unnumbered)
        return is_first, self._placed == self._unnumbered

    def _wait(self, step: "Step") -> None:
        """Waits for all buckets of a reduction, and stores what depends on them.

        DDP reads no bucket before the last one is reduced. A callback on Gloo's futures needs no wait here, but runs in
        a thread of Gloo: if another rank fails while the interpreter ends, the callback aborts the process.
        """
        opened, self._open = self._open, []
        pending = self._statistics.begin(step.weight, self._group)
        for work, summed in opened:
            work.wait()
            if self._total is not None:
                self._total.divide(summed)
        if pending:
            pending.work.wait()
            pending.store()

    def forward_begins(self, _: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Binds the gradients that follow to the batch of this forward pass; a forward pre-hook.

        Raises:
            UnsupportedError: the gradients would be wrong.
        """
        run, model = self._run(), self._model()
        if run is None or model is None or run.is_hedging or not torch.is_grad_enabled() or is_recomputing(run):
            return
        if not model.require_backward_grad_sync and not run.accumulates:
            raise UnsupportedError(
                "no_sync with one weight for several batches would give a wrong gradient: use job.loader(.., "
                "accumulate=N), where N is the number of batches per optimizer step"
            )
        run.computes(
            [value.shape[0] for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor) and value.ndim]
        )
        if self._loss != "mean" and model.require_backward_grad_sync:
            self._check_reduced_once(run, model)
        if not self._has_looked_for_padding:
            self._has_looked_for_padding = True
            warn_of_padding(kwargs)
        run.sensor.forward_begins(model.device)

    def _check_reduced_once(self, run: "Run", model: DistributedDataParallel) -> None:
        """Lets a backward pass fail that reduces gradients again that an earlier pass of the iteration has reduced.

        Such gradients are the same on all ranks. Only weights whose sum is 1, those of means, preserve them. Before the
        backward pass, the script may still clear them, and an evaluation has none.
        """
        iteration = run.current.step.iteration
        reduced = [parameter for parameter in model.parameters() if parameter.grad is not None]
        if self._reduced != iteration or self._checked == iteration or not reduced:
            return
        self._checked = iteration

        def check(_: torch.Tensor) -> None:
            handle.remove()
            self._checked = -1
            if self._reduced == run.current.step.iteration and any(at.grad is not None for at in reduced):
                raise UnsupportedError(
                    f'loss="{self._loss}" with several backward passes in one iteration: DDP would reduce the '
                    "gradients of the first passes again, with wrong weights; run all passes but the last under "
                    "model.no_sync(), or clear the gradients between them with optimizer.zero_grad(set_to_none=True)"
                )

        handle = torch.autograd.graph.register_multi_grad_hook(reduced, check, mode="any")


def is_recomputing(run: "Run") -> bool:
    """Returns whether a forward pass is repeated for the current batch by a backward pass, as checkpointing does."""
    # torch.utils.checkpoint uses it, too.
    in_backward = torch._C._current_graph_task_id() >= 0  # noqa: SLF001  # PyTorch has no public way to ask.
    return in_backward and run.has_batch and run.current.begun


def bind_gradients(run: "Run") -> None:
    """Binds gradients to the batch read last if no forward pass of the wrapped model was observed.

    Raises:
        UnsupportedError: the loop read batches ahead, so it is unknown which batch this is.
    """
    if not run.current.begun:
        run.computes()


def warn_of_padding(inputs: dict[str, Any]) -> None:
    """Warns if labels by token suggest that the loss is not a mean over samples."""
    labels = inputs.get("labels")
    if isinstance(labels, torch.Tensor) and labels.ndim > 1 and bool((labels == _IGNORED).any()):
        log.warning(
            "the labels contain %s (tokens that do not count), but job.wrap weights batches by samples: if the loss is "
            'a mean over tokens, use job.wrap(.., loss="tokens") and job.count',
            _IGNORED,
        )
