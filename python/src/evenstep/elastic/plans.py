"""The plans of an elastic job: by iteration, the same on all members, from the predictor, a function or even shares."""

import logging
import os
import threading
from collections.abc import Sequence
from typing import Any

from evenstep._native import Plan, apportion
from evenstep.errors import EvenstepError, SettingError
from evenstep.exchange.predictor import Predictor
from evenstep.samples import shares
from evenstep.samples.order import Order
from evenstep.settings.options import RunOptions, job_spec
from evenstep.settings.settings import OFF
from evenstep.start.local.embedded import Embedded

log = logging.getLogger("evenstep")


class Plans:
    """The plans of one generation: none has the shares of another one."""

    def __init__(self, planned: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Starts with the plans of the first iterations, at least one."""
        self._planned = [(first, Plan.of(batches)) for first, batches in planned]

    def at(self, iteration: int) -> Plan:
        """Returns the newest plan for an iteration or an earlier one."""
        found = (plan for first, plan in reversed(self._planned) if first <= iteration)
        return next(found, self._planned[0][1])

    def add(self, first: int, batches: Sequence[int], done: int) -> None:
        """Adds a plan from an iteration on; plans that no iteration after ``done`` uses are dropped."""
        self._planned.append((first, Plan.of(batches)))
        while len(self._planned) > 1 and self._planned[1][0] <= done + 1:
            self._planned.pop(0)


def first_plan(order: Order, batches: Sequence[int | None], caps: Sequence[int | None], quantum: int) -> list[int]:
    """Returns the first shares of a generation, in the proportion of the last ones.

    Args:
        order: the samples.
        batches: the last share of each member; None for a new one, which gets the mean.
        caps: the largest share of each member; None for no cap.
        quantum: shares are multiples of it.

    Raises:
        SettingError: the caps do not allow the global batch.
    """
    known = [batch for batch in batches if batch is not None]
    mean = sum(known) / len(known) if any(known) else 1
    # Whole numbers: a share of 0 stays possible, but a new worker must be measured.
    weights = [max(1, round(1000 * mean)) if batch is None else 1000 * batch for batch in batches]
    shared = apportion(order.global_batch, weights if any(weights) else [1] * len(batches), quantum)
    if shares.first_above_cap(Plan.of(shared), caps) is None:
        return shared
    return shares.even(order.global_batch, caps, quantum).batches


class Source:
    """The source of plans on rank 0 of a generation. It registers in a thread, for which no member waits."""

    def __init__(
        self,
        options: RunOptions,
        order: Order,
        job: str,
        *,
        workers: Sequence[dict[str, Any]],
        former: Sequence[str],
        first: int,
    ) -> None:
        """Begins to register the workers of a generation at the predictor, unless the run has no predictor.

        Args:
            options: the options of the run.
            order: the samples.
            job: the id of the job.
            workers: the descriptions of the members, in rank order.
            former: the names of workers that were members, and are not any more.
            first: the first iteration of the generation.
        """
        self._options, self._order, self._job, self._workers = options, order, job, workers
        self._former, self._first, self._size = sorted(set(former)), first, len(workers)
        self._embedded: Embedded | None = None
        self._predictor: Predictor | None = None
        self._first_plans: list[Plan] = []
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        if options.fixed is None and options.settings.server != OFF and (len(workers) > 1 or options.settings.server):
            self._thread = threading.Thread(target=self._open, name="evenstep-elastic", daemon=True)
            self._thread.start()

    def given(self, iteration: int) -> list[int] | None:
        """Returns the shares of the script's function; None without one.

        Raises:
            SettingError: they break a rule.
        """
        if not callable(self._options.fixed):
            return None
        batches = [int(batch) for batch in self._options.fixed(iteration)]
        if len(batches) != self._size or sum(batches) != self._order.global_batch or min(batches) < 0:
            raise SettingError(
                f"plan={batches} of iteration {iteration}: must be {self._size} batches, one for each worker, with the "
                f"sum {self._order.global_batch}; with init(elastic=True), torch.distributed.get_world_size() has the "
                "number of workers"
            )
        return batches

    def take(self, iteration: int) -> list[int] | None:
        """Returns new shares from an iteration on; None to keep the current ones."""
        if self._options.fixed is not None:
            return self.given(iteration)
        predictor = self._predictor
        if predictor is None:
            return None
        plan = predictor.take(iteration)
        if plan is None and self._first_plans:
            plan = self._first_plans[0]
        self._first_plans = []
        fits = plan and len(plan.batches) == self._size and plan.size == self._order.global_batch
        return plan.batches if plan and fits else None

    def learn(self, iteration: int, rows: Sequence[float], then: int) -> None:
        """Records the reports of an iteration, and requests the plan of a later one."""
        if self._predictor:
            self._predictor.learn(iteration, rows, then)

    def close(self, timeout_s: float | None) -> None:
        """Ends this source; with a time limit, the workers also leave the job at the predictor."""
        self._is_over.set()
        if timeout_s is not None and self._thread:
            self._thread.join(timeout_s)
        predictor, self._predictor = self._predictor, None
        if predictor and timeout_s is not None:
            predictor.close(timeout_s)
        embedded, self._embedded = self._embedded, None
        if embedded and timeout_s is not None:
            embedded.close()

    def _open(self) -> None:
        settings = self._options.settings
        server = settings.server
        try:
            if server is None:
                self._embedded = Embedded.start(0, 0, with_agent=False, environ=os.environ)
                server = self._embedded.server
            if server is None or self._is_over.is_set():
                return
            predictor = Predictor(
                server,
                self._job,
                job_spec(self._options, self._order, self._options.quantum),
                self._workers,
                begin=self._first,
                # Workers of an earlier generation may still be members at the predictor.
                resumed=self._first > 0,
                restarted=True,
                former=self._former,
                timeout_s=self._options.timeout_s,
                find_server=self._embedded.find_server if self._embedded else None,
            )
            even = shares.even(self._order.global_batch, [None] * self._size, self._options.quantum)
            # If the predictor does not respond, the last shares stay.
            opened = predictor.open([self._first], even)
            self._first_plans = [plan for _, plan in opened if plan is not even]
            if not self._is_over.is_set():
                self._predictor = predictor
        except EvenstepError as error:
            log.warning("generation of %s workers: %s; training continues with the last shares", self._size, error)
