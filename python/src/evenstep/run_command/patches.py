"""Replaced functions of PyTorch, by which a script is observed. All are restored at the end.

Functions of classes, because a copy of a model or a DataLoader would copy its hooks.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

_Any = Callable[..., Any]

#: Returns PyTorch's own iterator of a DataLoader.
stock_iter: _Any = DataLoader.__iter__

#: The functions with which collectives check their tensors, also collectives that a script has imported by name.
_CHECKS = [(distributed_c10d, "_check_single_tensor"), (distributed_c10d, "_object_to_tensor")]
_PATCHED = [
    (DataLoader, "__iter__"),
    (DistributedDataParallel, "_pre_forward"),
    (DistributedDataParallel, "_post_forward"),
    (torch.autograd, "backward"),
    (torch.autograd, "grad"),
    (dist, "barrier"),
    (dist, "destroy_process_group"),
    *_CHECKS,
]
_STOCK: dict[str, _Any] = {name: getattr(owner, name) for owner, name in _PATCHED}

#: Collectives that fail, or mix samples, if their tensors have a rank's number of samples.
_COLLECTIVES = (
    "all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "gather", "gather_object", "reduce",
    "reduce_scatter_tensor",
)  # fmt: skip


def install(
    *, reads: _Any, forward: _Any, computed: _Any, backward: _Any, grad: _Any, gathers: _Any, meets: _Any, ends: _Any
) -> None:
    """Calls functions of a script's observer.

    Args:
        reads: returns the iterator of a DataLoader.
        forward: gets a DistributedDataParallel model and the arguments of its forward pass, before it.
        computed: gets a model's output.
        backward: gets the tensors of a backward pass and their gradients, before it.
        grad: called before gradients are computed by ``torch.autograd.grad``.
        gathers: gets a tensor or an object that ranks gather or reduce, before they do.
        meets: called before a barrier.
        ends: called before the process group is destroyed.
    """

    def iterator(loader: Any) -> Any:
        return reads(loader)

    ours = [iterator, *_of_passes(forward, computed), *_of_gradients(backward, grad), *_of_ranks(gathers, meets, ends)]
    for (owner, name), function in zip(_PATCHED, ours, strict=True):
        setattr(owner, name, function)


def _of_passes(forward: _Any, computed: _Any) -> list[_Any]:
    def pre_forward(model: Any, *inputs: Any, **kwargs: Any) -> Any:
        # A compiler must not see what happens here.
        if not torch.compiler.is_compiling():
            forward(model, (inputs, kwargs))
        return _STOCK["_pre_forward"](model, *inputs, **kwargs)

    def post_forward(model: Any, output: Any) -> Any:
        output = _STOCK["_post_forward"](model, output)
        if not torch.compiler.is_compiling():
            computed(output)
        return output

    return [pre_forward, post_forward]


def _of_gradients(backward: _Any, grad: _Any) -> list[_Any]:
    def backward_of(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
        backward(tensors, grad_tensors)
        _STOCK["backward"](tensors, grad_tensors, *args, **kwargs)

    def grad_of(*args: Any, **kwargs: Any) -> Any:
        grad()
        return _STOCK["grad"](*args, **kwargs)

    return [backward_of, grad_of]


def _of_ranks(gathers: _Any, meets: _Any, ends: _Any) -> list[_Any]:
    def checking(name: str) -> _Any:
        def check(value: Any, *args: Any, **kwargs: Any) -> Any:
            if sys._getframe(1).f_code.co_name in _COLLECTIVES:  # noqa: SLF001  # The only way to see who calls.
                gathers(value)
            return _STOCK[name](value, *args, **kwargs)

        return check

    def barrier(*args: Any, **kwargs: Any) -> Any:
        meets()
        return _STOCK["barrier"](*args, **kwargs)

    def destroy(group: Any = None) -> None:
        if group is None or group is dist.group.WORLD:
            ends()
        _STOCK["destroy_process_group"](group)

    return [barrier, destroy, *(checking(name) for _, name in _CHECKS)]


def end() -> None:
    """Ends all observation."""
    for owner, name in _PATCHED:
        setattr(owner, name, _STOCK[name])
