"""Rank 0's source of plans: the native client, its log, and plans while the predictor is unreachable."""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evenstep import _native
from evenstep._native import Plan
from evenstep.exchange.whole_step import WholeStep
from evenstep.settings.connection import client_tls

log = logging.getLogger("evenstep")


class Predictor:
    """A :class:`~evenstep.exchange.exchange.Planner` that requests plans from the predictor in a native thread."""

    def __init__(
        self,
        servers: str,
        job_id: str,
        spec: Mapping[str, Any],
        workers: Sequence[Mapping[str, Any]],
        **options: Any,
    ) -> None:
        """Sends no request before :meth:`open`.

        Args:
            servers: URLs, separated by commas.
            job_id: the job.
            spec: the job options.
            workers: the workers of this run in rank order.
            **options: see :class:`evenstep._native.Predictor`.

        Raises:
            SettingError: an argument breaks its rule, or a TLS file of the environment cannot be used.
        """
        self.job_id = job_id
        #: Plans are for whole iterations: the remainder of an epoch follows the plan of a whole one, scaled down.
        self._global_batch: int = spec["global_batch"]
        self._native = _native.Predictor(
            servers, job_id, json.dumps(spec), json.dumps(workers), tls=client_tls(), **options
        )

    @property
    def cpu_s(self) -> float:
        """CPU time of the requests up to now, in seconds."""
        return self._native.cpu_s

    def open(self, wanted: Iterable[int], otherwise: Plan) -> list[tuple[int, Plan]]:
        """Returns the plans of the first iterations, then requests further ones in the background.

        Training starts with the plan ``otherwise`` if no predictor responds.

        Raises:
            RejectedError: the predictor rejects this run.
        """
        pairs = [(iteration, self._global_batch) for iteration in wanted]
        plans = self._native.open(pairs)
        self._log()
        return [(iteration, plan or otherwise) for (iteration, _), plan in zip(pairs, plans, strict=True)]

    def take(self, iteration: int) -> Plan | None:
        """Returns the newest unused plan for this iteration or an earlier one.

        If responses take longer than iterations, every plan is late, but still better than the current one.
        """
        self._log()
        return self._native.take(iteration)

    def learn(self, iteration: int, rows: Sequence[float], then: int, whole: WholeStep | None = None) -> None:
        """Keeps the reports of an iteration for the next request, and requests the plan of the iteration ``then``."""
        step = (whole.step_time_s, whole.iterations) if whole else None
        self._native.learn(iteration, rows, (then, self._global_batch), step)

    def close(self, timeout_s: float) -> None:
        """Delivers the last reports and leaves the job, if the predictor responds within this time."""
        self._native.close(timeout_s)
        self._log()

    def _log(self) -> None:
        for message in self._native.messages():
            log.warning("%s", message)
