"""DataLoaders whose batches can be sized by a plan: the samples of an iteration stay the same."""

import copy
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from evenstep.errors import SettingError
from evenstep.run import loader as own

#: Settings of a DataLoader that evenstep's loader takes over.
_KEPT = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator")
_KEPT_WITH_WORKERS = ("prefetch_factor", "persistent_workers")

#: What decides the samples of each iteration, besides the epoch.
Shape = tuple[Any, ...]


def why_not(loader: Any, rank: int, ranks: int) -> str:
    """Returns why a plan cannot size the batches of a DataLoader; empty if it can."""
    sampler, batches = getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)
    if type(loader) is not DataLoader:
        return f"{type(loader).__name__} is a DataLoader of its own kind"
    try:
        own.check(loader.dataset, {"in_order": getattr(loader, "in_order", True)})
    except SettingError as error:
        return str(error)
    if batches is None:
        return "the data set gives whole batches (batch_size=None)"
    if type(batches) is not BatchSampler or batches.sampler is not sampler:
        return f"{type(batches).__name__} composes the batches"
    if type(sampler) is not DistributedSampler:
        return f"the DataLoader has a {type(sampler).__name__}, not PyTorch's DistributedSampler"
    if (sampler.num_replicas, sampler.rank) != (ranks, rank):
        return f"the DistributedSampler is for rank {sampler.rank} of {sampler.num_replicas}, not {rank} of {ranks}"
    return ""


def shape(loader: Any) -> Shape:
    """Returns what must be the same on all ranks, and in each epoch, so that a plan can size the batches."""
    sampler = loader.sampler
    return (
        len(sampler.dataset), sampler.total_size, sampler.shuffle, sampler.seed, sampler.drop_last,
        loader.batch_size, loader.drop_last,
    )  # fmt: skip


def order(loader: Any) -> torch.Tensor:
    """Returns the samples of the sampler's current epoch in the order of iterations, int64.

    Iteration i has the batches i of all ranks, one after the other, so even shares are the script's own batches.
    """
    whole = copy.copy(loader.sampler)
    ranks, size = whole.num_replicas, loader.batch_size
    # One replica that has the padded samples of all.
    whole.num_replicas, whole.rank, whole.num_samples = 1, 0, whole.total_size
    indices = torch.tensor(list(whole), dtype=torch.int64)
    by_rank = indices.view(-1, ranks).T
    return torch.cat([batches.flatten() for batches in by_rank.split(size, dim=1)])


def agrees(loader: Any) -> bool:
    """Returns whether even shares of :func:`order` are the batches of the loader's own sampler on this rank."""
    sampler, size, at = loader.sampler, loader.batch_size, 0
    indices, mine = order(loader), list[int]()
    while at < len(indices):
        share = min(size * sampler.num_replicas, len(indices) - at) // sampler.num_replicas
        mine += indices[at + sampler.rank * share :][:share].tolist()
        at += share * sampler.num_replicas
    return mine == list(sampler)


def settings(loader: Any) -> dict[str, Any]:
    """Returns the settings of a DataLoader that do not size its batches."""
    kept = _KEPT + (_KEPT_WITH_WORKERS if loader.num_workers else ())
    return {name: getattr(loader, name) for name in kept}
