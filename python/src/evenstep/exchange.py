"""The exchange between ranks: reports go to rank 0, and rank 0's plan goes to all ranks.

Each rank runs the exchange in its own thread and in a separate CPU process group, so no step waits for a report, a
reading or the predictor. At iteration ``k`` rank 0 publishes a plan for iteration ``k + ahead``, and the iteration of
the next exchange. Exchanges are rare enough to stay within the overhead budget; if iterations are long, every iteration
has one. The plan of an iteration depends only on the published plans, which are the same on all ranks.
"""

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
import torch.distributed as dist

from evenstep.budget import Budget
from evenstep.errors import EvenstepError
from evenstep.plan import Plan
from evenstep.report import SLOTS, Report, merged

log = logging.getLogger("evenstep")

#: Number of published plans that are kept; more than any look-ahead needs.
PLANS_MAX = 256

#: Number of leading slots in the reduced tensor: the iteration of the plan plus 1, the plan's length in bytes, and the
#: iteration of the next exchange.
_HEADER = 3


class Planner(Protocol):
    """The source of plans on rank 0."""

    #: CPU time of the planner's own threads up to now, in seconds.
    cpu_s: float

    def take(self, iteration: int) -> Plan | None:
        """Returns the plan for an iteration, or None to keep the current one. Never waits."""

    def learn(self, iteration: int, reports: list[Report | None], then: tuple[int, int]) -> None:
        """Records the reports of an iteration by rank and requests the next plan. Never waits.

        Args:
            iteration: the reported iteration.
            reports: the reports by rank.
            then: the (iteration, samples) of the requested plan.
        """


@dataclass(frozen=True, slots=True)
class Lead:
    """The parts of the exchange that only rank 0 has."""

    planner: Planner
    budget: Budget

    def iterations(self, iteration: int) -> int:
        """Returns the number of iterations until the next exchange; the exchange thread calls it."""
        return self.budget.iterations(iteration, time.thread_time() + self.planner.cpu_s)


@dataclass(frozen=True, slots=True)
class Submission:
    """One rank's submission for an iteration."""

    iteration: int
    #: Called by the exchange thread and may wait for a device. The report has no driver readings yet.
    report: Callable[[], Report]
    #: The number of samples of the iteration that comes the given number of iterations later.
    size_after: Callable[[int], int]
    #: Whether this iteration always has an exchange.
    is_last: bool


class Exchange:
    """One rank's side of the exchange. The training calls ``submit`` and ``plan``; the thread does the rest."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        ahead: int,
        plans: list[tuple[int, Plan]],
        drivers: Callable[[], dict[str, float]],
        lead: Lead | None,
    ) -> None:
        """Starts the exchange thread.

        Args:
            group: a CPU process group of all ranks, used for nothing else.
            ahead: at iteration ``k`` the plan of ``k + ahead`` is published.
            plans: the plans of the first iterations, the same on all ranks; at least one.
            drivers: reads the drivers of this machine.
            lead: the source of plans and the exchange budget; only on rank 0.
        """
        self._group = group
        self._ahead = ahead
        self._drivers = drivers
        self._lead = lead
        self._plans = deque(plans, maxlen=PLANS_MAX)
        #: Submissions that are not exchanged yet. Its length is bounded by the exchange interval plus the look-ahead.
        self._submissions: deque[Submission] = deque()
        #: The iteration of the next exchange, which starts as soon as that iteration is submitted.
        self._due = 0
        #: The iteration that the thread is exchanging now.
        self._now: int | None = None
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._is_closing = False
        #: Whether every report was measured so far.
        self._is_measured = True
        self._thread = threading.Thread(target=self._run, name="evenstep-exchange", daemon=True)
        self._thread.start()

    def submit(self, said: Submission) -> None:
        """Submits an iteration; every rank must submit the same iterations in the same order."""
        with self._changed:
            self._submissions.append(said)
            # While the thread is busy, the iteration of the next exchange is unknown; the thread checks again
            # afterwards.
            if self._now is None:
                self._check_due()

    def plan(self, iteration: int) -> Plan:
        """Returns the plan of an iteration: the newest one published for it or for an earlier iteration.

        Waits for the exchange that was due ``ahead`` iterations before, which has nearly always finished.

        Raises:
            EvenstepError: the exchange between ranks failed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._failure or self._now is None or self._now > iteration - self._ahead)
            if self._failure:
                raise EvenstepError(f"the exchange of plans between ranks failed: {self._failure}") from self._failure
            return next((plan for at, plan in reversed(self._plans) if at <= iteration), self._plans[0][1])

    def settle(self, timeout_s: float) -> None:
        """Waits until all due exchanges are finished or failed, at most ``timeout_s`` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure or self._now is None, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Stops the thread once all due exchanges are finished, or after ``timeout_s`` seconds."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def _check_due(self) -> None:
        """Checks whether an exchange is due. The caller holds the lock."""
        due = (said.iteration for said in self._submissions if said.is_last or said.iteration >= self._due)
        self._now = next(due, None)
        if self._now is not None:
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            while said := self._next():
                published, due = self._exchange(said)
                with self._changed:
                    if published:
                        self._plans.append(published)
                    self._due = due
                    self._check_due()
                    self._changed.notify_all()
        except Exception as error:  # noqa: BLE001  # the training must get any error instead of waiting for ever.
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _next(self) -> list[Submission]:
        """Returns the submissions up to the next exchange; an empty list when the exchange is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closing or self._now is not None)
            submissions_due: list[Submission] = []
            while self._now is not None and self._submissions and self._submissions[0].iteration <= self._now:
                submissions_due.append(self._submissions.popleft())
            return submissions_due

    def _exchange(self, submissions_due: list[Submission]) -> tuple[tuple[int, Plan] | None, int]:
        rank, world_size = dist.get_rank(self._group), dist.get_world_size(self._group)
        said = submissions_due[-1]
        slots = torch.zeros(_HEADER + world_size * SLOTS, dtype=torch.float64)
        begin = _HEADER + rank * SLOTS
        slots[begin : begin + SLOTS] = torch.tensor(self._row(submissions_due), dtype=torch.float64)
        target, payload = said.iteration + self._ahead, b""
        if self._lead:
            slots[2] = said.iteration + self._lead.iterations(said.iteration)
            # A plan equal to the current one need not be sent. A plan may be for a different number of samples, because
            # an epoch can end early; the rank that uses it resizes it.
            if (plan := self._lead.planner.take(target)) and plan != self._plans[-1][1]:
                payload = json.dumps(plan.to_json()).encode()
                slots[0], slots[1] = target + 1.0, len(payload)
        dist.all_reduce(slots, group=self._group)

        at, length, due = (int(slot) for slot in slots[:_HEADER].tolist())
        published = None
        if length:
            wire = torch.frombuffer(bytearray(payload or length), dtype=torch.uint8)
            dist.broadcast(wire, src=0, group=self._group)
            published = (at - 1, Plan.from_json(json.loads(bytes(wire.tolist()))))
        if self._lead:
            rows = slots[_HEADER:].reshape(world_size, SLOTS).tolist()
            reports = [Report.from_row(row) for row in rows]
            further = due - said.iteration + self._ahead
            self._lead.planner.learn(said.iteration, reports, (said.iteration + further, said.size_after(further)))
        return published, due

    def _row(self, submissions_due: list[Submission]) -> list[float]:
        try:
            report = merged([said.report() for said in submissions_due])
            return replace(report, drivers=self._drivers()).to_row()
        except Exception as error:  # noqa: BLE001  # if one rank skips the all-reduce, all others wait for ever.
            if self._is_measured:
                log.warning(
                    "iteration %s: the report could not be measured (later failures are not logged): %s",
                    submissions_due[-1].iteration,
                    error,
                )
            self._is_measured = False
            return [0.0] * SLOTS
