"""Finds the models that a script trains, including those that it did not pass to evenstep."""

import gc
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from evenstep.errors import UnsupportedError
from evenstep.gradients import fsdp

#: Wrappers whose ranks hold flat parts of all parameters, without the names and shapes of the model.
_FLAT = {"FullyShardedDataParallel", "DeepSpeedEngine"}

#: The attribute with a module's number.
_NUMBER = "_evenstep_number"


class Models:
    """The trained modules of this process, with a name for each of their tensors."""

    def __init__(self) -> None:
        """Searches for the models that exist now.

        Raises:
            UnsupportedError: the parameters of a model cannot be compared.
        """
        self.roots = _roots()
        if flat := {type(module).__name__ for _, module in self.modules()} & _FLAT:
            raise UnsupportedError(
                f"evenstep verify cannot compare the parameters of {flat.pop()}, which are flat parts of the model's: "
                "verify the script with DistributedDataParallel or fully_shard"
            )
        for root in self.roots:
            # The optimizer has the shards; a pass without gradients may leave whole parameters.
            fsdp.reshard(root)
        named = [
            (name, tensor)
            for root in self.roots
            for name, tensor in (*root.named_parameters(), *root.named_buffers())
            if tensor is not None
        ]
        #: Parameters and buffers. If two models have the same names, later ones get a number.
        self.tensors: dict[str, torch.Tensor] = {}
        for name, tensor in named:
            self.tensors[_free(name, self.tensors)] = tensor
        self._names = {id(tensor): name for name, tensor in self.tensors.items()}

    def named(self, optimizer: Optimizer) -> dict[str, torch.Tensor]:
        """Returns an optimizer's parameters with a gradient, by name."""
        found: dict[str, torch.Tensor] = {}
        for at, group in enumerate(optimizer.param_groups):
            for place, parameter in enumerate(group["params"]):
                if parameter.grad is not None:
                    unknown = f"{type(optimizer).__name__}.{at}.{place}"
                    found[_free(self._names.get(id(parameter), unknown), found)] = parameter
        return found

    def knows(self, optimizer: Optimizer) -> bool:
        """Returns whether all parameters of an optimizer have unique names."""
        return all(id(parameter) in self._names for group in optimizer.param_groups for parameter in group["params"])

    def modules(self) -> Iterator[tuple[str, torch.nn.Module]]:
        """Yields all modules by name."""
        for root in self.roots:
            yield from root.named_modules()

    def dropouts(self) -> list[str]:
        """Returns the names of modules that drop values at random."""
        return [
            name
            for name, module in self.modules()
            if _drop_rates(module) or (isinstance(module, _DropoutNd) and module.p > 0)
        ]

    def batch_norms(self) -> list[str]:
        """Returns the names of modules that mix the samples of a batch."""
        return [name for name, module in self.modules() if isinstance(module, _BatchNorm) and module.training]

    def make_plain(self) -> None:
        """Switches dropout off and makes batch norm use its running statistics, regardless of ``model.train()``."""

        def evaluates(module: torch.nn.Module, _: Any) -> None:
            module.training = False

        for _, module in self.modules():
            if isinstance(module, _DropoutNd | _BatchNorm):
                module.register_forward_pre_hook(evaluates)
            for rate in _drop_rates(module):
                setattr(module, rate, 0.0)

    def watch(self, forward_begins: Callable[..., None]) -> None:
        """Calls ``forward_begins`` before each module's forward pass."""
        for _, module in self.modules():
            if not isinstance(module, torch.jit.ScriptModule):
                module.register_forward_pre_hook(forward_begins)


def _drop_rates(module: torch.nn.Module) -> list[str]:
    """Returns a module's attributes with a rate for functional dropout.

    Attention and recurrent layers have ``dropout``; other names are ``attention_dropout`` and ``drop_prob``.
    """
    return [name for name, value in vars(module).items() if "drop" in name and isinstance(value, float) and value > 0]


def _roots() -> list[torch.nn.Module]:
    """Returns the models in DDP, and the outermost modules with a parameter of some optimizer."""
    # A look at all objects takes time: DistributedDataParallel is a module too.
    found = _alive(torch.nn.Module, Optimizer)
    wrappers = [module for module in found if isinstance(module, DistributedDataParallel)]
    roots = {id(wrapper.module): wrapper.module for wrapper in wrappers}
    trained = {
        id(parameter)
        for optimizer in found
        if isinstance(optimizer, Optimizer)
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    modules = [
        module
        for module in found
        if isinstance(module, torch.nn.Module) and not isinstance(module, DistributedDataParallel)
    ]
    inner = {id(child) for module in modules for child in module.children()}
    covered = {id(parameter) for root in roots.values() for parameter in root.parameters()}
    for module in modules:
        if id(module) not in inner and {id(parameter) for parameter in module.parameters()} & (trained - covered):
            roots[id(module)] = module
    return sorted(roots.values(), key=_place)


def number_modules() -> None:
    """Numbers the modules that are created from now on, to tell models with the same names apart in all processes."""
    numbers = itertools.count()

    def number(module: torch.nn.Module, *_: Any) -> None:
        vars(module).setdefault(_NUMBER, next(numbers))

    register_module_parameter_registration_hook(number)


def _place(root: torch.nn.Module) -> tuple[Any, ...]:
    """Returns the place of a model among all, the same in all processes: by its names, then by its creation."""
    names = [(name, tuple(parameter.shape)) for name, parameter in root.named_parameters()]
    return (
        type(root).__name__,
        names,
        min((vars(module).get(_NUMBER, 0) for module in _with_parameters(root)), default=0),
    )


def _with_parameters(root: torch.nn.Module) -> Iterator[torch.nn.Module]:
    return (module for module in root.modules() if next(module.parameters(recurse=False), None) is not None)


def _alive(*kinds: type) -> list[object]:
    """Returns all objects of these classes, by their true type: ``isinstance`` makes lazy proxies load packages."""
    objects = gc.get_objects()
    types = {id(kind): kind for kind in map(type, objects)}
    wanted = {number for number, kind in types.items() if issubclass(kind, kinds)}
    return [thing for thing in objects if id(type(thing)) in wanted and hasattr(thing, "__dict__")]


def _free(name: str, taken: dict[str, Any]) -> str:
    free, count = name, 2
    while free in taken:
        free, count = f"{name} ({count})", count + 1
    return free
