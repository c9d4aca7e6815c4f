"""Measures the compute time of each layer over whole passes."""

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from evenstep.measure.moment import Timer, timer_of
from evenstep.profiling.profile_layers import Link

#: Parameters, outputs and gradients are counted in values of this many bytes.
VALUE_BYTES = 4


@dataclass(frozen=True)
class Measured:
    """One layer at one local batch."""

    forward_us: float
    backward_us: float
    #: Memory kept between forward and backward, without parameters.
    activation_bytes: int
    #: Number of output values per sample.
    outputs: int


@dataclass
class _Passed:
    """A layer's state during one pass."""

    leaf: torch.Tensor
    made: torch.Tensor
    forward: tuple[Any, Any]
    backward: tuple[Any, Any] | None = None


def measure(links: list[Link], samples: torch.Tensor, *, warm_up: int, repeats: int) -> list[Measured]:
    """Returns the mean times over the middle half of the passes by length, in the order of the layers.

    Medians of layers would not add up to the median pass. Layers run separately, as in a burst-parallel plan: the code
    passes each layer's gradient to the previous one.
    """
    activations = _activations(links, samples)
    timer = timer_of(samples.device)
    for _ in range(warm_up):
        _pass(links, samples, timer)
    passes = [_times(_pass(links, samples, timer), timer) for _ in range(repeats)]
    passes.sort(key=lambda times: sum(map(sum, times)))
    passes = passes[repeats // 4 : repeats - repeats // 4]
    measured = []
    for at, (held, values) in enumerate(activations):
        forward_us, backward_us = (statistics.fmean(times[at][part] for times in passes) for part in (0, 1))
        measured.append(Measured(forward_us, backward_us, held, -(-values // len(samples))))
    return measured


def _pass(links: list[Link], samples: torch.Tensor, timer: Timer) -> list[_Passed]:
    passed: list[_Passed] = []
    made = samples
    for link in links:
        leaf, given = _given(link, made, first=not passed)
        begun = timer.now()
        made = link.module(given)
        passed.append(_Passed(leaf, made, (begun, timer.now())))
    gradient = torch.ones_like(made)
    for layer in reversed(passed):
        if not layer.made.requires_grad:
            break
        begun = timer.now()
        torch.autograd.backward(layer.made, gradient.reshape(layer.made.shape))
        layer.backward = (begun, timer.now())
        if layer.leaf.grad is None:
            break
        gradient = layer.leaf.grad
    for link in links:
        link.module.zero_grad(set_to_none=True)
    return passed


def _given(link: Link, made: torch.Tensor, *, first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a layer's input, detached from the previous layer, and the leaf that gets its gradient."""
    leaf = made.detach()
    if link.reshaped is not None:
        leaf = leaf.reshape(len(leaf), *link.reshaped)
    if first or not leaf.is_floating_point():
        # The gradient of the input samples is not needed.
        return leaf, leaf
    leaf.requires_grad_()
    # An in-place operation must not overwrite a leaf.
    return leaf, leaf.clone() if _in_place(link.module) else leaf


def _in_place(module: nn.Module) -> bool:
    return any(getattr(part, "inplace", False) for part in module.modules())


def _times(passed: list[_Passed], timer: Timer) -> list[tuple[float, float]]:
    """Returns the microseconds of each layer, forward and backward."""
    spans = [(layer.forward, layer.backward) for layer in passed]
    return [
        (1e6 * timer.between(*forward), 1e6 * timer.between(*backward) if backward else 0.0)
        for forward, backward in spans
    ]


def _activations(links: list[Link], samples: torch.Tensor) -> list[tuple[int, int]]:
    """Returns for each layer the bytes kept for its backward pass, and the number of its four-byte output values."""
    activations = []
    made = samples
    for at, link in enumerate(links):
        _, given = _given(link, made, first=at == 0)
        with _kept(link.module) as kept:
            made = link.module(given)
        activations.append((sum(kept.values()), -(-made.numel() * made.element_size() // VALUE_BYTES)))
    return activations


@contextmanager
def _kept(module: nn.Module) -> Iterator[dict[int, int]]:
    """Records the bytes kept for a backward pass by address, so that a tensor kept by two operations counts once."""
    own = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield kept
