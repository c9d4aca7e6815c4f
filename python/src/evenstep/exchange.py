"""What ranks tell each other now and then, beside the training: reports to rank 0, and its plan to all.

A thread of its own on each rank does it, on a CPU group of its own, so that no step waits for a report, a reading or
the predictor. At iteration ``k`` rank 0 publishes a plan for iteration ``k + ahead``, and at which iteration they meet
next: so seldom that it costs little, and after every iteration where those are long. Which plan an iteration has
follows from what was published alone, and all ranks hear the same: no rank ever decides for itself.
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

#: Published plans that are remembered; more than any look-ahead needs.
PLANS_MAX = 256

#: The first slots of what is summed: the iteration that a plan is for (from 1), the plan's length in bytes, and the
#: iteration of the next exchange.
_HEADER = 3


class Planner(Protocol):
    """Rank 0's source of plans."""

    #: CPU time that its own threads have taken so far, in seconds.
    cpu_s: float

    def take(self, iteration: int) -> Plan | None:
        """The plan of an iteration; None: what is in force stays so. Never waits."""

    def learn(self, iteration: int, reports: list[Report | None], then: tuple[int, int]) -> None:
        """How an iteration went, by rank, and the (iteration, samples) that a plan is wanted for next. Never waits."""


@dataclass(frozen=True, slots=True)
class Lead:
    """What rank 0 has more than the others."""

    planner: Planner
    budget: Budget

    def iterations(self, iteration: int) -> int:
        """After how many iterations ranks exchange next; asked by the thread that exchanges."""
        return self.budget.iterations(iteration, time.thread_time() + self.planner.cpu_s)


@dataclass(frozen=True, slots=True)
class Said:
    """What one rank says of an iteration."""

    iteration: int
    #: Made by the thread, without drivers: may wait for a device.
    report: Callable[[], Report]
    #: Samples of the iteration that comes so many after this one.
    size_after: Callable[[int], int]
    #: Whether ranks exchange now in any case.
    is_last: bool


class Exchange:
    """One rank's side. Submissions come from the training, plans are asked for by it; the rest is its thread's."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        ahead: int,
        plans: list[tuple[int, Plan]],
        drivers: Callable[[], dict[str, float]],
        lead: Lead | None,
    ) -> None:
        """Begins.

        Args:
            group: a CPU group of all ranks that nobody else uses.
            ahead: at iteration ``k`` the plan of ``k + ahead`` is published.
            plans: those of the first iterations, the same on all ranks; at least one.
            drivers: reads the machine.
            lead: where plans come from, and how often ranks exchange; only on rank 0.
        """
        self._group = group
        self._ahead = ahead
        self._drivers = drivers
        self._lead = lead
        self._plans = deque(plans, maxlen=PLANS_MAX)
        #: What was submitted and not exchanged. No longer than the way to the next exchange and the look-ahead.
        self._said: deque[Said] = deque()
        #: The iteration that ranks exchange at, or will as soon as it is submitted.
        self._due = 0
        #: The one that the thread is at.
        self._now: int | None = None
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._is_closing = False
        #: Whether every report could be made so far.
        self._is_measured = True
        self._thread = threading.Thread(target=self._run, name="evenstep-exchange", daemon=True)
        self._thread.start()

    def submit(self, said: Said) -> None:
        """Says how an iteration went; every rank must, for the same iterations in the same order."""
        with self._changed:
            self._said.append(said)
            # While the thread is busy it is not known yet where the next exchange is; it looks when it is done.
            if self._now is None:
                self._look()

    def plan(self, iteration: int) -> Plan:
        """The plan of an iteration: the latest that was published for it or an earlier one.

        Waits for an exchange that was due ``ahead`` iterations before, which is nearly always over.

        Raises:
            EvenstepError: ranks could not reach each other.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._failure or self._now is None or self._now > iteration - self._ahead)
            if self._failure:
                raise EvenstepError(f"exchanging plans between ranks: {self._failure}") from self._failure
            return next((plan for at, plan in reversed(self._plans) if at <= iteration), self._plans[0][1])

    def settle(self, timeout_s: float) -> None:
        """Waits until all that is due is exchanged, or failed, or for so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure or self._now is None, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Ends the thread when all that is due is exchanged, or after so long."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def _look(self) -> None:
        """Whether an exchange is due. Under the lock."""
        due = (said.iteration for said in self._said if said.is_last or said.iteration >= self._due)
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
                    self._look()
                    self._changed.notify_all()
        except Exception as error:  # noqa: BLE001  # whatever it is, the training must hear of it and not wait for ever.
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _next(self) -> list[Said]:
        """What was submitted up to the next exchange; nothing: it is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closing or self._now is not None)
            stretch: list[Said] = []
            while self._now is not None and self._said and self._said[0].iteration <= self._now:
                stretch.append(self._said.popleft())
            return stretch

    def _exchange(self, stretch: list[Said]) -> tuple[tuple[int, Plan] | None, int]:
        rank, world_size = dist.get_rank(self._group), dist.get_world_size(self._group)
        said = stretch[-1]
        slots = torch.zeros(_HEADER + world_size * SLOTS, dtype=torch.float64)
        begin = _HEADER + rank * SLOTS
        slots[begin : begin + SLOTS] = torch.tensor(self._row(stretch), dtype=torch.float64)
        target, payload = said.iteration + self._ahead, b""
        if self._lead:
            slots[2] = said.iteration + self._lead.iterations(said.iteration)
            # What would only say again what is in force needs not travel. It may have been made for another number of
            # samples: an epoch that is left midway ends sooner than was thought. Whoever takes it up resizes it.
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

    def _row(self, stretch: list[Said]) -> list[float]:
        try:
            report = merged([said.report() for said in stretch])
            return replace(report, drivers=self._drivers()).to_row()
        except Exception as error:  # noqa: BLE001  # whoever stays away from the sum leaves all others waiting.
            if self._is_measured:
                log.warning("iteration %s: not measured, nor later ones that fail so: %s", stretch[-1].iteration, error)
            self._is_measured = False
            return [0.0] * SLOTS
