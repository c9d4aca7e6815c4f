"""Gradients of uneven batches: weighted where DDP would average, so that their sum is the gradient of one process."""

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # torch's stubs leave it out.

#: What the user's loss is of its batch: the mean over its samples, their sum, or such that DDP's own average is right.
Loss = Literal["mean", "sum", "scaled"]

#: A communication hook of DDP.
Hook = Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]


def weight(loss: Loss, local_batch: int, size: int, world_size: int) -> float:
    """What a rank's gradient counts in the sum over ranks.

    With ``g_i`` the gradient of the mean over the ``n_i`` samples of rank i, that of the mean over all ``N`` is
    ``sum_i (n_i / N) g_i``. Of sums over samples it is ``sum_i g_i / N``.
    """
    if loss == "mean":
        return local_batch / size
    if loss == "sum":
        return 1 / size if local_batch else 0.0
    return 1 / world_size


def weigh(gradient: torch.Tensor, weight: float) -> None:
    """Multiplies in place; by 0 also what is not finite."""
    if weight == 0:
        gradient.zero_()
    else:
        gradient.mul_(weight)


def weighted(
    weight_now: Callable[[], float],
    group: dist.ProcessGroup,
    ready: Callable[[], None],
    inner: Hook | None,
    state: Any,
) -> Hook:
    """DDP's communication hook.

    Args:
        weight_now: this rank's weight in the current iteration.
        group: DDP's process group.
        ready: called when the last gradients of the iteration are there, before anything waits for other ranks.
        inner: a hook that averages over ranks, called with the weighted gradients (compression, say).
        state: its state.
    """
    world_size = dist.get_world_size(group)

    def hook(_: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        if bucket.is_last():
            ready()
        # An inner hook divides by the number of ranks.
        weigh(bucket.buffer(), weight_now() * (world_size if inner else 1))
        if inner:
            return inner(state, bucket)
        # What dist.all_reduce comes to, without its checks: a step has few microseconds to spare.
        work = group.allreduce([bucket.buffer()])
        summed: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda future: future.value()[0])
        return summed

    return hook
