"""A rank's report of an iteration, and its encoding as a row of numbers that only this rank fills."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from evenstep._native import REPORT_NAMES
from evenstep.measure.drivers import NAMES
from evenstep.samples.work import Work, mean


@dataclass(frozen=True, slots=True)
class TailWork:
    """One rank's work on an iteration's shared tail."""

    chunks: int
    samples: int
    compute_time_s: float
    #: Time spent waiting for claims.
    claim_time_s: float
    #: Work of the samples, if they have costs.
    work: Work | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """One rank's report of an iteration. Times are in seconds."""

    iteration: int
    local_batch: int
    #: Forward and backward, without waiting.
    compute_time_s: float
    loader_wait_s: float = 0.0
    micro_batches: int = 1
    #: Peak memory in bytes; None if the device does not report it.
    peak_memory_bytes: int | None = None
    tail: TailWork | None = None
    #: Work of the samples, if they have costs.
    work: Work | None = None
    #: Mean loss over the samples, also if it is not finite; None if it is not recorded.
    loss: float | None = None
    #: Readings at the end of the iteration's compute, by driver name.
    drivers: dict[str, float] = field(default_factory=dict)

    def to_row(self) -> list[float]:
        """Returns the slots of the row; a missing value is NaN, which a sum with zeros preserves."""
        numbers: dict[str, float | None] = {
            "local_batch": _units(self.local_batch, self.work),
            "compute_time_s": self.compute_time_s,
            "loader_wait_s": self.loader_wait_s,
            # A report without this number means one pass.
            "micro_batches": self.micro_batches if self.micro_batches > 1 else None,
            "peak_memory_bytes": self.peak_memory_bytes,
            "loss": _loss(self.loss),
        }
        if tail := self.tail:
            numbers |= {
                "tail_chunks": tail.chunks,
                "tail_samples": _units(tail.samples, tail.work),
                "tail_compute_time_s": tail.compute_time_s,
                "tail_claim_time_s": tail.claim_time_s,
            }
        values = (numbers.get(name) for name in REPORT_NAMES)
        readings = (self.drivers.get(name) for name in NAMES)
        return [self.iteration + 1.0, *(math.nan if value is None else value for value in (*values, *readings))]


#: Number of slots of a row.
SLOTS = 1 + len(REPORT_NAMES) + len(NAMES)

#: The slot of each number of a report.
_SLOT_OF = {name: 1 + at for at, name in enumerate(REPORT_NAMES)}

#: Functions for the numbers of a worker in which its slowest rank does not decide.
_TOTALS: dict[str, Callable[[list[float]], float]] = {
    "loader_wait_s": max,
    "peak_memory_bytes": max,
    "loss": statistics.fmean,
}


def merged(reports: Sequence[Report]) -> Report:
    """Merges the reports of successive iterations: the last one, with mean times over those with the same share.

    With costs, the mean work and time of all of them count.

    With a shared tail the claimed samples differ between iterations, so only the last report counts. The same holds if
    no time could be measured.
    """
    # Scripts may record the loss in a part of the iterations.
    loss = next((report.loss for report in reversed(reports) if report.loss is not None), None)
    last = replace(reports[-1], loss=loss)
    if last.work:
        # Iterations have unequal work, so work and time are averaged.
        alike = [report for report in reports if report.work and not report.tail and report.compute_time_s > 0]
    else:
        alike = [report for report in reports if _share(report) == _share(last) and report.compute_time_s > 0]
    if last.tail or not alike:
        return last
    return replace(
        last,
        compute_time_s=statistics.fmean(report.compute_time_s for report in alike),
        loader_wait_s=statistics.fmean(report.loader_wait_s for report in alike),
        work=mean([report.work for report in alike if report.work]) if last.work else None,
    )


def by_worker(rows: Sequence[float], members: Sequence[Sequence[int]]) -> list[float]:
    """Returns the rows of workers from the rows of ranks, one after the other.

    A worker has the row of its slowest rank, with the longest wait for data, the largest peak memory, and the mean of
    the losses: with pipeline stages, only the last ones have a loss. It has no report if one of its ranks has none,
    and no time if one has none.

    Args:
        rows: a row for each rank.
        members: the ranks of each worker.
    """
    whole: list[float] = []
    for ranks in members:
        of_ranks = [list(rows[rank * SLOTS : (rank + 1) * SLOTS]) for rank in ranks]
        times = [row[_SLOT_OF["compute_time_s"]] for row in of_ranks]
        row = of_ranks[times.index(max(times) if all(times) else 0.0)]
        if not all(one[0] for one in of_ranks):
            row = [0.0] * SLOTS
        elif len(ranks) > 1:
            for name, total in _TOTALS.items():
                values = [one[_SLOT_OF[name]] for one in of_ranks]
                row[_SLOT_OF[name]] = total([value for value in values if not math.isnan(value)] or [math.nan])
        whole += row
    return whole


def _loss(loss: float | None) -> float | None:
    """Returns the slot of a loss: infinity stands for one that is not finite."""
    return loss if loss is None or math.isfinite(loss) else math.inf


def _units(samples: int, work: Work | None) -> int:
    """Returns work in the unit of the plans: samples or, if samples have costs, their rounded work."""
    return samples if work is None or not samples else max(1, round(work.total))


def _share(report: Report) -> tuple[int, int, bool]:
    return report.local_batch, report.micro_batches, report.tail is None
