"""The time of whole steps: with communication, optimizer and waits for data."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WholeStep:
    """The iterations since the previous report, in units of the last one."""

    #: Their time in seconds, for as many samples as the last iteration has.
    step_time_s: float
    #: Their samples over those of the last iteration.
    iterations: float


class WholeSteps:
    """Measures the time between the ends of iterations. Iterations may have unequal numbers of samples."""

    def __init__(self) -> None:
        """Starts without an iteration."""
        self._ended_s: float | None = None

    def passed(self, samples: Sequence[int], ended_s: float) -> WholeStep | None:
        """Returns the time since the previous call.

        Args:
            samples: the samples of all ranks in each iteration since then.
            ended_s: when the last of them ended, in seconds of a monotonic clock.

        Returns:
            None in the first call, whose begin is not known, and if the last iteration has no samples.
        """
        before_s, self._ended_s = self._ended_s, ended_s
        if before_s is None or not samples or samples[-1] <= 0 or ended_s <= before_s:
            return None
        iterations = sum(samples) / samples[-1]
        return WholeStep((ended_s - before_s) / iterations, iterations)
