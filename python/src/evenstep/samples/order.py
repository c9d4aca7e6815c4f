"""The order of samples: one seeded permutation of the whole data set per epoch, or the indices that a script gives."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from evenstep.errors import SettingError
from evenstep.samples.checksums import checksum
from evenstep.samples.costs import Costs
from evenstep.samples.work import Prior

#: Number of iterations of a stream; practically unlimited.
STREAM_STEPS = 2**32

#: Seeds of successive epochs differ by this odd number (a Weyl sequence), modulo 2^63.
_EPOCH_STRIDE = 0x9E3779B97F4A7C15


#: The indices of an epoch's samples in order: the same for each epoch, or a function of the epoch.
Indices: TypeAlias = Sequence[int] | torch.Tensor | Callable[[int], Sequence[int] | torch.Tensor]


@dataclass(frozen=True, slots=True)
class GivenIndices:
    """The indices that a script gives: any samples of the data set, any of them several times."""

    indices: Indices = field(repr=False, compare=False)
    #: Number of samples in the data set.
    dataset_samples: int
    #: Number of indices in an epoch.
    samples: int
    #: Checksum of the first epoch.
    checksum: int

    @classmethod
    def of(cls, indices: Indices, dataset_samples: int) -> "GivenIndices":
        """Checks the indices of the first epoch.

        Raises:
            SettingError: an index is outside of the data set, or a function returns other indices for the same epoch.
        """
        first = _checked(indices, 0, dataset_samples)
        if callable(indices) and not torch.equal(first, _checked(indices, 0, dataset_samples)):
            raise SettingError(
                "order(0) returned different indices in two calls: must depend only on the epoch, because each rank "
                "and each resumed run calls it; use a generator with a seed made from the epoch"
            )
        # A copy: the script may change its list later.
        return cls(indices if callable(indices) else first.clone(), dataset_samples, len(first), checksum(first))

    def epoch(self, epoch: int) -> torch.Tensor:
        """Returns the indices of an epoch, int64, shape (samples,).

        Raises:
            SettingError: an index is outside of the data set, or the epoch has another number of samples.
        """
        found = _checked(self.indices, epoch, self.dataset_samples)
        if len(found) != self.samples:
            raise SettingError(
                f"order({epoch}) has {len(found)} indices: must have {self.samples} in each epoch, as in epoch 0"
            )
        return found


@dataclass(frozen=True, slots=True)
class Order:
    """The assignment of samples to iterations, the same on every rank.

    Iteration ``step`` of an epoch has the samples from ``step * global_batch`` on of the epoch's permutation. The
    shares of the ranks do not matter. So every sample occurs exactly once per epoch, and a resume needs only (epoch,
    step, seed): no iterations are replayed.
    """

    samples: int
    global_batch: int
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False
    #: Number of micro-batches per iteration. They have equal sizes, except in a remainder that does not divide.
    accumulate: int = 1
    #: The order that a script gives instead of the permutation; any number of times for each sample.
    given: GivenIndices | None = None
    #: The costs of samples; None if all cost the same. ``global_batch`` does not count if they have a budget.
    costs: Costs | None = None
    #: Whether each rank has its own number of passes per iteration, as its memory needs.
    has_own_passes: bool = False
    #: Maximum number of iterations in an epoch, for `evenstep verify`.
    limit: int | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Validates the values.

        Raises:
            SettingError: a number is out of range, or micro-batches would have different sizes.
        """
        if self.samples < 1:
            raise SettingError(f"the data set has {self.samples} samples: must have at least 1")
        if self.costs and self.costs.budget and self.drop_last:
            raise SettingError(
                "drop_last=True with global_tokens: iterations have different numbers of samples, so none is too "
                "small; remove drop_last"
            )
        if self.global_batch < 1:
            raise SettingError(f"global_batch={self.global_batch}: must be at least 1")
        if self.accumulate < 1:
            raise SettingError(f"accumulate={self.accumulate}: must be at least 1")
        if self.has_own_passes and (self.accumulate > 1 or self.costs):
            raise SettingError(
                "micro_batch with accumulate or cost: must be one of them, because each rank then has as many passes "
                "as it needs; with cost, bound them by max_tokens"
            )
        if self.costs is None and self.global_batch % self.accumulate:
            raise SettingError(
                f"global_batch={self.global_batch}: must be a multiple of accumulate={self.accumulate}, so that "
                "micro-batches have equal sizes"
            )
        if self.drop_last and self.samples < self.global_batch:
            raise SettingError(
                f"drop_last=True with global_batch={self.global_batch} leaves no iteration: the data set has only "
                f"{self.samples} samples; lower global_batch"
            )

    @property
    def has_unequal_passes(self) -> bool:
        """Whether the remainder of an epoch does not divide by the number of micro-batches."""
        rest = 0 if self.costs or self.drop_last else self.samples % self.global_batch
        return rest % self.accumulate > 0

    @property
    def is_computed(self) -> bool:
        """Whether the position of each sample is computed where it is read, instead of all positions at once."""
        return self.costs is not None and self.given is None

    @property
    def plan_size(self) -> int:
        """The size of a plan: samples of an iteration, or with costs their mean cost."""
        return self.costs.of_iteration(self.global_batch) if self.costs else self.global_batch

    @property
    def prior(self) -> Prior | None:
        """The quadratic share of the work before any measurement; None without costs."""
        return self.costs.prior if self.costs else None

    @property
    def trained_samples(self) -> int:
        """The number of samples in an epoch that are trained on."""
        has_budget = self.costs and self.costs.budget
        return self.samples if has_budget else min(self.samples, self.steps * self.global_batch)

    @property
    def steps(self) -> int:
        """The number of iterations in an epoch, if they have equal numbers of samples."""
        whole = self.samples // self.global_batch if self.drop_last else -(-self.samples // self.global_batch)
        return whole if self.limit is None else min(whole, self.limit)

    def size(self, step: int) -> int:
        """Returns the number of samples in iteration ``step``, which may belong to the next epoch."""
        begin = step % self.steps * self.global_batch
        return min(self.global_batch, self.samples - begin)

    def checksum(self, epoch: int) -> int:
        """Returns a checksum of an epoch's order and costs, to compare them between ranks."""
        costs = self.costs.checksum if self.costs else 0
        # A computed order depends only on numbers that ranks compare.
        if self.is_computed or not (self.shuffle or self.given):
            return costs
        return checksum(self.permutation(epoch)) ^ costs

    def permutation(self, epoch: int) -> torch.Tensor:
        """Returns the order of all samples in an epoch without costs, int64, shape (samples,).

        Raises:
            SettingError: the script's function returned indices that break a rule.
        """
        if self.given:
            return self.given.epoch(epoch)
        if not self.shuffle:
            return torch.arange(self.samples)
        generator = torch.Generator()
        generator.manual_seed(epoch_seed(self.seed, epoch))
        return torch.randperm(self.samples, generator=generator)


def epoch_seed(seed: int, epoch: int) -> int:
    """Returns the seed of an epoch."""
    return (seed + epoch * _EPOCH_STRIDE) % 2**63


def _checked(indices: Indices, epoch: int, dataset_samples: int) -> torch.Tensor:
    name, found = (f"order({epoch})", indices(epoch)) if callable(indices) else ("order", indices)
    try:
        tensor = torch.as_tensor(found)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SettingError(f"{name} is a {type(found).__name__}: must be a sequence of indices ({error})") from error
    if tensor.ndim != 1 or not len(tensor) or tensor.is_floating_point() or tensor.dtype == torch.bool:
        raise SettingError(
            f"{name} has shape {tuple(tensor.shape)} and type {tensor.dtype}: must be at least one whole number in one "
            "dimension"
        )
    for index in (int(tensor.min()), int(tensor.max())):
        if not 0 <= index < dataset_samples:
            raise SettingError(f"{name} has the index {index}: must be between 0 and {dataset_samples - 1}")
    return tensor.to("cpu", torch.int64)
