"""The work of samples: a part in proportion to their lengths, and a part in proportion to the squared lengths.

The layers of a transformer take time in proportion to a sample's length L, and its attention in proportion to L^2. The
share of the second part depends on the model, its kernels and the device. It is learned from the ranks' compute times:

    t = s * ((1 - q) * linear + q * quadratic)

``linear`` is the sum of L, ``quadratic`` the sum of L^2 divided by the ratio of the data set's mean L^2 to its mean L,
and ``q`` from 0 to 1 the quadratic share. Both parts have the unit of L and the same mean, so work keeps its unit and
its mean whatever the share is. ``s``, the time per work of a rank, changes slowly. In the difference of log(t) between
two successive iterations it nearly cancels out, and the residual tells the share.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

#: Number of iterations that a rank remembers.
_REMEMBERED = 256

#: Standard deviation of the initial share: if it is unknown, of one that follows from the model, and of a learned one.
_UNKNOWN = 0.1
_DERIVED = 0.05

#: The smallest standard deviation of log(t) that is believed.
_NOISE_MIN = 0.01

#: Number of standard deviations above which a difference counts less (Huber 1964).
_OUTLIER = 2.0

#: A new share is used if it differs by more.
CHANGE_MIN = 0.002


@dataclass(frozen=True, slots=True)
class Work:
    """The work of samples in the unit of their lengths, such as tokens."""

    linear: float
    quadratic: float
    #: The quadratic share with which the samples were cut.
    share: float

    @property
    def total(self) -> float:
        """The work at this share."""
        return (1 - self.share) * self.linear + self.share * self.quadratic

    def __add__(self, other: "Work") -> "Work":
        """Adds work of the same iteration."""
        return replace(self, linear=self.linear + other.linear, quadratic=self.quadratic + other.quadratic)


def mean(works: Sequence[Work]) -> Work:
    """Returns the mean work of iterations, at the share of the last one."""
    linear = math.fsum(work.linear for work in works) / len(works)
    return Work(linear, math.fsum(work.quadratic for work in works) / len(works), works[-1].share)


@dataclass(frozen=True, slots=True)
class Prior:
    """The share before any measurement, normally distributed."""

    share: float
    deviation: float

    @classmethod
    def of(cls, ratio: float | None) -> "Prior":
        """Returns the prior for a ratio of quadratic to linear work in the data set; None if it is unknown."""
        return cls(0.0, _UNKNOWN) if ratio is None else cls(ratio / (1 + ratio), _DERIVED)

    @classmethod
    def learned(cls, share: float) -> "Prior":
        """Returns the prior for a share that an earlier part of the training has learned."""
        return cls(share, _DERIVED)

    def updated(self, evidence: Iterable[tuple[float, float]]) -> float:
        """Returns the share with the highest posterior density, from 0 to 1.

        Args:
            evidence: precision and precision times share, by rank (:meth:`Observed.evidence`).
        """
        precision = self.deviation**-2
        moment = precision * self.share
        for added, moved in evidence:
            precision += added
            moment += moved
        return min(max(moment / precision, 0.0), 1.0)


class Observed:
    """One rank's last iterations: their compute times and work."""

    def __init__(self) -> None:
        """Starts without iterations."""
        self._times: deque[float] = deque(maxlen=_REMEMBERED)
        self._works: deque[Work] = deque(maxlen=_REMEMBERED)

    def see(self, time_s: float, work: Work | None) -> None:
        """Records an iteration; one without a time or without samples tells nothing."""
        if work and time_s > 0 and work.linear > 0:
            self._times.append(time_s)
            self._works.append(work)

    def evidence(self, share: float) -> tuple[float, float]:
        """Returns the precision of this rank's estimate and its product with the estimate; zeros if nothing is known.

        One step of Gauss and Newton from the current share, by least squares with Huber's weights.
        """
        # The first iteration of a process is slower than the others.
        times, works = list(self._times)[1:], list(self._works)[1:]
        if len(times) < 4:  # Three differences have a median.
            return 0.0, 0.0
        linear = torch.tensor([work.linear for work in works], dtype=torch.float64)
        excess = torch.tensor([work.quadratic for work in works], dtype=torch.float64) - linear
        total = linear + share * excess
        left = torch.diff(torch.log(torch.tensor(times, dtype=torch.float64)) - torch.log(total))
        slope = torch.diff(excess / total)
        # The median absolute deviation of a normal distribution is 0.6745 standard deviations.
        noise = max(left.abs().median().item() / 0.6745, _NOISE_MIN)
        weight = (_OUTLIER * noise / left.abs().clamp(min=1e-12)).clamp(max=1.0) / noise**2
        precision = (weight * slope * slope).sum().item()
        return precision, precision * share + (weight * slope * left).sum().item()
