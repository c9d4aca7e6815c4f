"""Which forward passes of a model are for gradients, and the nodes that add these to parameters."""

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import get_gradient_edge

if TYPE_CHECKING:
    from evenstep.run.run import Run


#: The entry in the metadata of a node: the handle of its hook, and the object that owns it.
ENTRY = "evenstep"


def entries_of(parameter: torch.nn.Parameter) -> Any:
    """Returns the metadata of the node that adds a parameter's gradients, by name."""
    return get_gradient_edge(parameter).node.metadata


def has_gradients(run: "Run | None") -> bool:
    """Returns whether a forward pass is for gradients; otherwise the loop may only look at its batches."""
    is_enabled = torch.is_grad_enabled()
    if run is not None and not is_enabled:
        run.binding.looks()
    return is_enabled


def is_recomputing(run: "Run") -> bool:
    """Returns whether a forward pass is repeated for the current batch by a backward pass, as checkpointing does."""
    # torch.utils.checkpoint uses it, too.
    in_backward = torch._C._current_graph_task_id() >= 0  # noqa: SLF001  # PyTorch has no public way to ask.
    return in_backward and run.binding.has_batch and run.current.begun
