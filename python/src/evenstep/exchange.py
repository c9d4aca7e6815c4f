"""What ranks tell each other once an iteration, beside the training: reports to rank 0, and its plan to all.

A thread of its own on each rank does it, on a CPU group of its own, so that no step waits for a report, a reading or
the predictor. Rank 0 publishes in iteration ``k`` the plan of iteration ``k + ahead``. Which plan an iteration has
follows from what was published alone, and all ranks hear the same: no rank ever decides for itself.
"""

import json
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist

from evenstep.errors import EvenstepError
from evenstep.plan import Plan
from evenstep.report import SLOTS, Report

log = logging.getLogger("evenstep")

#: Published plans that are remembered; more than any look-ahead needs.
PLANS_MAX = 256

#: The first slots of what is summed: the iteration that a plan is for (from 1), and the plan's length in bytes.
_HEADER = 2


class Planner(Protocol):
    """Rank 0's source of plans."""

    def take(self, iteration: int) -> Plan | None:
        """The plan of an iteration; None: what is in force stays so. Never waits."""

    def learn(self, iteration: int, reports: list[Report | None], then: tuple[int, int]) -> None:
        """How an iteration went, by rank, and the (iteration, samples) that a plan is wanted for next. Never waits."""


@dataclass(frozen=True, slots=True)
class Said:
    """What one rank says of an iteration."""

    iteration: int
    #: Finished by the thread: may wait for a device, and takes readings of the machine.
    report: Callable[[], Report]
    #: Samples of the iteration whose plan is published with the next one.
    size: int


class Exchange:
    """One rank's side. Submissions come from the training, plans are asked for by it; the rest is its thread's."""

    def __init__(
        self, group: dist.ProcessGroup, ahead: int, plans: list[tuple[int, Plan]], planner: Planner | None
    ) -> None:
        """Begins.

        Args:
            group: a CPU group of all ranks that nobody else uses.
            ahead: in iteration ``k`` the plan of ``k + ahead`` is published.
            plans: those of the first iterations, the same on all ranks; at least one.
            planner: where plans come from; only on rank 0.
        """
        self._group = group
        self._ahead = ahead
        self._planner = planner
        self._plans = deque(plans, maxlen=PLANS_MAX)
        self._pending: deque[int] = deque()
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        #: Whether every report could be made so far.
        self._is_measured = True
        self._said: queue.SimpleQueue[Said | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="evenstep-exchange", daemon=True)
        self._thread.start()

    def submit(self, said: Said) -> None:
        """Says how an iteration went; every rank must, for the same iterations in the same order."""
        with self._changed:
            self._pending.append(said.iteration)
        self._said.put(said)

    def plan(self, iteration: int) -> Plan:
        """The plan of an iteration: the latest that was published for it or an earlier one.

        Waits for what was submitted ``ahead`` iterations before, which is nearly always there.

        Raises:
            EvenstepError: ranks could not reach each other.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._failure or not self._pending or self._pending[0] > iteration - self._ahead
            )
            if self._failure:
                raise EvenstepError(f"exchanging plans between ranks: {self._failure}") from self._failure
            return next((plan for at, plan in reversed(self._plans) if at <= iteration), self._plans[0][1])

    def settle(self, timeout_s: float) -> None:
        """Waits until all that was submitted is exchanged, or failed, or for so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure or not self._pending, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Ends the thread when all that was submitted is exchanged, or after so long."""
        self._said.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while said := self._said.get():
                published = self._exchange(said)
                with self._changed:
                    self._pending.popleft()
                    if published:
                        self._plans.append(published)
                    self._changed.notify_all()
        except Exception as error:  # noqa: BLE001  # whatever it is, the training must hear of it and not wait for ever.
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _exchange(self, said: Said) -> tuple[int, Plan] | None:
        rank, world_size = dist.get_rank(self._group), dist.get_world_size(self._group)
        slots = torch.zeros(_HEADER + world_size * SLOTS, dtype=torch.float64)
        begin = _HEADER + rank * SLOTS
        slots[begin : begin + SLOTS] = torch.tensor(self._row(said), dtype=torch.float64)
        target, payload = said.iteration + self._ahead, b""
        if self._planner and (plan := self._planner.take(target)):
            # What would only say again what is in force needs not travel. It may have been made for another number of
            # samples: an epoch that is left midway ends sooner than was thought. Whoever takes it up resizes it.
            if plan != self._plans[-1][1]:
                payload = json.dumps(plan.to_json()).encode()
            slots[0], slots[1] = target + 1.0, len(payload)
        dist.all_reduce(slots, group=self._group)

        published = None
        if length := int(slots[1]):
            wire = torch.frombuffer(bytearray(payload or length), dtype=torch.uint8)
            dist.broadcast(wire, src=0, group=self._group)
            published = (int(slots[0]) - 1, Plan.from_json(json.loads(bytes(wire.tolist()))))
        if self._planner:
            rows = slots[_HEADER:].reshape(world_size, SLOTS).tolist()
            reports = [Report.from_row(row) for row in rows]
            self._planner.learn(said.iteration, reports, (target + 1, said.size))
        return published

    def _row(self, said: Said) -> list[float]:
        try:
            return said.report().to_row()
        except Exception as error:  # noqa: BLE001  # whoever stays away from the sum leaves all others waiting.
            if self._is_measured:
                log.warning("iteration %s: not measured, nor later ones that fail so: %s", said.iteration, error)
            self._is_measured = False
            return [0.0] * SLOTS
