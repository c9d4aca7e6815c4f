"""DataLoaders whose batches can be sized by a plan: the samples of an iteration stay the same.

Iteration i of the order has the batches i of all ranks, one after the other, so even shares are the script's own
batches.
"""

import copy
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from evenstep.errors import SettingError, UnsupportedError
from evenstep.run import loader as own

#: Settings of a DataLoader that evenstep's loader takes over.
_KEPT = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator")
_KEPT_WITH_WORKERS = ("prefetch_factor", "persistent_workers")


def why_not(loader: Any, rank: int, ranks: int) -> str:
    """Returns why a plan cannot size the batches of a DataLoader; empty if it can."""
    sampler, batches = getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)
    kind: type[Any] = type(sampler)
    if type(loader) is not DataLoader:
        return f"{type(loader).__name__} is a DataLoader of its own kind"
    try:
        own.check(loader.dataset, {"in_order": getattr(loader, "in_order", True)})
    except SettingError as error:
        return str(error)
    if batches is None:
        return "the data set gives whole batches (batch_size=None)"
    if _is_sharded(batches):
        given, composer = (batches.num_processes, batches.process_index), _untapped(batches)
        is_ours = type(composer) is BatchSampler and not batches.split_batches
    else:
        given, composer = (getattr(sampler, "num_replicas", 0), getattr(sampler, "rank", 0)), batches
        is_ours = type(composer) is BatchSampler and batches.sampler is sampler
        if is_ours and kind is not DistributedSampler:
            return f"the DataLoader has a {kind.__name__}, not PyTorch's DistributedSampler"
    if not is_ours:
        return f"{type(composer).__name__} composes the batches, or Accelerate splits them"
    return "" if given == (ranks, rank) else f"the sampler is for rank {given[1]} of {given[0]}, not {rank} of {ranks}"


def source(loader: Any) -> "Sampled | Sharded":
    """Returns the source of a DataLoader's samples, if :func:`why_not` is empty."""
    return Sharded(loader) if _is_sharded(loader.batch_sampler) else Sampled(loader)


def settings(loader: Any) -> dict[str, Any]:
    """Returns the settings of a DataLoader that do not size its batches."""
    kept = _KEPT + (_KEPT_WITH_WORKERS if loader.num_workers else ())
    return {name: getattr(loader, name) for name in kept}


class Sampled:
    """The samples of a DistributedSampler."""

    def __init__(self, loader: Any) -> None:
        """Reads the sampler of a DataLoader."""
        sampler = self._sampler = loader.sampler
        self.ranks, self.batch_size, self.drop_last = sampler.num_replicas, loader.batch_size, loader.drop_last
        #: Values that must be the same on all ranks and in each epoch.
        self.shape = (
            len(sampler.dataset), sampler.total_size, sampler.shuffle, sampler.seed, sampler.drop_last,
            self.batch_size, self.drop_last,
        )  # fmt: skip

    @property
    def epoch(self) -> int:
        """The epoch that the script has set."""
        return int(self._sampler.epoch)

    def samples(self, position: int) -> int:
        """Returns the number of samples in the script's own batch."""
        return int(min(self.batch_size, self._sampler.num_samples - position * self.batch_size))

    def begins(self) -> torch.Tensor:
        """Returns the order of an epoch that begins, int64.

        Raises:
            UnsupportedError: even shares would not be the batches of the sampler on this rank.
        """
        whole = copy.copy(self._sampler)
        # One replica that has the padded samples of all.
        whole.num_replicas, whole.rank, whole.num_samples = 1, 0, whole.total_size
        batches = torch.tensor(list(whole), dtype=torch.int64).view(-1, self.ranks).T.split(self.batch_size, dim=1)
        if [index for batch in batches for index in batch[self._sampler.rank].tolist()] != list(self._sampler):
            raise UnsupportedError("the DistributedSampler draws other samples than PyTorch's")
        return torch.cat([batch.flatten() for batch in batches])

    #: Returns the order of the epoch that is being read.
    running = begins

    def close(self) -> None:
        """Does nothing: the sampler did not change."""


class Sharded:
    """The samples of Accelerate's loaders: all ranks draw the batches of all, and each reads its own."""

    drop_last = False

    def __init__(self, loader: Any) -> None:
        """Reads the batches that a DataLoader draws from now on."""
        shard = self._shard = loader.batch_sampler
        self.ranks, self.batch_size = shard.num_processes, shard.batch_size
        self._running: torch.Tensor | None = None
        if not isinstance(shard.batch_sampler, _Tap):
            shard.batch_sampler = _Tap(shard.batch_sampler)
        self._tap: _Tap = shard.batch_sampler
        self._begun = self._tap.begun
        self.shape = (len(loader.dataset), len(shard), shard.even_batches, shard.drop_last, self.batch_size)

    #: Accelerate's ranks have the same random numbers, or the same seed.
    epoch = 0

    def samples(self, _: int) -> int:
        """Returns the number of samples in the script's own batch."""
        return int(self.batch_size)

    def running(self) -> torch.Tensor:
        """Returns the order of the epoch that is being read, int64.

        Raises:
            UnsupportedError: ranks have different batches in an iteration.
        """
        if self._running is None:
            has_begun = self._tap.begun > self._begun
            self._running = self._order(self._tap.whole()) if has_begun else self.begins()
        return self._running

    def begins(self) -> torch.Tensor:
        """Returns the order of an epoch that begins, int64."""
        return self._order(list(self._tap.inner))

    def close(self) -> None:
        """Ends the reading of what is drawn."""
        self._shard.batch_sampler = self._tap.inner

    def _order(self, batches: list[list[int]]) -> torch.Tensor:
        by_rank = []
        for rank in range(self.ranks):
            shard = copy.copy(self._shard)
            shard.process_index, shard.batch_sampler = rank, [list(batch) for batch in batches]
            by_rank.append(list(shard))
        if {len(batch) for one in by_rank for batch in one} != {self.batch_size} or len({*map(len, by_rank)}) > 1:
            raise UnsupportedError("Accelerate gives ranks different numbers of samples in an iteration")
        return torch.tensor([index for batches in zip(*by_rank, strict=True) for batch in batches for index in batch])


class _Tap:
    """A batch sampler that keeps what is drawn from another one."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        #: Number of epochs that were begun.
        self.begun = 0
        self._live: Iterator[Any] = iter(())
        self._seen: list[Any] = []
        self._drawn: deque[Any] = deque()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[Any]:
        self._live, self._seen, self._drawn = iter(self.inner), [], deque()
        self.begun += 1
        while True:
            if not self._drawn:
                try:
                    batch = next(self._live)
                except StopIteration:
                    return
                self._seen.append(list(batch))
                self._drawn.append(batch)
            yield self._drawn.popleft()

    def whole(self) -> list[Any]:
        """Returns all batches of the epoch that is being read, also those that will be."""
        rest = list(self._live)
        self._drawn += rest
        self._seen += map(list, rest)
        return self._seen


def _is_sharded(batches: Any) -> bool:
    return type(batches).__name__ == "BatchSamplerShard" and type(batches).__module__.startswith("accelerate.")


def _untapped(shard: Any) -> Any:
    return shard.batch_sampler.inner if isinstance(shard.batch_sampler, _Tap) else shard.batch_sampler
