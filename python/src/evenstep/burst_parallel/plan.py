"""A burst-parallel plan, as ``evenstep plan --json`` and ``POST /v1/plan/burst`` return it."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from evenstep.errors import SettingError

#: Maximum size of a plan file. The planner's largest plan, 4,194,304 layers times GPUs, is smaller.
FILE_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class PlannedLayer:
    """A layer and its samples."""

    name: str
    #: Number of samples on each rank.
    shares: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The layers in execution order."""

    global_batch: int
    layers: tuple[PlannedLayer, ...]
    #: The rank that runs all layers.
    fastest: int
    #: Memory that this rank needs; 0 if unknown.
    memory_bytes: int


def read_plan(given: str | PathLike[str] | Mapping[str, Any], world_size: int) -> Plan:
    """Returns a plan from its file or its JSON object. GPU i of the plan is rank i.

    Raises:
        SettingError: the file cannot be read, or a value breaks its rule.
    """
    if not isinstance(given, str | PathLike | Mapping):
        raise SettingError(f"plan: {given!r} must be the file or the object that evenstep plan --json prints")
    plan = given if isinstance(given, Mapping) else _read_file(given)
    layers, global_batch = plan.get("layers"), plan.get("global_batch")
    if not isinstance(layers, list) or not layers:
        raise SettingError(f"plan: layers is {layers!r}: must be a list of at least one layer (evenstep plan --json)")
    if not is_count(global_batch) or not global_batch:
        raise SettingError(f"plan: global_batch {global_batch!r} must be a whole number of at least 1")
    if plan.get("gpus") != world_size:
        raise SettingError(
            f"plan: gpus {plan.get('gpus')!r} must be the number of ranks, {world_size}: plan for {world_size} GPUs, "
            "or start as many ranks as the plan has GPUs"
        )
    order = plan.get("gpu_order", [*range(world_size)])
    if not isinstance(order, list) or not all(map(is_count, order)) or sorted(order) != [*range(world_size)]:
        raise SettingError(f"plan: gpu_order {order!r} must contain each of 0 to {world_size - 1} once")
    planned = tuple(_layer(layer, order, global_batch) for layer in layers)
    names = Counter(layer.name for layer in planned)
    if repeated := next((name for name, times in names.items() if times > 1), None):
        raise SettingError(f"plan: layer {repeated!r} occurs {names[repeated]} times: names must be unique")
    memory_bytes = plan.get("memory_bytes", 0)
    if not is_count(memory_bytes):
        raise SettingError(f"plan: memory_bytes {memory_bytes!r} must be a whole number")
    return Plan(global_batch, planned, order[0], memory_bytes)


def _read_file(path: str | PathLike[str]) -> Mapping[str, Any]:
    name = fspath(path)
    try:
        size = Path(name).stat().st_size
        if size > FILE_BYTES_MAX:
            raise SettingError(f"plan {name}: {size} bytes, the maximum is {FILE_BYTES_MAX}")
        plan = json.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, SettingError):
            raise
        raise SettingError(f"plan {name}: {error}; give the output of evenstep plan --json") from None
    if not isinstance(plan, Mapping):
        raise SettingError(f"plan {name}: must be a JSON object, as evenstep plan --json prints it")
    return plan


def _layer(layer: Any, order: list[int], global_batch: int) -> PlannedLayer:
    """Returns a layer. Samples are listed from the fastest GPU to the slowest; GPUs without samples are absent."""
    name = layer.get("name") if isinstance(layer, Mapping) else None
    if not isinstance(name, str) or not name:
        raise SettingError(f"plan: name {name!r} of a layer must be a text with at least one character")
    samples = layer.get("samples")
    if not isinstance(samples, list) or not all(map(is_count, samples)):
        raise SettingError(
            f"plan: samples of layer {name!r} are {samples!r}: must be a list of whole numbers. A profile has none: "
            "plan it first (evenstep plan --json)"
        )
    if len(samples) > len(order):
        raise SettingError(f"plan: layer {name!r} has samples for {len(samples)} GPUs, the plan has {len(order)} GPUs")
    if sum(samples) != global_batch:
        raise SettingError(
            f"plan: samples {samples} of layer {name!r} sum to {sum(samples)}: must be the global batch, {global_batch}"
        )
    shares = [0] * len(order)
    for rank, share in zip(order, samples, strict=False):
        shares[rank] = share
    return PlannedLayer(name, tuple(shares))


def is_count(value: Any) -> bool:
    """Whether a value is a whole number of at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
