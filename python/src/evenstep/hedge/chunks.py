"""Tails without a predictor: a given part of each iteration, in chunks that shrink as it empties."""

from dataclasses import dataclass, replace

from evenstep.errors import SettingError
from evenstep.plan import Plan, Tail, apportion

#: The most chunks of a tail for each rank, on average.
CHUNKS_PER_RANK_MAX = 16


@dataclass(frozen=True, slots=True)
class SharedTail:
    """How much of an iteration is left to whoever is free."""

    #: Its part of the iteration, above 0 and at most 1.
    share: float
    #: No chunk is smaller, where the tail is not; a multiple of the quantum.
    min_chunk: int

    def check(self, quantum: int) -> None:
        """Refuses what cannot be shared out.

        Raises:
            SettingError: a value breaks its rule.
        """
        if not 0 < self.share <= 1:
            raise SettingError(f"tail={self.share}: must be above 0 and at most 1")
        if self.min_chunk < 1 or self.min_chunk % quantum:
            raise SettingError(f"min_chunk={self.min_chunk}: must be a multiple of quantum={quantum}, at least 1")

    def of(self, plan: Plan, quantum: int) -> Plan:
        """The plan with its last part left to all ranks; shares shrink in proportion. A tail of no samples is none."""
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
    """Factoring (Hummel, Schonberg, Flynn, CACM 1992): each chunk is what is left over ``parts``.

    A chunk that turns out to take twice as long as others still ends with them, and the last ones are small.

    Args:
        tail: samples, a multiple of ``quantum``: the sum of what is returned.
        parts: twice the number of ranks, by custom; at least 1.
        smallest: a multiple of ``quantum``, at least 1; only a tail that is smaller has a smaller chunk.
        quantum: every chunk is a multiple of it.
    """
    left, sizes = tail, []
    while left >= smallest:
        chunk = max(left // parts // quantum * quantum, smallest)
        sizes.append(chunk)
        left -= chunk
    if not sizes:
        return [tail] if tail else []
    # What is left is no chunk of its own; at the end, where it counts, they stay small.
    for more in range(left // quantum):
        sizes[more % len(sizes)] += quantum
    return sizes
