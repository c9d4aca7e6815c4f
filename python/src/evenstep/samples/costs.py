"""Costs of samples, such as their numbers of tokens, and the cut of an iteration: the samples of each rank.

Ranks receive only shares. Each rank computes the same cut from the order, the costs and the shares.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, TypeAlias, get_args

import torch

from evenstep._native import Cut, Plan
from evenstep.errors import SettingError
from evenstep.samples.checksums import checksum as checksum_of
from evenstep.samples.work import Prior, Work

#: The cost of each sample, or a function of its index.
SampleCosts: TypeAlias = Sequence[float] | torch.Tensor | Callable[[int], float]

#: How a collate function arranges the samples of a pass.
Layout = Literal["packed", "padded"]

#: Number of samples from which the mean cost is estimated.
_SAMPLED = 4096


@dataclass(frozen=True, slots=True)
class Costs:
    """The lengths of a data set's samples, their limits, and the costs that follow."""

    given: torch.Tensor | Callable[[int], float] = field(repr=False, compare=False)
    #: Checksum of the lengths, of all or of a part.
    checksum: int
    #: Mean length of a part of the samples.
    mean: float
    #: Mean squared length of the same samples.
    mean_square: float
    #: Maximum cost of an iteration; None if it has a fixed number of samples.
    budget: int | None = None
    #: Maximum cost of one forward pass.
    pass_max: int | None = None
    #: Whether a pass computes as many tokens for each sample as its longest one has.
    is_padded: bool = False
    #: Width of a transformer, from which the share of attention in the work follows; None if it is unknown.
    hidden_size: int | None = None

    @classmethod
    def of(
        cls,
        costs: SampleCosts,
        samples: int,
        *,
        budget: int | None = None,
        pass_max: int | None = None,
        is_padded: bool = False,
        hidden_size: int | None = None,
    ) -> "Costs":
        """Checks costs and limits.

        Raises:
            SettingError: they break a rule.
        """
        for name, limit in (("global_tokens", budget), ("max_tokens", pass_max), ("hidden_size", hidden_size)):
            if limit is not None and limit < 1:
                raise SettingError(f"{name}={limit}: must be at least 1")
        limit = min((limit for limit in (budget, pass_max) if limit is not None), default=None)
        part = torch.linspace(0, samples - 1, min(samples, _SAMPLED), dtype=torch.float64).round().long().tolist()
        given: torch.Tensor | Callable[[int], float]
        if callable(costs):
            given, sampled = costs, [checked(costs(index), index, limit) for index in part]
            checksum = checksum_of(torch.tensor(sampled, dtype=torch.float64))
        else:
            given = array = _array(costs, samples)
            is_wrong = ~(torch.isfinite(array) & (array > 0))
            if limit is not None:
                is_wrong |= array > limit
            for wrong in is_wrong.nonzero()[:1].flatten().tolist():
                checked(array[wrong].item(), wrong, limit)
            checksum, sampled = checksum_of(array), array[part].tolist()
        mean = math.fsum(sampled) / len(sampled)
        mean_square = math.fsum(length**2 for length in sampled) / len(sampled)
        return cls(given, checksum, mean, mean_square, budget, pass_max, is_padded, hidden_size)

    @classmethod
    def of_arguments(
        cls,
        cost: SampleCosts | None,
        samples: int,
        global_batch: int | None,
        global_tokens: int | None,
        max_tokens: int | None,
        *,
        hidden_size: int | None,
        layout: Layout,
    ) -> "Costs | None":
        """Returns the checked costs of a data set; None without costs.

        Raises:
            SettingError: an argument breaks its rule.
        """
        if layout not in get_args(Layout):
            raise SettingError(f"layout={layout!r}: must be one of {', '.join(map(repr, get_args(Layout)))}")
        if cost is None:
            given = {"global_tokens": global_tokens, "max_tokens": max_tokens, "hidden_size": hidden_size}
            for name, limit in given.items():
                if limit is not None:
                    raise SettingError(f"{name}={limit}: requires cost=, the number of tokens of each sample")
            return None
        if global_tokens is not None and global_batch is not None:
            raise SettingError(
                f"global_batch={global_batch} and global_tokens={global_tokens}: must be one of them, because each "
                "decides which samples an iteration has"
            )
        is_padded = layout == "padded"
        return cls.of(
            cost, samples, budget=global_tokens, pass_max=max_tokens, is_padded=is_padded, hidden_size=hidden_size
        )

    @property
    def prior(self) -> Prior:
        """The quadratic share before any measurement.

        With width h, the layers of a transformer take ``12 h^2 L + 2 h L^2`` multiplications for L tokens, which is
        proportional to ``L + L^2 / (6 h)`` (Narayanan et al. 2021, appendix; verl).
        """
        return Prior.of(None if self.hidden_size is None else self.mean_square / self.mean / (6 * self.hidden_size))

    def of_samples(self, lengths: Iterable[float], share: float) -> Work:
        """Returns the work of samples in the unit of their lengths; ``share`` is the quadratic share."""
        lengths = tuple(lengths)
        squares = math.fsum(length**2 for length in lengths)
        return Work(math.fsum(lengths), squares * self.mean / self.mean_square, share)

    def of_iteration(self, samples: int) -> int:
        """Returns the mean work of an iteration, at least 1; ``samples`` is their number if there is no budget."""
        return max(1, round(samples * self.mean if self.budget is None else self.budget))

    def at(self, indices: Sequence[int]) -> list[float]:
        """Returns the lengths of samples.

        Raises:
            SettingError: a length breaks a rule.
        """
        if isinstance(self.given, torch.Tensor):
            found: list[float] = self.given[torch.tensor(indices, dtype=torch.int64)].tolist()
            return found
        limit = min((limit for limit in (self.budget, self.pass_max) if limit is not None), default=None)
        return [checked(self.given(index), index, limit) for index in indices]

    def cut(self, plan: Plan, lengths: Sequence[float], share: float, rules: "CutRules") -> "CutIteration":
        """Cuts an iteration in proportion to a plan.

        Args:
            plan: shares and perhaps a tail, in any unit: only their ratios count.
            lengths: the lengths of the iteration's samples in order.
            share: the quadratic share of the work, the same on all ranks.
            rules: the rules for passes.

        Raises:
            SettingError: a sample is longer than a pass may be.
        """
        ranks, chunks = len(plan.shares), plan.tail.chunks if plan.tail else []
        parts = self._parts(lengths, [*plan.batches, *chunks], share, rules)
        sizes = [sum(map(len, part)) for part in parts]
        # Some chunks are smaller than every sample that is left for them.
        parts = [part for at, part in enumerate(parts) if at < ranks or part]
        return CutIteration(
            plan.in_samples(sizes, len(lengths) / sum(lengths)),
            [at for part in parts for positions in part for at in positions],
            [tuple(map(len, part)) for part in parts],
            [self._work([[lengths[at] for at in positions] for positions in part], share) for part in parts],
            share,
        )

    def _parts(
        self, lengths: Sequence[float], weights: Sequence[int], share: float, rules: "CutRules"
    ) -> list[list[list[int]]]:
        cut = Cut(
            [self.of_samples((length,), share).total for length in lengths],
            weights if any(weights) else [1] * len(weights),
            lengths=[math.ceil(length) for length in lengths] if self.pass_max else None,
            max_tokens=self.pass_max,
            padded=self.is_padded,
            least=rules.least,
            passes=rules.passes,
            is_equal=rules.is_equal,
        )
        return [cut.part(at) for at in range(len(weights))]

    def _work(self, passes: Sequence[Sequence[float]], share: float) -> Work:
        """Returns the work of passes as they are computed, with padding."""
        computed = ([max(lengths)] * len(lengths) if self.is_padded else lengths for lengths in passes)
        return self.of_samples(chain.from_iterable(computed), share)


@dataclass(frozen=True, slots=True)
class CutRules:
    """The rules for the passes of a rank."""

    #: Minimum number of passes.
    passes: int
    #: Minimum number of samples in a pass.
    least: int
    #: Whether all ranks have the same number of passes.
    is_equal: bool


@dataclass(frozen=True, slots=True)
class CutIteration:
    """The samples of an iteration, ordered so that each rank and each chunk has successive ones."""

    #: Shares and tail in samples.
    plan: Plan
    #: Positions of the samples in the iteration, in the new order.
    positions: Sequence[int]
    #: Number of samples of each pass, by rank, then by chunk.
    passes: Sequence[tuple[int, ...]]
    #: The work of each rank's passes, then of each chunk's, with padding.
    works: Sequence[Work]
    #: The quadratic share of the work.
    share: float


def _array(costs: Any, samples: int) -> torch.Tensor:
    try:
        array = torch.as_tensor(costs)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SettingError(f"cost is a {type(costs).__name__}: must be a sequence of numbers ({error})") from error
    if tuple(array.shape) != (samples,) or array.dtype in (torch.bool, torch.complex64, torch.complex128):
        raise SettingError(
            f"cost has shape {tuple(array.shape)} and type {array.dtype}: must be one number for each of the {samples} "
            "samples of the data set"
        )
    # A copy: the script may change its list later.
    return array.to("cpu", torch.float64, copy=True)


def checked(cost: Any, index: int, limit: int | None) -> float:
    """Returns a cost as a float.

    Raises:
        SettingError: it breaks a rule.
    """
    try:
        value = float(cost)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value) or value <= 0:
        raise SettingError(f"cost of sample {index} is {cost!r}: must be a finite number above 0")
    if limit is not None and value > limit:
        raise SettingError(
            f"cost of sample {index} is {value:g}: must be at most {limit}, the smaller one of global_tokens and "
            "max_tokens; truncate or remove the sample, or raise them"
        )
    return value
