"""Replaced functions of PyTorch, by which a script is observed. All are restored at the end.

Functions of classes, because a copy of a model or a DataLoader would copy its hooks.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

_Any = Callable[..., Any]

#: Returns PyTorch's own iterator of a DataLoader.
stock_iter: _Any = DataLoader.__iter__

_BACKWARD = [(torch.autograd, "backward")]
_GATHERS = [(dist, "all_gather"), (dist, "all_gather_into_tensor")]
_OTHERS = [(DataLoader, "__iter__"), (DistributedDataParallel, "_pre_forward"), (dist, "destroy_process_group")]
_STOCK: dict[str, _Any] = {name: getattr(owner, name) for owner, name in [*_BACKWARD, *_GATHERS, *_OTHERS]}


def install(*, reads: _Any, forward: _Any, backward: _Any, gathers: _Any, ends: _Any) -> None:
    """Calls functions of a script's observer.

    Args:
        reads: returns the iterator of a DataLoader.
        forward: gets a DistributedDataParallel model and the arguments of its forward pass, before it.
        backward: gets the tensors of a backward pass, before it.
        gathers: gets a tensor that ranks gather, before they do.
        ends: called before the process group is destroyed.
    """

    def iterator(loader: Any) -> Any:
        return reads(loader)

    def pre_forward(model: Any, *inputs: Any, **kwargs: Any) -> Any:
        # A compiler must not see what happens here.
        if not torch.compiler.is_compiling():
            forward(model, (inputs, kwargs))
        return _STOCK["_pre_forward"](model, *inputs, **kwargs)

    def backward_of(tensors: Any, *args: Any, **kwargs: Any) -> None:
        backward(tensors)
        _STOCK["backward"](tensors, *args, **kwargs)

    def gathering(name: str) -> _Any:
        def gather(gathered: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
            gathers(tensor)
            return _STOCK[name](gathered, tensor, *args, **kwargs)

        return gather

    def destroy(group: Any = None) -> None:
        if group is None or group is dist.group.WORLD:
            ends()
        _STOCK["destroy_process_group"](group)

    ours = [iterator, pre_forward, destroy, backward_of, *(gathering(name) for _, name in _GATHERS)]
    for (owner, name), function in zip([*_OTHERS, *_BACKWARD, *_GATHERS], ours, strict=True):
        setattr(owner, name, function)


def end_backward() -> None:
    """Ends the observation of backward passes."""
    _restore(_BACKWARD)


def end_gathers() -> None:
    """Ends the observation of gathered tensors."""
    _restore(_GATHERS)


def end() -> None:
    """Ends all observation."""
    _restore([*_BACKWARD, *_GATHERS, *_OTHERS])


def _restore(names: list[tuple[Any, str]]) -> None:
    for owner, name in names:
        setattr(owner, name, _STOCK[name])
