"""The time of whole steps: with communication, optimizer and waits for data."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WholeStep:
    """The iterations since the previous report, in units of the last one."""

    #: Their time in seconds, for as many samples as the last iteration has; None if it is not known.
    step_time_s: float | None
    #: Their samples over the samples of the last iteration.
    iterations: float


class WholeSteps:
    """Measures the time between the ends of iterations. Iterations may have unequal numbers of samples."""

    def __init__(self) -> None:
        """Starts without an iteration."""
        self._ended_s: float | None = None

    def passed(self, samples: Sequence[int], ended_s: float, is_last: bool) -> WholeStep | None:
        """Returns the time since the previous call.

        Args:
            samples: the samples of all ranks in each iteration since then.
            ended_s: when the last of them ended, in seconds of a monotonic clock.
            is_last: whether it was the last of an epoch. A validation may follow, which is not part of a step.

        Returns:
            None if the last iteration has no samples. At the begin of an epoch, the time is not known.
        """
        before_s, self._ended_s = self._ended_s, None if is_last else ended_s
        if not samples or samples[-1] <= 0:
            return None
        iterations = sum(samples) / samples[-1]
        if before_s is None or ended_s <= before_s:
            return WholeStep(None, iterations)
        return WholeStep((ended_s - before_s) / iterations, iterations)
