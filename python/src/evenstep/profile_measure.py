"""What layers of a chain take: whole passes, layer by layer, each between two moments."""

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from evenstep.moment import Moment, between, now
from evenstep.profile_layers import Link

#: Parameters, outputs and gradients are counted in values of so many bytes.
VALUE_BYTES = 4


@dataclass(frozen=True)
class Measured:
    """One layer at one local batch."""

    forward_us: float
    backward_us: float
    #: What it keeps between the two, without parameters.
    activation_bytes: int
    #: Values handed on for each sample.
    outputs: int


@dataclass
class _Passed:
    """A layer on its way through one pass."""

    leaf: torch.Tensor
    made: torch.Tensor
    forward: tuple[Moment, Moment]
    backward: tuple[Moment, Moment] | None = None


def measure(links: list[Link], samples: torch.Tensor, *, warm_up: int, repeats: int) -> list[Measured]:
    """Medians over passes forward and backward, in the order of the layers.

    Layers run apart from each other, as a burst-parallel plan runs them: each one's gradient goes to the one before by
    hand.
    """
    activations = _activations(links, samples)
    for _ in range(warm_up):
        _pass(links, samples)
    passes = [_times(_pass(links, samples), samples.device) for _ in range(repeats)]
    measured = []
    for at, (held, values) in enumerate(activations):
        forward_us, backward_us = (statistics.median(times[at][part] for times in passes) for part in (0, 1))
        measured.append(Measured(forward_us, backward_us, held, -(-values // len(samples))))
    return measured


def _pass(links: list[Link], samples: torch.Tensor) -> list[_Passed]:
    passed: list[_Passed] = []
    made = samples
    for link in links:
        leaf, given = _given(link, made, first=not passed)
        begun = now(samples.device, time.perf_counter)
        made = link.module(given)
        passed.append(_Passed(leaf, made, (begun, now(samples.device, time.perf_counter))))
    gradient = torch.ones_like(made)
    for layer in reversed(passed):
        if not layer.made.requires_grad:
            break
        begun = now(samples.device, time.perf_counter)
        torch.autograd.backward(layer.made, gradient.reshape(layer.made.shape))
        layer.backward = (begun, now(samples.device, time.perf_counter))
        if layer.leaf.grad is None:
            break
        gradient = layer.leaf.grad
    for link in links:
        link.module.zero_grad(set_to_none=True)
    return passed


def _given(link: Link, made: torch.Tensor, *, first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """What a layer reads, cut off from the one before; and the leaf that its gradient is left on."""
    leaf = made.detach()
    if link.reshaped is not None:
        leaf = leaf.reshape(len(leaf), *link.reshaped)
    if first or not leaf.is_floating_point():
        # Nobody wants the gradient of the samples.
        return leaf, leaf
    leaf.requires_grad_()
    # What is computed in place must not overwrite a leaf.
    return leaf, leaf.clone() if _in_place(link.module) else leaf


def _in_place(module: nn.Module) -> bool:
    return any(getattr(part, "inplace", False) for part in module.modules())


def _times(passed: list[_Passed], device: torch.device) -> list[tuple[float, float]]:
    """Microseconds of each layer, forward and backward."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    spans = [(layer.forward, layer.backward) for layer in passed]
    return [(1e6 * between(*forward), 1e6 * between(*backward) if backward else 0.0) for forward, backward in spans]


def _activations(links: list[Link], samples: torch.Tensor) -> list[tuple[int, int]]:
    """What each layer keeps for its backward pass in bytes, and how many values of four bytes it hands on."""
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
    """Bytes that are kept for a backward pass, by where they lie: what two operations keep is there once."""
    own = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield kept
