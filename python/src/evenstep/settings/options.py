"""The user's options of a run."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evenstep._native import check_job_options
from evenstep.errors import SettingError
from evenstep.samples.order import Order
from evenstep.settings.chunks import SharedTail
from evenstep.settings.settings import Settings
from evenstep.settings.workers import DataMesh

#: Local batches by rank, constant or as a function of the iteration.
Fixed = Sequence[int] | Callable[[int], Sequence[int]]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The user's options of a run."""

    settings: Settings
    #: A plan that needs no predictor.
    fixed: Fixed | None
    quantum: int
    #: The cap of this worker's local batch.
    max_local_batch: int | None
    #: Other fields of `PUT /v1/jobs/{job}`.
    job: Mapping[str, Any]
    #: Timeout of a request to the predictor, in seconds.
    timeout_s: float
    #: Number of epochs of the whole training; None if it is unknown.
    epochs: int | None = None
    #: The ranks over which samples differ; None for all ranks.
    mesh: DataMesh | None = None
    #: Whether workers can claim chunks of a shared tail.
    claims: bool = False
    #: The shared tail that is taken from plans without one; None for no tail.
    tail: SharedTail | None = None

    @property
    def cap(self) -> int | None:
        """The cap of this worker's local batch: the smaller one of its own and the job's; None without a cap."""
        given = [self.max_local_batch, self.job.get("max_local_batch")]
        return min((cap for cap in given if cap is not None), default=None)


#: Job options that the loader and :func:`evenstep.init` set.
_SET_ELSEWHERE = ("global_batch", "per_worker_batch", "quantum", "hedge")


def checked_job_options(job: Mapping[str, Any]) -> dict[str, Any]:
    """Checks the names and types of the other job options; the predictor checks the values.

    Raises:
        SettingError: an unknown option, one of another type, or one that is set elsewhere.
    """
    for name in _SET_ELSEWHERE:
        if name in job:
            raise SettingError(f"job_options: {name!r}: is set by the loader or by evenstep.init")
    if job.get("accumulation"):
        raise SettingError(
            "job_options: accumulation=True: a cap would bound one pass, but the number of passes does not follow the "
            "plan here: use job.loader(accumulate=N) or job.steps(micro_batch=..); caps bound all passes together"
        )
    try:
        check_job_options(json.dumps({"global_batch": 1, **job}, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise SettingError(str(error)) from error
    return dict(job)


def job_spec(job_options: RunOptions, order: Order, quantum: int) -> dict[str, Any]:
    """Returns the job as the predictor gets it."""
    for size in job_options.job.get("allowed_sizes", ()):
        if size % quantum:
            raise SettingError(
                f"job_options: allowed_sizes has {size}: must be multiples of {quantum}, because accumulate="
                f"{order.accumulate} makes micro-batches of equal sizes"
                if order.accumulate > 1
                else f"job_options: allowed_sizes has {size}: must be multiples of quantum={quantum}"
            )
    hedge = "auto" if job_options.claims else "off"
    unit = {"unit": "tokens"} if order.costs else {}
    return {"global_batch": order.plan_size, "quantum": quantum, "hedge": hedge, **unit, **job_options.job}
