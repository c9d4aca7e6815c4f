"""Shared tails without a predictor: a given fraction of each iteration, in chunks of decreasing size."""

from dataclasses import dataclass

from evenstep.errors import SettingError


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
