"""Profiles of models, the input of burst-parallel plans (``docs/explanation/burst.md``)."""

import copy
import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn

from evenstep.errors import SettingError, UnsupportedError
from evenstep.profiling.profile_layers import Link, chain
from evenstep.profiling.profile_measure import VALUE_BYTES, Measured, measure

#: Maximum number of local batches in a profile.
BATCHES_MAX = 64
#: Maximum number of passes at each local batch.
REPEATS_MAX = 10_000


@dataclass(frozen=True)
class Layer:
    """The measurements of one layer, by local batch."""

    name: str
    #: Microseconds of forward and backward together.
    compute_us: dict[int, float]
    #: Microseconds of the forward pass.
    forward_us: dict[int, float]
    #: Number of trained parameters, in values of four bytes.
    parameters: int
    #: Number of four-byte output values per sample.
    outputs: int
    #: Bytes kept between forward and backward.
    activation_bytes: dict[int, int]


@dataclass(frozen=True)
class Profile:
    """The measurements of a model's layers on one device, for ``evenstep-predictor plan --profile``."""

    model: str
    device: str
    layers: tuple[Layer, ...]

    def to_dict(self) -> dict[str, Any]:
        """Returns the profile as a JSON object."""
        return {
            "model": self.model,
            "device": self.device,
            "layers": [
                {
                    "name": layer.name,
                    "compute_us": _keyed(layer.compute_us),
                    "forward_us": _keyed(layer.forward_us),
                    "parameters": layer.parameters,
                    "outputs": layer.outputs,
                    "activation_bytes": _keyed(layer.activation_bytes),
                }
                for layer in self.layers
            ],
        }

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the profile to a JSON file.

        Raises:
            OSError: the file cannot be written.
        """
        Path(path).write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")


def profile(
    model: nn.Module,
    sample_input: torch.Tensor,
    batches: Sequence[int],
    *,
    device: torch.device | str | None = None,
    warm_up: int = 3,
    repeats: int = 20,
) -> Profile:
    """Measures the forward and backward time of each layer of a model at several local batches.

    The model must be a chain: each module reads one tensor, the output of the previous module. A module that is not a
    chain inside becomes one layer. A copy of the model is measured in training mode, so the model does not change. The
    loss and the optimizer are not included.

    Args:
        model: the module, not wrapped in DDP.
        sample_input: one sample or more, along the first axis; repeated to fill a batch.
        batches: local batches to measure at, such as ``[1, 2, 4, 8, 16, 32]``.
        device: the device to measure on; None for the device of the model.
        warm_up: number of passes at each batch that are not counted.
        repeats: number of passes at each batch; the middle half of them by length counts.

    Raises:
        SettingError: an argument breaks its rule.
        UnsupportedError: the model is not a chain; the message names the place.

    Example:
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> measured = evenstep.profile(net, torch.ones(1, 4), [1, 2], repeats=3)
        >>> [layer.parameters for layer in measured.layers]
        [40, 0, 18]
    """
    sizes = _checked(sample_input, batches, warm_up, repeats)
    place = _place(model, sample_input, device)
    if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        raise UnsupportedError(f"{type(model).__name__} runs on several GPUs: profile the wrapped module instead")
    own = copy.deepcopy(model).to(place).train()
    own.zero_grad(set_to_none=True)
    with torch.random.fork_rng([place] if place.type == "cuda" else []), torch.enable_grad():
        links = chain(own, _batch(sample_input, max(len(sample_input), 2), place))
        measured = {
            size: measure(links, _batch(sample_input, size, place), warm_up=warm_up, repeats=repeats) for size in sizes
        }
    layers = (_layer(link, {size: at[number] for size, at in measured.items()}) for number, link in enumerate(links))
    return Profile(type(model).__name__, _device_name(place), tuple(layers))


def _checked(sample_input: torch.Tensor, batches: Sequence[int], warm_up: int, repeats: int) -> list[int]:
    """Returns the batches in order, without duplicates.

    Raises:
        SettingError: an argument breaks its rule.
    """
    if sample_input.dim() < 1 or len(sample_input) < 1:
        raise SettingError(
            f"sample_input of shape {tuple(sample_input.shape)}: must have at least one sample along its first axis"
        )
    sizes = sorted(set(batches))
    if not 1 <= len(sizes) <= BATCHES_MAX or sizes[0] < 1:
        raise SettingError(
            f"batches={list(batches)[:BATCHES_MAX]}: must be 1 to {BATCHES_MAX} batch sizes, each at least 1"
        )
    if warm_up < 0 or not 1 <= repeats <= REPEATS_MAX:
        raise SettingError(
            f"warm_up={warm_up}, repeats={repeats}: warm_up must be at least 0, and repeats 1 to {REPEATS_MAX}"
        )
    return sizes


def _place(model: nn.Module, sample_input: torch.Tensor, device: torch.device | str | None) -> torch.device:
    if device is not None:
        return torch.device(device)
    return next((parameter.device for parameter in model.parameters()), sample_input.device)


def _batch(sample_input: torch.Tensor, size: int, place: torch.device) -> torch.Tensor:
    """Returns a batch of this size, repeating the given samples as needed."""
    return sample_input.detach()[torch.arange(size, device=sample_input.device) % len(sample_input)].to(place)


def _layer(link: Link, measured: dict[int, Measured]) -> Layer:
    trained = (parameter for parameter in link.module.parameters() if parameter.requires_grad)
    parameter_bytes = sum(parameter.numel() * parameter.element_size() for parameter in trained)
    return Layer(
        name=link.name,
        compute_us={size: at.forward_us + at.backward_us for size, at in measured.items()},
        forward_us={size: at.forward_us for size, at in measured.items()},
        parameters=-(-parameter_bytes // VALUE_BYTES),
        outputs=max(at.outputs for at in measured.values()),
        activation_bytes={size: at.activation_bytes for size, at in measured.items()},
    )


def _keyed(table: dict[int, Any]) -> dict[str, Any]:
    return {str(size): value for size, value in table.items()}


def _device_name(place: torch.device) -> str:
    if place.type == "cuda":
        return torch.cuda.get_device_name(place)
    return f"{place.type} {platform.machine()}, {torch.get_num_threads()} threads"
