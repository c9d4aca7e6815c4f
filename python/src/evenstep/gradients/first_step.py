"""The check of the first optimizer step: several ranks must weight their gradients."""

import logging
from collections.abc import Callable
from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from evenstep.errors import UnsupportedError
from evenstep.run.run import Run

log = logging.getLogger("evenstep")

#: The check of an earlier job, which may never train.
_earlier: RemovableHandle | None = None


def check_first_step(run: Run, is_weighted: Callable[[], bool]) -> RemovableHandle:
    """Checks the first optimizer step after a batch was read, and raises UnsupportedError before it.

    Args:
        run: the run of this rank.
        is_weighted: whether ``job.wrap``, ``job.scale`` or ``job.steps`` was called.

    Returns:
        the handle that ends the check, at the end of the job.
    """
    # The hook cannot remove itself: PyTorch calls the hooks in a loop over their dictionary.
    is_over = False

    def check(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal is_over
        if is_over or not run.has_batch:
            return
        if is_weighted() and any(map(callable, (*args, *kwargs.values()))):
            # A closure makes the forward pass within the step, as for LBFGS.
            return
        if is_weighted():
            if not run.is_computed:
                log.warning(
                    "an optimizer made a step before the first forward pass of the wrapped model: only gradients of "
                    "the model that job.wrap returned are weighted and summed over ranks"
                )
        elif run.is_explicit:
            log.warning(
                "neither job.wrap nor job.scale was called: each rank must weight its gradients itself, with "
                "step.weight"
            )
        else:
            raise UnsupportedError(
                "an optimizer made a step, but neither job.wrap nor job.scale was called: DDP's average over ranks is "
                "wrong for uneven batches; use model = job.wrap(DistributedDataParallel(net)), or job.scale(loss) with "
                "other wrappers"
            )
        is_over = True

    global _earlier  # noqa: PLW0603  # PyTorch's hook is global too.
    if _earlier:
        _earlier.remove()
    _earlier = register_optimizer_step_pre_hook(check)
    return _earlier
