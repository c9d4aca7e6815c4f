"""Plans a model where it will run: measures layers and network on the ranks, and plans on rank 0."""

import json
import math
import os
import statistics
import subprocess
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn

from evenstep.burst_parallel.block import Shape, gathered
from evenstep.burst_parallel.cut import cut, opened_modules
from evenstep.burst_parallel.plan import is_count, read_plan
from evenstep.burst_parallel.replicas import check_equal
from evenstep.burst_parallel.routes import Exchange
from evenstep.errors import EvenstepError, SettingError
from evenstep.profiling.profile_measure import VALUE_BYTES
from evenstep.profiling.profiles import Profile, profile
from evenstep.start.group import time_limit
from evenstep.start.local import find_program

#: Maximum size of a message with which the network is measured.
_MESSAGE_BYTES_MAX = 64 << 20

#: Number of messages in a measurement, and of measurements, whose median counts.
_MESSAGES, _REPEATS = 8, 5

#: Number of comparisons of ranks in an iteration, and of values that a rank sends in one.
_COMPARISONS, _COMPARED_VALUES = 3, 16

#: A measurement: the number of bytes that pass one rank, the number of latencies, and the seconds.
Point = tuple[float, float, float]

#: Time limit of the planner, in seconds. It takes less than one for usual models.
_PLANNER_S = 600.0


def auto_plan(
    model: nn.Module,
    sample_input: torch.Tensor | None,
    settings: Mapping[str, Any],
    path: str | PathLike[str] | None,
    memory: Callable[[], int],
) -> Mapping[str, Any]:
    """Returns the plan in a file if it is for this model and run. Otherwise makes it on all ranks and writes the file.

    Args:
        model: the model.
        sample_input: samples.
        settings: the global batch and the limit of amplification.
        path: the file.
        memory: returns the memory of a rank, in bytes.

    Raises:
        SettingError: an argument breaks a rule, or the rules allow no plan.
        UnsupportedError: the model is no chain of layers.
        DivergedError: ranks have different arguments or models.
    """
    many = dist.is_available() and dist.is_initialized()
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if many else (0, 1)
    all_ranks = _together(
        lambda: (_facts(model, sample_input, {"gpus": world_size, **settings}), repr(model), memory()), world_size
    )
    check_equal([facts for facts, *_ in all_ranks])
    (facts, _, memory_bytes), samples = all_ranks[0], cast("torch.Tensor", sample_input)
    # A plan is also for the modules and the memory of rank 0, in which ranks may differ.
    key = zlib.crc32(repr(all_ranks[0]).encode())
    stored: Mapping[str, Any] | None = _together(
        lambda: None if rank or path is None else _stored(path, key, model, world_size), world_size
    )[0]
    if stored is not None:
        return stored
    profiles: list[Profile] = []
    batches: dict[int, int] = _together(
        lambda: _batches(model, samples, facts["global_batch"], world_size), world_size
    )[0]
    for count, batch in batches.items():
        # Only as many ranks as in a plan measure: they may share processors.
        sizes = [batch] if rank < count else []
        of_ranks = _together(partial(_profile, model, samples, sizes), world_size)
        profiles += [each for each in of_ranks if each]
    whole = _merged(profiles)
    own_network = (
        _network(whole, facts["global_batch"], samples.device, rank, world_size) if world_size > 1 else ([], [], [])
    )
    sums, moves, comparisons = (
        fitted([max(same) for same in zip(*of_ranks, strict=True)])
        for of_ranks in zip(*gathered(own_network, world_size), strict=True)
    )

    def plan() -> Any:
        if rank:
            return None
        words = {
            "global-batch": facts["global_batch"],
            "gpus": world_size,
            "counts": ",".join(map(str, batches)),
            "bandwidth": moves[0],
            "latency-us": 1e6 * moves[1],
            "memory-bytes": memory_bytes,
            "amplification": facts["amplification"],
        }
        made = _planned(_tables(whole, batches, sums, comparisons[1]), words)
        read_plan(made, world_size)
        if path is not None:
            _write(path, {**made, "made_for": key})
        return made

    own: Mapping[str, Any] = _together(plan, world_size)[0]
    return own


def _together(act: Callable[[], Any], world_size: int) -> list[Any]:
    """Returns what an act returns on each rank. If one fails, all ranks raise its error."""
    try:
        own = act()
    except Exception as error:  # noqa: BLE001  # Other ranks wait for this one.
        own = error
    return gathered(own, world_size)


def _profile(model: nn.Module, samples: torch.Tensor, sizes: Sequence[int]) -> Profile | None:
    return profile(model, samples, sizes, repeats=10) if sizes else None


def _facts(model: nn.Module, sample_input: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a plan is made for."""
    if not isinstance(sample_input, torch.Tensor) or not sample_input.dim():
        raise SettingError("plan='auto': sample_input must be a tensor with samples along its first axis")
    global_batch, limit = settings["global_batch"], settings["amplification"]
    if not is_count(global_batch) or not global_batch:
        raise SettingError(f"plan='auto': global_batch={global_batch!r} must be a whole number of at least 1")
    if limit is not None and not (isinstance(limit, int | float) and math.isfinite(limit)):
        raise SettingError(f"plan='auto': amplification={limit!r} must be a finite number of at least 1")
    values = {name: (tuple(value.shape), str(value.dtype)) for name, value in model.state_dict().items()}
    return {"plan": "auto", **settings, "shape and type of samples": Shape.of(sample_input), "model": values}


def _batches(model: nn.Module, samples: torch.Tensor, global_batch: int, world_size: int) -> dict[int, int]:
    """Returns the numbers of ranks that a layer may have, the powers of two and all ranks, with their local batch."""
    counts = sorted({1 << bit for bit in range(world_size.bit_length())} | {world_size})
    if any(count <= global_batch < 2 * count for count in counts[1:]):
        try:
            profile(model, samples, [1], warm_up=0, repeats=1)
        except ValueError:
            # Batch norm needs more than one value per channel.
            counts = [count for count in counts if count == 1 or 2 * count <= global_batch]
    return {count: -(-global_batch // count) for count in counts if count <= global_batch}


def _stored(path: str | PathLike[str], key: int, model: nn.Module, world_size: int) -> Mapping[str, Any] | None:
    """Returns the plan in a file; None if another one must be made, which can be written there."""
    plan = _read(path, key, model, world_size)
    if plan is None and not os.access(Path(path).parent, os.W_OK):
        raise SettingError(f"path {fspath(path)}: its folder must exist and be writable: create it")
    return plan


def _read(path: str | PathLike[str], key: int, model: nn.Module, world_size: int) -> Mapping[str, Any] | None:
    """Returns the plan in a file; None if it is for another model or run, or if there is no file."""
    name = fspath(path)
    try:
        plan = json.loads(Path(name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise SettingError(f"path {name}: {error}: must be a plan of evenstep.burst, or absent") from None
    if not isinstance(plan, dict) or "layers" not in plan:
        raise SettingError(f"path {name}: must be a plan of evenstep.burst, or absent")
    if plan.get("made_for") != key:
        return None
    try:
        read = read_plan(plan, world_size)
        cut(model, read, opened_modules(model, read))
    except EvenstepError:
        # The forward pass is another one.
        return None
    return plan


def _write(path: str | PathLike[str], plan: Mapping[str, Any]) -> None:
    """Replaces a file as a whole."""
    name = fspath(path)
    Path(f"{name}.part").write_text(json.dumps(plan) + "\n", encoding="utf-8")
    Path(f"{name}.part").replace(name)


def _merged(profiles: Sequence[Profile]) -> Profile:
    """Returns one profile with the times of the slowest rank."""

    def slowest(tables: Sequence[Mapping[int, Any]]) -> dict[int, Any]:
        return {
            size: max(table.get(size, 0) for table in tables)
            for size in sorted({size for table in tables for size in table})
        }

    layers = []
    for same in zip(*(each.layers for each in profiles), strict=True):
        tables = {
            name: slowest([getattr(layer, name) for layer in same])
            for name in ("compute_us", "forward_us", "activation_bytes")
        }
        layers.append(replace(same[0], **tables))
    return replace(profiles[0], layers=tuple(layers))


def _network(
    whole: Profile, global_batch: int, device: torch.device, rank: int, world_size: int
) -> tuple[list[Point], list[Point], list[Point]]:
    """Returns measurements of gradient sums and moves, at the sizes of this model, and of a comparison of ranks."""
    exchange = Exchange(rank, lambda: None, None)

    def seconds(act: Callable[[], Any]) -> float:
        act()
        times = []
        for _ in range(_REPEATS):
            dist.barrier()
            _wait(device)
            begun = time.perf_counter()
            for _ in range(_MESSAGES):
                act()
            _wait(device)
            times.append((time.perf_counter() - begun) / _MESSAGES)
        return statistics.median(times)

    sums: list[Point] = []
    moves: list[Point] = []
    for size in _few(VALUE_BYTES * layer.parameters for layer in whole.layers):
        values = torch.zeros(-(-size // VALUE_BYTES), device=device)
        passed = 2 * (world_size - 1) / world_size * size
        sums.append((passed, 2.0 * (world_size - 1), seconds(partial(dist.all_reduce, values))))
    for size in _few(VALUE_BYTES * layer.outputs * global_batch for layer in whole.layers):
        part = -(-size // (world_size - 1))
        to_first = [part if rank else 0, *[0] * (world_size - 1)]
        from_others = [0, *[0 if rank else part] * (world_size - 1)]
        there = torch.zeros(sum(to_first), 1, dtype=torch.uint8, device=device)
        back = torch.zeros(sum(from_others), 1, dtype=torch.uint8, device=device)

        moves.append((part * (world_size - 1), 1.0, seconds(partial(exchange, there, to_first, from_others))))
        moves.append((part * (world_size - 1), 1.0, seconds(partial(exchange, back, from_others, to_first))))
    small = torch.zeros(world_size * _COMPARED_VALUES, dtype=torch.float64)
    group: Any = dist.new_group(None, time_limit(), "gloo")
    compared = seconds(partial(dist.all_to_all_single, torch.empty_like(small), small, group=group))
    dist.destroy_process_group(group)
    return sums, moves, [(0.0, 1.0, compared)]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _few(sizes: Iterable[int]) -> list[int]:
    """Returns the smallest, the middle and the largest size."""
    known = sorted({min(size, _MESSAGE_BYTES_MAX) for size in sizes if size})
    return sorted({known[at] for at in (0, len(known) // 2, -1)}) if known else []


def fitted(points: Sequence[Point]) -> tuple[float, float]:
    """Returns bandwidth, in bytes per second, and latency, in seconds, with the least sum of squared relative errors.

    Times are ``bytes / bandwidth + count * latency``.
    """
    rows = [(passed / seconds, count / seconds) for passed, count, seconds in points]
    bb, bc, cc = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    b, c = (sum(row[i] for row in rows) for i in (0, 1))
    if not rows:
        return 1e12, 0.0
    determinant = bb * cc - bc * bc
    inverse, latency = (b * cc - c * bc, c * bb - b * bc) if determinant > 0 else (0.0, 0.0)
    if inverse <= 0:
        return 1e12, c / cc
    return (determinant / inverse, latency / determinant) if latency > 0 else (bb / b, 0.0)


def _tables(whole: Profile, batches: Mapping[int, int], sums: tuple[float, float], compared_s: float) -> dict[str, Any]:
    """Returns a profile by number of ranks, from the local batch of each number.

    The layers of a block have one sum, which overlaps with the backward passes of earlier blocks. So only the sum of
    the first block is waited for, and latencies count once. So do the comparisons of ranks: in the forward pass, for
    targets, and in the backward pass.
    """
    bandwidth, latency_s = sums
    tables = whole.to_dict()
    for at, (table, layer) in enumerate(zip(tables["layers"], whole.layers, strict=True)):
        del table["compute_us"], table["forward_us"]
        table["cost_us"] = {}
        for count, batch in batches.items():
            passed = 2 * (count - 1) / count * VALUE_BYTES * layer.parameters
            waits_s = 2 * (count - 1) * latency_s + _COMPARISONS * compared_s if not at else 0.0
            compute_us = layer.compute_us[batch]
            table["cost_us"][str(count)] = compute_us + 1e6 * (passed / bandwidth + waits_s)
    return tables


def _planned(tables: Mapping[str, Any], words: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the plan of the planner."""
    given = [f"--{name}={value}" for name, value in words.items() if value is not None]
    command = [str(find_program("evenstep-predictor")), "plan", "--profile=-", "--json", *given]
    ended = subprocess.run(  # noqa: S603  # Our own program, without a shell.
        command, input=json.dumps(tables), capture_output=True, text=True, check=False, timeout=_PLANNER_S
    )
    if ended.returncode:
        raise SettingError(f"plan='auto': {ended.stderr.strip()}")
    plan: dict[str, Any] = json.loads(ended.stdout)
    return plan
