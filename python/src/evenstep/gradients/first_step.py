"""The steps of optimizers, and the check of the first one: ranks must weight the gradients of all its parameters."""

import gc
import logging
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakSet

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from evenstep.errors import UnsupportedError
from evenstep.gradients import fsdp, passes
from evenstep.run.run import Run

log = logging.getLogger("evenstep")

#: The modules whose gradients ``job.wrap`` weights, in any job of this process.
weighted: WeakSet[torch.nn.Module] = WeakSet()

#: The check of an earlier job, which may never train.
_earlier: RemovableHandle | None = None


def follow_steps(run: Run, is_weighted: Callable[[], bool], only_wraps: Callable[[], bool]) -> list[RemovableHandle]:
    """Tells the run about the steps of all optimizers; with several ranks it checks the first one of each.

    In one process a script may train without wrap. Its steps are then the only sign of what is trained.

    Args:
        run: the run of this rank.
        is_weighted: whether ``job.wrap``, ``job.scale`` or ``job.steps`` was called.
        only_wraps: whether only ``job.wrap`` was called.

    Returns:
        the handles that end it, at the end of the job.
    """
    run.binding.is_observed = lambda: run.world_size > 1 or is_weighted()

    def begins(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        run.binding.step_begins()
        if run.passes:
            run.passes.check_reduced(at for group in optimizer.param_groups for at in group["params"])
            if not is_weighted():
                raise UnsupportedError(
                    "micro_batch without job.wrap would add the means of passes without weights: use model = "
                    "job.wrap(DistributedDataParallel(net)), also in one process"
                )

    handles = [
        register_optimizer_step_pre_hook(begins),
        register_optimizer_step_post_hook(lambda *_: run.binding.step_ends()),
    ]
    if run.world_size > 1:
        handles.append(_check_first_step(run, is_weighted, only_wraps))
    return handles


def _check_first_step(run: Run, is_weighted: Callable[[], bool], only_wraps: Callable[[], bool]) -> RemovableHandle:
    """Checks the first step of each optimizer within an epoch, and raises UnsupportedError before it.

    Parameters that are in no DDP model may be reduced by the script itself: one warning names the first of them.
    Tensors that are no ``nn.Parameter``, such as copies or inputs, and what is added later are not checked.
    """
    # The hook cannot remove itself: PyTorch calls the hooks in a loop over their dictionary.
    is_told = False
    checked = WeakSet[torch.optim.Optimizer]()

    def check(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        nonlocal is_told
        if not run.binding.has_batch or run.binding.is_between_epochs or optimizer in checked:
            return
        if not is_weighted():
            told, is_wrong = "an optimizer made a step, but neither job.wrap nor job.scale was called", True
        else:
            # The first step of LBFGS computes its gradients later.
            if any(at.grad is not None for group in optimizer.param_groups for at in group["params"]):
                checked.add(optimizer)
            unweighted = dict(_unweighted(optimizer)) if only_wraps() else {}
            if not unweighted:
                return
            averaged = _averaged()
            is_wrong = any(id(parameter) in averaged for parameter in unweighted.values())
            name = next(name for name, at in unweighted.items() if not is_wrong or id(at) in averaged)
            told = f"{type(optimizer).__name__} steps {name}, which is in no model that job.wrap got"
        if is_wrong and not run.binding.is_marked:
            checked.discard(optimizer)
            raise UnsupportedError(
                f"{told}: DDP's average over ranks is wrong for uneven batches; use model = "
                "job.wrap(DistributedDataParallel(net)) for each trained model, or job.scale(loss) with other wrappers"
            )
        if not is_told:
            log.warning("%s: each rank must weight its gradients itself, with step.weight", told)
        is_told = True

    global _earlier  # noqa: PLW0603  # PyTorch's hook is global too.
    if _earlier:
        _earlier.remove()
    _earlier = register_optimizer_step_pre_hook(check)
    return _earlier


def _unweighted(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Yields the parameters with a gradient that are in no weighted model, with their names."""
    owned = set[int]()
    for model in weighted:
        fsdp.reshard(model)
        owned |= set(map(id, model.parameters()))
    for number, group in enumerate(optimizer.param_groups):
        names = group.get("param_names", [f"{at} of group {number}" for at in range(len(group["params"]))])
        for name, at in zip(names, group["params"], strict=True):
            if not isinstance(at, torch.nn.Parameter) or at.grad is None or id(at) in owned:
                continue
            _, owner = passes.entries_of(at).get(passes.ENTRY, (None, None)) if at.requires_grad else (None, None)
            # With tensor parallelism, DDP's parameters are in the module only until its first forward pass.
            if not (owner and owner.sources and any(model() for model in owner.models)):
                yield f"parameter {name} of shape {tuple(at.shape)}", at


def _averaged() -> set[int]:
    """Returns the ids of the parameters of all DDP models. It is slow, but few optimizers need it."""
    # Some objects claim other types if isinstance is used.
    models = [at for at in gc.get_objects() if issubclass(type(at), DistributedDataParallel)]
    return {id(parameter) for model in models for parameter in model.parameters()}
