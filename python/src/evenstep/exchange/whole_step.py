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

    def passed(self, samples: Sequence[int], begun_s: float | None, ended_s: float) -> WholeStep | None:
        """Returns the time since the previous call. All times are in seconds of a monotonic clock.

        Args:
            samples: the samples of all ranks in each iteration since then.
            begun_s: when the loop requested the first of these iterations, if an epoch begins with it. A validation
                before is not part of a step.
            ended_s: when the last of them ended.

        Returns:
            None if the last iteration has no samples.
        """
        before_s, self._ended_s = self._ended_s, ended_s
        if begun_s is not None:
            # A loop that reads ahead requests an epoch before it has ended the previous one.
            before_s = begun_s if before_s is None else max(before_s, begun_s)
        if not samples or samples[-1] <= 0:
            return None
        iterations = sum(samples) / samples[-1]
        if before_s is None or ended_s <= before_s:
            return WholeStep(None, iterations)
        return WholeStep((ended_s - before_s) / iterations, iterations)
