"""What the learning rate is multiplied by, also in iterations that nobody answered for."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Ramp:
    """A straight line of multipliers over iterations."""

    start: float
    end: float
    start_iteration: int
    iterations: int


@dataclass(frozen=True, slots=True)
class Rate:
    """A multiplier of the schedule's learning rate, and where it is on its way to another one, the rest of the way."""

    multiplier: float = 1.0
    ramp: Ramp | None = None

    def at(self, iteration: int) -> float:
        """The multiplier in an iteration: ``start + (end - start) min(1, (iteration - first) / iterations)`` on a ramp.

        Dynamic Mini-batch SGD (arXiv 1904.12043) raises it so after workers came.
        """
        ramp = self.ramp
        if ramp is None:
            return self.multiplier
        gone = max(0, iteration - ramp.start_iteration)
        if gone >= ramp.iterations:
            return ramp.end
        return ramp.start + (ramp.end - ramp.start) * (gone / ramp.iterations)

    def to_json(self) -> list[Any]:
        """As it travels between ranks and into checkpoints."""
        ramp = self.ramp
        return [self.multiplier] if ramp is None else [
            self.multiplier, ramp.start, ramp.end, ramp.start_iteration, ramp.iterations,
        ]  # fmt: skip

    @classmethod
    def from_json(cls, told: list[Any]) -> "Rate":
        """Reads what :meth:`to_json` wrote."""
        return cls(told[0], Ramp(*told[1:]) if len(told) > 1 else None)
