"""Passes of the one process in micro-batches, for global batches that do not fit into the memory of one process."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from evenstep.errors import UnsupportedError


def split_passes(model: torch.nn.Module, size: int, is_split: Callable[[], None]) -> None:
    """Makes a model compute its batches in micro-batches.

    The model returns the outputs of the whole batch, so the script's loss, clipping and optimizer do not change. The
    backward pass computes each micro-batch again, so memory holds the activations of one. The model must compute each
    sample independently of the others.

    Args:
        model: the model; its ``forward`` is replaced.
        size: maximum number of samples in a micro-batch.
        is_split: called for each batch that was split.
    """
    forward = model.forward

    def split_forward(*args: Any, **kwargs: Any) -> Any:
        samples = next((len(tensor) for tensor in _tensors([args, kwargs]) if tensor.ndim), 0)
        if samples <= size or not model.training:
            return forward(*args, **kwargs)
        is_split()
        outputs, sizes = [], []
        for begin in range(0, samples, size):
            part = slice(begin, min(begin + size, samples))
            inputs, options = _part(args, samples, part), _part(kwargs, samples, part)
            outputs.append(checkpoint(forward, *inputs, use_reentrant=False, **options))
            sizes.append(part.stop - part.start)
        return _joined(outputs, sizes, model)

    # torch.compile need not understand it.
    model.forward = torch.compiler.disable(split_forward)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, dict | list | tuple):
        for value in values.values() if isinstance(values, dict) else values:
            yield from _tensors(value)


def _part(value: Any, samples: int, part: slice) -> Any:
    """Returns the part of all tensors whose first dimension is the batch; other values stay whole."""
    if isinstance(value, torch.Tensor):
        return value[part] if value.ndim and len(value) == samples else value
    if isinstance(value, dict | list | tuple):
        return _like(value, [_part(one, samples, part) for one in _values(value)])
    return value


def _joined(outputs: Sequence[Any], sizes: Sequence[int], model: torch.nn.Module) -> Any:
    """Returns the output for the whole batch.

    Raises:
        UnsupportedError: a micro-batch has a value that is not one for each sample.
    """
    first = outputs[0]
    if isinstance(first, torch.Tensor):
        for output, size in zip(outputs, sizes, strict=True):
            if not output.ndim or len(output) != size:
                raise UnsupportedError(
                    f"--micro-batch: {type(model).__name__} returned a tensor of shape {tuple(output.shape)} for "
                    f"{size} samples, so micro-batches cannot be joined: outputs must have a value for each sample; "
                    "compute the loss outside of the model, or verify with a smaller global batch"
                )
        return torch.cat(list(outputs))
    if isinstance(first, dict | list | tuple):
        columns = zip(*map(_values, outputs), strict=True)
        return _like(first, [_joined(column, sizes, model) for column in columns])
    return first


def _values(container: Any) -> list[Any]:
    return list(container.values() if isinstance(container, dict) else container)


def _like(container: Any, values: list[Any]) -> Any:
    """Returns a container of the same type and keys with other values."""
    if isinstance(container, dict):
        return type(container)(zip(container, values, strict=True))
    return type(container)(*values) if hasattr(container, "_fields") else type(container)(values)
