"""How an iteration went for one rank, and how that travels: a row of numbers of which nobody else writes."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from evenstep.drivers import NAMES


@dataclass(frozen=True, slots=True)
class TailWork:
    """What one rank did of an iteration's tail."""

    chunks: int
    samples: int
    compute_time_s: float
    #: Waiting for claims.
    claim_time_s: float


@dataclass(frozen=True, slots=True)
class Report:
    """One rank's iteration. Times in seconds."""

    iteration: int
    local_batch: int
    #: Forward and backward, without any waiting.
    compute_time_s: float
    loader_wait_s: float = 0.0
    micro_batches: int = 1
    #: None where the device does not say.
    peak_memory_bytes: int | None = None
    tail: TailWork | None = None
    #: Readings at the end of its compute, by the name of the driver.
    drivers: dict[str, float] = field(default_factory=dict)

    def to_row(self) -> list[float]:
        """Its slots; what is missing is NaN, which survives a sum with zeros and is never taken for a number."""
        tail = self.tail or TailWork(0, 0, 0.0, 0.0)
        return [
            self.iteration + 1.0,
            self.local_batch,
            self.compute_time_s,
            self.loader_wait_s,
            self.micro_batches,
            math.nan if self.peak_memory_bytes is None else self.peak_memory_bytes,
            tail.chunks,
            tail.samples,
            tail.compute_time_s,
            tail.claim_time_s,
            *(self.drivers.get(name, math.nan) for name in NAMES),
        ]

    @classmethod
    def from_row(cls, row: list[float]) -> "Report | None":
        """Reads what :meth:`to_row` wrote; None where nothing was written."""
        if row[0] == 0:
            return None
        peak, readings = row[5], dict(zip(NAMES, row[10:], strict=True))
        return cls(
            iteration=int(row[0]) - 1,
            local_batch=int(row[1]),
            compute_time_s=row[2],
            loader_wait_s=row[3],
            micro_batches=int(row[4]),
            peak_memory_bytes=None if math.isnan(peak) else int(peak),
            tail=TailWork(int(row[6]), int(row[7]), row[8], row[9]) if row[6] else None,
            drivers={name: value for name, value in readings.items() if math.isfinite(value)},
        )


#: Slots of a row.
SLOTS = 10 + len(NAMES)


def merged(reports: Sequence[Report]) -> Report:
    """One report of a stretch of iterations: the last one's, with mean times over those that had the same share.

    What was claimed of tails differs from one to the next: there it is the last one's alone. So it is where no time
    could be measured.
    """
    last = reports[-1]
    alike = [report for report in reports if _share(report) == _share(last) and report.compute_time_s > 0]
    if last.tail or not alike:
        return last
    return replace(
        last,
        compute_time_s=statistics.fmean(report.compute_time_s for report in alike),
        loader_wait_s=statistics.fmean(report.loader_wait_s for report in alike),
    )


def _share(report: Report) -> tuple[int, int, bool]:
    return report.local_batch, report.micro_batches, report.tail is None
