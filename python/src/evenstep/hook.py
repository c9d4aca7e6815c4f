"""The DDP communication hook that weights the gradients of uneven batches.

The weighted sum over ranks is the gradient of one process.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # missing in torch's type stubs.

#: The reduction of the user's loss: the mean over the batch, its sum, or already scaled so that DDP's average is right.
Loss = Literal["mean", "sum", "scaled"]

#: A communication hook of DDP.
Hook = Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]


def weight(loss: Loss, local_batch: int, size: int, world_size: int) -> float:
    """Returns the weight of a rank's gradient in the sum over ranks.

    Let ``g_i`` be the gradient of the mean over the ``n_i`` samples of rank i. The gradient of the mean over all ``N``
    samples is ``sum_i (n_i / N) g_i``. If the loss is a sum over samples, it is ``sum_i g_i / N``.
    """
    if loss == "mean":
        return local_batch / size
    if loss == "sum":
        return 1 / size if local_batch else 0.0
    return 1 / world_size


def apply_weight(gradient: torch.Tensor, weight: float) -> None:
    """Multiplies a gradient in place; weight 0 also clears NaN and infinity."""
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
    """Returns the communication hook for DDP.

    Args:
        weight_now: returns this rank's weight in the current iteration.
        group: DDP's process group.
        ready: called when the last gradients of the iteration are computed, before the hook waits for other ranks.
        inner: another hook that averages over ranks, for example with compression; gets the weighted gradients.
        state: the state of ``inner``.
    """
    world_size = dist.get_world_size(group)

    def hook(_: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        if bucket.is_last():
            ready()
        # Inner hooks divide by the number of ranks.
        apply_weight(bucket.buffer(), weight_now() * (world_size if inner else 1))
        if inner:
            return inner(state, bucket)
        # The same as dist.all_reduce without its argument checks, which would take microseconds in each step.
        work = group.allreduce([bucket.buffer()])
        summed: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda future: future.value()[0])
        return summed

    return hook
