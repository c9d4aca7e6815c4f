"""Weights of micro-batches of unequal sizes: the remainder of an epoch may not divide by their number."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from evenstep.run.run import Run

#: The entry in the metadata of a node: the handle of its hook.
_ENTRY = "evenstep micro-batches"

Gradients = tuple[torch.Tensor | None, ...]


def weigh_passes(model: torch.nn.Module, run: Callable[[], Run | None], *, is_mean: bool) -> Callable[[], None]:
    """Weights the gradient of each backward pass before it is added to ``.grad``; returns how to end that.

    The weight is relative to equal micro-batches. So the sum over an iteration is the one of equal micro-batches.

    Args:
        model: a model whose parameters keep their nodes, such as DistributedDataParallel.
        run: returns the run, or None if it has not started or has ended.
        is_mean: whether the loss is a mean over the batch. Other losses need no weight unless a batch has no samples.
    """
    handles: list[Any] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            node: Any = get_gradient_edge(parameter).node
            if before := node.metadata.get(_ENTRY):
                # Another DDP model, or job, of the same module.
                before.remove()
            node.metadata[_ENTRY] = node.register_prehook(partial(_weigh, run, is_mean))
            handles.append(node.metadata[_ENTRY])

    def end() -> None:
        for handle in handles:
            handle.remove()

    return end


def _weigh(get_run: Callable[[], Run | None], is_mean: bool, gradients: Gradients) -> Gradients | None:
    run = get_run()
    if run is None or run.is_hedging or not run.has_batch or gradients[0] is None:
        return None
    factor = run.current.factor
    if factor == 1 or (factor and not is_mean):
        return None
    # 0 times NaN is not 0.
    return (gradients[0] * factor if factor else torch.zeros_like(gradients[0]),)
