"""The learning-rate multiplier, also for iterations without a response of the predictor."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Ramp:
    """A linear ramp of the multiplier over iterations."""

    start: float
    end: float
    start_iteration: int
    iterations: int


@dataclass(frozen=True, slots=True)
class Rate:
    """A multiplier of the schedule's learning rate, and the rest of the current ramp, if any."""

    multiplier: float = 1.0
    ramp: Ramp | None = None

    def at(self, iteration: int) -> float:
        """Returns the multiplier in an iteration.

        On a ramp it is ``start + (end - start) min(1, (iteration - first) / iterations)``, the rule of Dynamic
        Mini-batch SGD (arXiv 1904.12043) after workers join.
        """
        ramp = self.ramp
        if ramp is None:
            return self.multiplier
        gone = max(0, iteration - ramp.start_iteration)
        if gone >= ramp.iterations:
            return ramp.end
        return ramp.start + (ramp.end - ramp.start) * (gone / ramp.iterations)

    def to_json(self) -> list[Any]:
        """Returns the JSON form, which is sent between ranks and stored in checkpoints."""
        ramp = self.ramp
        return [self.multiplier] if ramp is None else [
            self.multiplier, ramp.start, ramp.end, ramp.start_iteration, ramp.iterations,
        ]  # fmt: skip

    @classmethod
    def from_json(cls, told: list[Any]) -> "Rate":
        """Restores a rate from the result of :meth:`to_json`."""
        return cls(told[0], Ramp(*told[1:]) if len(told) > 1 else None)
