"""Splits a model into a chain of layers: module calls that each read only the output of the previous one."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from evenstep.errors import UnsupportedError


@dataclass(frozen=True)
class Link:
    """One layer of a chain."""

    #: Its path in the model, and its type.
    name: str
    module: nn.Module
    #: The input shape of a sample, if the model only reshapes the tensor before the layer (``flatten``).
    reshaped: tuple[int, ...] | None


@dataclass(frozen=True)
class _Call:
    module: nn.Module
    given: torch.Tensor
    #: Number of in-place writes to its input before the call.
    begun: int
    made: torch.Tensor
    #: Number of in-place writes to its output in total.
    ended: int


class _NoChainError(Exception):
    """The reason why a module is not a chain of its children."""


def chain(model: nn.Module, sample_input: torch.Tensor) -> list[Link]:
    """Returns the layers of a model in execution order.

    A module whose forward pass is a chain of calls of its children is split, down to modules without children. Any
    other module is one layer.

    Args:
        model: a module with one input tensor and one output tensor.
        sample_input: samples, along the first axis.

    Raises:
        UnsupportedError: the model itself is not a chain; the message names the place.
    """
    with torch.no_grad():
        calls = _calls(model, sample_input)
        try:
            links = _flattened(model, "", calls)
        except _NoChainError as broken:
            raise UnsupportedError(
                f"{type(model).__name__} is not a chain of layers: {broken}. Move branches and computation "
                "between layers into a module with one input and one output tensor, which becomes a layer"
            ) from None
    links = _with_unique_names(links)
    _check_shared(links)
    return links


def _with_unique_names(links: list[Link]) -> list[Link]:
    """Returns the same layers, with numbers added to repeated names."""
    names = Counter(link.name for link in links)
    seen: Counter[str] = Counter()
    apart = []
    for link in links:
        seen[link.name] += 1
        name = f"{link.name} #{seen[link.name]}" if names[link.name] > 1 else link.name
        apart.append(replace(link, name=name))
    return apart


def _calls(model: nn.Module, sample_input: torch.Tensor) -> dict[nn.Module, list[Any]]:
    """Returns the recorded calls of each module's children in order; key None has the call of the model itself."""
    parents = {child: parent for parent in model.modules() for child in parent.children()}
    calls: dict[nn.Module, list[Any]] = {module: [] for module in model.modules()}
    own: list[Any] = []
    begun: list[int] = []

    def begin(_module: nn.Module, given: tuple[Any, ...]) -> None:
        begun.append(_writes(given[0]) if given and isinstance(given[0], torch.Tensor) else 0)

    def note(module: nn.Module, given: tuple[Any, ...], keywords: dict[str, Any], made: object) -> None:
        before = begun.pop()
        single = len(given) == 1 and not keywords
        if single and isinstance(given[0], torch.Tensor) and isinstance(made, torch.Tensor):
            call: Any = _Call(module, given[0], before, made, _writes(made))
        else:
            call = f"{type(module).__name__} has more than one input or output tensor"
        (own if module is model else calls[parents[module]]).append(call)

    hooks = [module.register_forward_pre_hook(begin) for module in model.modules()]
    hooks += [module.register_forward_hook(note, with_kwargs=True) for module in model.modules()]
    try:
        model(sample_input)
    finally:
        for hook in hooks:
            hook.remove()
    calls[model] = [*own, *calls[model]]
    return calls


def _flattened(model: nn.Module, path: str, calls: dict[nn.Module, list[Any]]) -> list[Link]:
    """Returns the layers of the model; its own call is the first one.

    Raises:
        _NoChainError: the model is not a chain.
    """
    own, *inner = calls[model]
    if not isinstance(own, _Call):
        raise _NoChainError(own)
    if not any(True for _ in model.children()):
        return [Link(type(model).__name__, model, None)]
    return _links(path, own, inner, calls)


def _links(path: str, outer: _Call, inner: list[Any], calls: dict[nn.Module, list[Any]]) -> list[Link]:
    """Returns the layers of a module that was called once and made these calls of its children."""
    names = {child: name for name, child in outer.module.named_children()}
    if not inner:
        raise _NoChainError(f"{path or type(outer.module).__name__} calls none of its children")
    links: list[Link] = []
    before, writes, last = outer.given, outer.begun, "its input"
    for call in inner:
        if not isinstance(call, _Call):
            raise _NoChainError(call)
        name = f"{path}.{names[call.module]}" if path else names[call.module]
        if not _is_same(before, call.given) or call.begun != writes:
            raise _NoChainError(f"{name} does not read exactly the output of {last}")
        layers = _layers(name, call, calls)
        if before.shape != call.given.shape:
            layers[0] = replace(layers[0], reshaped=tuple(call.given.shape[1:]))
        links += layers
        before, writes, last = call.made, call.ended, name
    if not _is_same(before, outer.made) or before.shape != outer.made.shape or outer.ended != writes:
        raise _NoChainError(f"there is computation after {last}")
    return links


def _layers(name: str, call: _Call, calls: dict[nn.Module, list[Any]]) -> list[Link]:
    """Returns the layers of a child: the layers of its chain, else the child itself."""
    inner = calls[call.module]
    whole = [Link(f"{name} {type(call.module).__name__}", call.module, None)]
    # The calls of a module that runs twice cannot be distinguished.
    siblings = [other for children in calls.values() for other in children if isinstance(other, _Call)]
    if not inner or sum(other.module is call.module for other in siblings) > 1:
        return whole
    try:
        return _links(name, call, inner, calls)
    except _NoChainError:
        return whole


def _writes(tensor: torch.Tensor) -> int:
    """Returns the number of in-place writes to a tensor or its base."""
    return tensor._version  # noqa: SLF001  # Autograd's counter has no public name.


def _is_same(made: torch.Tensor, given: torch.Tensor) -> bool:
    """Whether a layer's input is the given output, or a reshaped view of all of it, sample by sample."""
    if made is given:
        return True
    same = made.data_ptr() == given.data_ptr() and made.numel() == given.numel() and made.dtype == given.dtype
    return same and made.is_contiguous() and given.is_contiguous() and made.shape[:1] == given.shape[:1]


def _check_shared(links: list[Link]) -> None:
    """Checks that no layers share parameters: a plan gives each layer its own GPUs.

    Raises:
        UnsupportedError: two layers share parameters.
    """
    owners: dict[nn.Parameter, str] = {}
    for link in links:
        for parameter in link.module.parameters():
            owner = owners.setdefault(parameter, link.name)
            if owner != link.name:
                raise UnsupportedError(
                    f"{owner} and {link.name} share parameters: a plan gives each layer its own GPUs"
                )
