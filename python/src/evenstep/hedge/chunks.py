"""Shared tails without a predictor: a given fraction of each iteration, in chunks of decreasing size."""

from dataclasses import dataclass, replace

from evenstep.errors import SettingError
from evenstep.plan import Plan, Tail, apportion

#: Maximum number of chunks in a tail, per rank on average.
CHUNKS_PER_RANK_MAX = 16


@dataclass(frozen=True, slots=True)
class SharedTail:
    """The options of a shared tail without a predictor."""

    #: Fraction of the iteration, above 0 and at most 1.
    share: float
    #: Minimum number of samples in a chunk, a multiple of the quantum; only a smaller tail has a smaller chunk.
    min_chunk: int

    def check(self, quantum: int) -> None:
        """Validates the options.

        Raises:
            SettingError: an option breaks its rule.
        """
        if not 0 < self.share <= 1:
            raise SettingError(f"tail={self.share}: must be above 0 and at most 1")
        if self.min_chunk < 1 or self.min_chunk % quantum:
            raise SettingError(f"min_chunk={self.min_chunk}: must be a multiple of quantum={quantum}, at least 1")

    def of(self, plan: Plan, quantum: int) -> Plan:
        """Returns the plan with a tail for all ranks; shares shrink in proportion. A tail without samples is None."""
        size, ranks = plan.size, len(plan.shares)
        samples = int(self.share * size) // quantum * quantum
        if not samples:
            return plan
        smallest = self.min_chunk
        sizes = chunks(samples, 2 * ranks, smallest, quantum)
        while len(sizes) > CHUNKS_PER_RANK_MAX * ranks:
            smallest *= 2
            sizes = chunks(samples, 2 * ranks, smallest, quantum)
        bases = Plan.of(apportion(size - samples, plan.batches, quantum), plan.rate)
        tail = Tail(size - samples, tuple(sizes), (len(sizes),), (0,) * ranks, (None,) * ranks)
        return replace(bases, tail=tail)


def chunks(tail: int, parts: int, smallest: int, quantum: int = 1) -> list[int]:
    """Returns chunk sizes by factoring (Hummel, Schonberg, Flynn, CACM 1992): the remaining samples over ``parts``.

    A chunk that takes twice as long as the others still ends with them, and the last chunks are small.

    Args:
        tail: number of samples, a multiple of ``quantum``; the chunks sum to it.
        parts: usually twice the number of ranks; at least 1.
        smallest: minimum chunk size, a multiple of ``quantum``, at least 1; only a smaller tail has a smaller chunk.
        quantum: every chunk is a multiple of it.
    """
    left, sizes = tail, []
    while left >= smallest:
        chunk = max(left // parts // quantum * quantum, smallest)
        sizes.append(chunk)
        left -= chunk
    if not sizes:
        return [tail] if tail else []
    # The remainder is not a separate chunk. It is added to the first chunks, so that the last ones stay small.
    for more in range(left // quantum):
        sizes[more % len(sizes)] += quantum
    return sizes
