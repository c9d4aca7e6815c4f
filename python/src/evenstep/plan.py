"""Plans: which rank computes which samples of an iteration."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from evenstep.errors import DivergedError, SettingError
from evenstep.rate import Rate


@dataclass(frozen=True, slots=True)
class Share:
    """Samples ``offset .. offset + local_batch`` of an iteration."""

    offset: int
    local_batch: int


@dataclass(frozen=True, slots=True)
class Tail:
    """The last part of an iteration, which is not assigned to a rank: free ranks claim its chunks in order."""

    #: Offset of its first sample within the iteration.
    offset: int
    #: Number of samples of each chunk.
    chunks: tuple[int, ...]
    #: Number of successive chunks that each pool has.
    pools: tuple[int, ...]
    #: By rank: the pool that it claims from, or None if it claims nothing.
    pool: tuple[int | None, ...]
    #: By rank: its forecast speed in samples per second, or None if unknown.
    speed: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The shares of all ranks in an iteration, and the learning-rate multiplier."""

    shares: tuple[Share, ...]
    rate: Rate = field(default_factory=Rate)
    tail: Tail | None = None

    @classmethod
    def of(cls, batches: Sequence[int], rate: Rate | None = None) -> "Plan":
        """Returns a plan with these local batches, in rank order without gaps."""
        offsets = accumulate(batches, initial=0)
        shares = tuple(Share(offset, batch) for offset, batch in zip(offsets, batches, strict=False))
        return cls(shares, rate or Rate())

    @classmethod
    def even(cls, size: int, world_size: int, quantum: int = 1, rate: Rate | None = None) -> "Plan":
        """Returns a plan with shares as equal as whole quanta allow."""
        return cls.of(apportion(size, [1] * world_size, quantum), rate)

    @property
    def batches(self) -> list[int]:
        """The local batches by rank."""
        return [share.local_batch for share in self.shares]

    @property
    def size(self) -> int:
        """The number of samples of the iteration: all shares and the tail."""
        return sum(self.batches) + (sum(self.tail.chunks) if self.tail else 0)

    def resized(self, size: int, quantum: int) -> "Plan":
        """Returns a plan with the same proportions for another number of samples, without a tail."""
        if self.tail is None and self.size == size:
            return self
        weights = self.batches if any(self.batches) else [1] * len(self.shares)
        return Plan.of(apportion(size, weights, quantum), self.rate)

    def checked(self, size: int) -> "Plan":
        """Returns this plan after a check.

        Raises:
            DivergedError: its shares and chunks do not cover an iteration of ``size`` samples exactly once.
        """
        spans = [(share.offset, share.local_batch) for share in self.shares if share.local_batch]
        if self.tail:
            spans.append((self.tail.offset, sum(self.tail.chunks)))
        reached = 0
        for offset, samples in sorted(spans):
            if offset != reached or samples < 0:
                break
            reached += samples
        else:
            if reached == size:
                return self
        raise DivergedError(f"a plan must cover each of the {size} samples of the iteration exactly once: {self}")

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON form, which is sent between ranks and stored in checkpoints."""
        told: dict[str, Any] = {
            "shares": [[share.offset, share.local_batch] for share in self.shares],
            "rate": self.rate.to_json(),
        }
        if self.tail:
            tail = self.tail
            told["tail"] = [tail.offset, tail.chunks, tail.pools, tail.pool, tail.speed]
        return told

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> "Plan":
        """Restores a plan from the result of :meth:`to_json`."""
        plan = cls(tuple(Share(*share) for share in told["shares"]), Rate.from_json(told["rate"]))
        if "tail" not in told:
            return plan
        offset, chunks, pools, pool, speed = told["tail"]
        return replace(plan, tail=Tail(offset, tuple(chunks), tuple(pools), tuple(pool), tuple(speed)))


def apportion(size: int, weights: Sequence[int], quantum: int = 1) -> list[int]:
    """Splits ``size`` by ``weights`` into whole quanta: largest remainders (Hamilton), ties to the lower rank.

    A remainder below one quantum goes to the rank with the largest batch, so the batches sum to ``size`` exactly. It
    uses integers only, so all ranks compute the same result.

    Raises:
        SettingError: all weights are 0, or one is negative.
    """
    whole = sum(weights)
    if whole <= 0 or min(weights) < 0:
        raise SettingError(f"weights {list(weights)}: must not be negative, and at least one must be above 0")
    quanta, rest = divmod(size, quantum)
    counts = [quanta * weight // whole for weight in weights]
    remainders = [quanta * weight % whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda rank: (-remainders[rank], rank))
    for rank in by_remainder[: quanta - sum(counts)]:
        counts[rank] += 1
    batches = [count * quantum for count in counts]
    batches[max(range(len(weights)), key=lambda rank: (weights[rank], -rank))] += rest
    return batches
