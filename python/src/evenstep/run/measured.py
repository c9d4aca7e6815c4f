"""Costs that only the samples themselves tell, such as the tokens of a text: measured once, before the training.

The alternative is a buffer of samples that rank 0 reads ahead. Then rank 0 tokenizes for all ranks in each epoch, and a
resume has to read the buffer's samples again. Measured costs only balance the ranks, so each sample still occurs once
per epoch, even if a later epoch tokenizes it in another way.
"""

import logging
import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, Subset

from evenstep.run.loader import check
from evenstep.samples.costs import checked

#: Number of samples whose costs are compared with a stored file.
_COMPARED = 32
#: Number of samples that a DataLoader's worker returns together.
_TOGETHER = 256

log = logging.getLogger(__name__)


def measure_costs(
    dataset: Any,
    cost: Callable[[Any], float],
    *,
    num_workers: int = 0,
    cache: str | os.PathLike[str] | None = None,
) -> torch.Tensor:
    """Returns the cost of each sample, float64, shape (samples,), for ``cost=`` of :meth:`evenstep.Job.loader`.

    Each rank reads its part of the data set, and all ranks get all costs. All ranks must call it together, after
    ``init_process_group``; without a process group it measures alone.

    Args:
        dataset: a map-style data set, with a length and random access.
        cost: a function that returns the cost of a sample of the data set, such as its number of tokens.
        num_workers: number of processes per rank that read the samples; 0 reads them here.
        cache: file for the costs, on a shared or each host's own file system. If it exists on all hosts and has the
            costs of some samples, which are read again, no others are read.

    Raises:
        SettingError: the data set has no random access, or a cost is not a finite number above 0.

    Example:
        >>> evenstep.measure_costs(["a", "two", "three"], len).tolist()
        [1.0, 3.0, 5.0]
    """
    check(dataset, {})
    begun, samples = time.monotonic(), len(dataset)
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    measured = _Measured(dataset, cost)
    path = None if cache is None else Path(cache)
    stored = None if path is None else _stored(path, measured)
    have_all = path is not None and all(_gathered(stored is not None, ranks))
    if have_all and stored is not None:
        return stored
    reader = DataLoader(Subset(measured, range(rank, samples, ranks)), batch_size=_TOGETHER, num_workers=num_workers)
    own = torch.cat([torch.empty(0, dtype=torch.float64), *reader])
    costs = torch.empty(samples, dtype=torch.float64)
    for other, part in enumerate(_gathered(own, ranks)):
        costs[other::ranks] = part
    log.info("measured the costs of %s samples in %s s", samples, round(time.monotonic() - begun, 1))
    if path is not None and os.environ.get("LOCAL_RANK", "0") == "0":
        _store(path, costs)
    return costs


class _Measured(Dataset[float]):
    """The costs of a data set's samples."""

    def __init__(self, dataset: Any, cost: Callable[[Any], float]) -> None:
        self._dataset = dataset
        self._cost = cost

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> float:
        return checked(self._cost(self._dataset[index]), index, None)


def _gathered(own: Any, ranks: int) -> list[Any]:
    """Returns the values of all ranks."""
    if ranks == 1:
        return [own]
    values = [None] * ranks
    dist.all_gather_object(values, own)
    return values


def _stored(path: Path, measured: _Measured) -> torch.Tensor | None:
    """Returns the costs in a file; None if the file is missing or belongs to other samples."""
    if not path.exists():
        return None
    try:
        costs = torch.load(path, weights_only=True)
    except Exception as error:  # noqa: BLE001  # Unpickling raises errors of many types.
        log.warning("%s is not readable and is written again: %s", path, error)
        return None
    samples = len(measured)
    if not isinstance(costs, torch.Tensor) or costs.dtype != torch.float64 or tuple(costs.shape) != (samples,):
        log.warning("%s does not have the costs of %s samples and is written again", path, samples)
        return None
    for index in torch.linspace(0, samples - 1, min(samples, _COMPARED), dtype=torch.float64).long().tolist():
        if (cost := measured[index]) != costs[index]:
            there = costs[index].item()
            log.warning("%s: sample %s costs %g, not %g; the file is written again", path, index, cost, there)
            return None
    return costs


def _store(path: Path, costs: torch.Tensor) -> None:
    """Writes a file as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        torch.save(costs, partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
