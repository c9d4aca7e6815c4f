"""The numbers of a job for TensorBoard and other loggers."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from evenstep.errors import EvenstepError
from evenstep.job.kubeflow import METRICS_MAX, Pace, Status
from evenstep.settings.connection import job_view
from evenstep.start.opening import OpenRun, Place

#: Timeout of each of the two requests of a reading, in seconds. The training waits for it.
_TIMEOUT_S = 0.25

#: Pause after a request that failed, in seconds.
_PAUSE_S = 30.0


class Metrics:
    """Reads the gain of a job, and its newest plan with the predictor's forecasts."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Sends no request yet; ``clock`` is monotonic, in seconds."""
        self._clock = clock
        self._paused_until = -float("inf")

    def read(self, place: Place | None, batches: Sequence[int]) -> dict[str, float]:
        """Returns the numbers by name; those without a value are absent.

        Args:
            place: the job at the predictor; None without a predictor.
            batches: the local batches by rank, for times without a predictor.
        """
        told = {f"evenstep/local_batch/rank_{rank}": float(batch) for rank, batch in enumerate(batches)}
        if place is None or self._clock() < self._paused_until:
            return told
        try:
            server = place.current_server()
            newest, job = (job_view(server, place.job, path, _TIMEOUT_S) for path in ("/allocations?limit=1", ""))
            return told | _gain(job) | _forecasts(newest[0])
        except (EvenstepError, ValueError, LookupError, TypeError):
            self._paused_until = self._clock() + _PAUSE_S
            return told


def _gain(job: dict[str, Any]) -> dict[str, float]:
    gain = job.get("gain")
    return {"evenstep/gain": float(gain["ratio"])} if gain else {}


def _forecasts(allocation: dict[str, Any]) -> dict[str, float]:
    told = {}
    step_s = allocation["decision"].get("predicted_step_time_s")
    if step_s:
        told["evenstep/step_time_s"] = float(step_s)
    for share in allocation["allocations"]:
        told[f"evenstep/local_batch/rank_{share['rank']}"] = float(share["local_batch"])
        compute_s = share.get("predicted_compute_time_s")
        if step_s and compute_s is not None:
            told[f"evenstep/compute_time_s/rank_{share['rank']}"] = float(compute_s)
            told[f"evenstep/wait_s/rank_{share['rank']}"] = max(0.0, float(step_s) - float(compute_s))
    return told


def trainjob_status(opened: OpenRun, epochs: int | None) -> Callable[[], Status]:
    """Returns a function that reads the status of a run for Kubeflow, in any thread.

    Args:
        opened: the run.
        epochs: number of epochs of the whole training; None if it is unknown.
    """
    metrics, pace = Metrics(), Pace()

    def read() -> Status:
        run = opened.run
        progress = run.binding.trained
        told = {"iteration": float(progress.iteration), "epoch": float(progress.epoch)}
        told |= metrics.read(opened.plans.place if opened.plans else None, ())
        # With many ranks, the metrics of the whole job come first.
        told = dict(sorted(told.items(), key=lambda metric: "/rank_" in metric[0])[:METRICS_MAX])
        if epochs is None:
            return Status(metrics=told)
        done = min(1.0, (progress.epoch + progress.sample / run.order.trained_samples) / epochs)
        return Status(done, pace.remaining_s(done), told)

    return read
