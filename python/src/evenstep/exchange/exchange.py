"""The exchange between ranks: reports go to rank 0, and rank 0's plan goes to all ranks.

Each rank runs the exchange in its own thread and in a separate CPU process group, so no step waits for a report, a
reading or the predictor. At iteration ``k`` rank 0 publishes a plan for iteration ``k + ahead``, and the iteration of
the next exchange. Exchanges are rare enough to stay within the overhead budget; if iterations are long, every iteration
has one.

If samples have costs, each rank also sends what its compute times tell about the quadratic share of the work. All ranks
compute the same share from it, which counts from the same iteration as a plan that is published then.

The plan of an iteration depends only on the published plans, which are the same on all ranks. Loops may read any number
of iterations ahead, and each rank another number. Therefore a plan is published for an iteration that no rank has read:
each rank sends the first iteration whose plan it does not use before the exchange ends, and the largest one counts.
"""

import logging
import queue
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist

from evenstep._native import Plan
from evenstep.errors import EvenstepError, SettingError
from evenstep.exchange.report import SLOTS, Report, by_worker, merged
from evenstep.exchange.share_log import ShareLog
from evenstep.exchange.whole_step import WholeStep, WholeSteps
from evenstep.samples.work import CHANGE_MIN, Observed, Prior
from evenstep.settings.budget import Budget

log = logging.getLogger("evenstep")

#: The predictor plans at most this many iterations past the last report.
LOOK_AHEAD_MAX = 64

#: The reason for an error after :meth:`Exchange.close`, and the advice.
CLOSED = "the job was closed: read all batches before job.close(), or create a new job with evenstep.init()"

#: Number of leading slots in the reduced tensor: the plan's length in bytes, and the iteration of the next exchange.
#: The first open iteration of each rank and the limits of its passes follow.
_HEADER = 2

#: Duration of a wait for a plan without a message, in seconds.
_QUIET_S = 60.0

#: Time after the deadline in which the thread notices it, in seconds: soon, except on a machine under load and while it
#: reads a device or the agent.
_NOTICE_S = 5.0

#: Maximum duration of one wait for other ranks. After it, the thread looks whether the exchange was closed.
_WAIT = timedelta(seconds=0.2)


class Planner(Protocol):
    """The source of plans on rank 0."""

    @property
    def cpu_s(self) -> float:
        """CPU time of the planner's own threads up to now, in seconds."""

    def take(self, iteration: int) -> Plan | None:
        """Returns the plan for an iteration, or None to keep the current one. Never waits."""

    def learn(self, iteration: int, rows: list[float], then: int, whole: WholeStep | None = None) -> None:
        """Records the reports of an iteration and requests the next plan. Never waits.

        Args:
            iteration: the reported iteration.
            rows: the rows of the reports (:meth:`Report.to_row`) by worker; zeros for a worker without a report.
            then: the iteration of the requested plan, which is for a whole global batch.
            whole: the time of the whole step, if it is known.
        """


@dataclass(frozen=True, slots=True)
class Lead:
    """The parts of the exchange that only rank 0 has."""

    planner: Planner
    budget: Budget
    share_log: ShareLog
    #: The ranks of each worker; empty if each rank is one.
    members: Sequence[Sequence[int]] = ()

    def iterations(self, iteration: int, cpu_s: float) -> int:
        """Returns the number of iterations to the next exchange; ``cpu_s`` is the CPU time of the exchange thread."""
        return self.budget.iterations(iteration, cpu_s + self.planner.cpu_s)


@dataclass(frozen=True, slots=True)
class Submission:
    """One rank's submission for an iteration."""

    iteration: int
    #: Called by the exchange thread and may wait for a device. The report has no driver readings yet.
    report: Callable[[], Report]
    #: Whether this iteration always has an exchange.
    is_last: bool
    #: Samples of all ranks in this iteration; 0 if they are not known.
    samples: int = 0
    #: The limits of this rank's passes; zeros if they are unknown.
    limits: tuple[int, int] = (0, 0)
    #: Time of the monotonic clock when the loop requested the epoch that begins with this iteration, if one does.
    begun_s: float | None = None
    #: Time of the monotonic clock when its gradients were complete.
    ended_s: float = field(default_factory=time.perf_counter)


@dataclass(frozen=True, slots=True)
class Published:
    """The plan and the share that all ranks use from an iteration on."""

    iteration: int
    plan: Plan
    #: The quadratic share of the work.
    share: float


class Exchange:
    """One rank's side of the exchange. The training calls ``submit`` and ``plan``; the thread does the rest."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        ahead: int,
        plans: list[tuple[int, Plan]],
        drivers: Callable[[], dict[str, float]],
        lead: Lead | None,
        *,
        prior: Prior | None = None,
    ) -> None:
        """Starts the exchange thread.

        Args:
            group: a CPU process group of all ranks, used for nothing else.
            ahead: at iteration ``k`` the plan of ``k + ahead`` is published, or of a later one that no rank has read.
            plans: the plans of the first iterations, the same on all ranks; at least one.
            drivers: reads the drivers of this machine.
            lead: the source of plans and the exchange budget; only on rank 0.
            prior: the quadratic share at the start, the same on all ranks; None if samples have no costs.
        """
        self._group = group
        self._ahead = ahead
        self._drivers = drivers
        self._lead = lead
        self._prior = prior
        self._observed = Observed()
        self._whole_steps = WholeSteps()
        #: The limits of the passes of each rank at the last exchange.
        self.limits: list[tuple[int, int]] = []
        share = prior.share if prior else 0.0
        #: Entries for iterations before the last exchanged one are dropped.
        self._published = deque(Published(at, plan, share) for at, plan in plans)
        #: Submissions that are not exchanged yet. Its length is bounded by the exchange interval plus the look-ahead.
        self._submissions: deque[Submission] = deque()
        #: The iteration of the next exchange, which starts as soon as that iteration is submitted.
        self._due = 0
        #: The iteration that the thread is exchanging now.
        self._now: int | None = None
        #: The first iteration whose plan is not used before the current exchange ends.
        self._open = 0
        #: The iteration after the highest one whose plan was read.
        self._read = 0
        #: The iteration after the highest one whose plan was returned.
        self._returned = 0
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        #: Time of the monotonic clock after which the thread waits for no other rank; None before :meth:`close`.
        self._deadline: float | None = None
        #: Whether the thread and Gloo's threads need the interpreter no more, or another rank hangs.
        self._has_ended = threading.Event()
        self._hangs = False
        #: The tensors of the last exchanges, and queues that get an entry when Python and Gloo have released one.
        self._lent: deque[tuple[weakref.ref[torch.Tensor], queue.SimpleQueue[object]]] = deque(maxlen=4)
        #: Whether every report was measured so far.
        self._is_measured = True
        #: CPU time of the thread in waits for a device. Its driver decides how to wait; an exchange does not cost that.
        self._waits_cpu_s = 0.0
        self._thread = threading.Thread(target=self._run, name="evenstep-exchange", daemon=True)
        self._thread.start()

    def submit(self, said: Submission) -> None:
        """Submits an iteration; every rank must submit the same iterations in the same order."""
        with self._changed:
            if self._deadline is not None:
                return  # No thread would exchange it.
            self._submissions.append(said)
            # While the thread is busy, the iteration of the next exchange is unknown; the thread checks again
            # afterwards.
            if self._now is None:
                self._check_due()

    def plan(self, iteration: int) -> Plan:
        """Returns the plan of an iteration: the newest one published for it or for an earlier iteration.

        Waits for an exchange that may change it. The exchange that was due ``ahead`` iterations before has nearly
        always finished.

        Raises:
            EvenstepError: the exchange between ranks failed.
            SettingError: the exchange was closed, so the newest plan is unknown.
        """
        with self._changed:
            if iteration < self._returned:
                # Known also after a failure or the end: checkpoints contain it.
                return self._at(iteration).plan
            # Before the wait: the exchange after the current one cannot change this plan any more.
            self._read = max(self._read, iteration + 1)
            is_known = lambda: (  # noqa: E731
                self._failure or self._deadline is not None or self._now is None or iteration < self._open
            )
            if not self._changed.wait_for(is_known, _QUIET_S):
                log.warning(
                    "the plan of iteration %s has been missing for %s s: another rank has not finished iteration %s",
                    iteration,
                    _QUIET_S,
                    self._now,
                )
                # Its end is the time limit of the group.
                self._changed.wait_for(is_known)
            if self._failure:
                raise EvenstepError(
                    f"the plan of iteration {iteration} is missing: the exchange between ranks after iteration "
                    f"{self._now} failed; another rank may have ended or hang: {self._failure}"
                ) from self._failure
            if self._deadline is not None:
                raise SettingError(f"iteration {iteration} has no plan, because {CLOSED}")
            self._returned = max(self._returned, iteration + 1)
            return self._at(iteration).plan

    def share(self, iteration: int) -> float:
        """Returns the quadratic share of an iteration whose plan was read."""
        with self._changed:
            return self._at(iteration).share

    def _at(self, iteration: int) -> Published:
        """Returns the newest entry for an iteration or an earlier one. The caller holds the lock."""
        found = (published for published in reversed(self._published) if published.iteration <= iteration)
        return next(found, self._published[0])

    def settle(self, timeout_s: float) -> None:
        """Waits until all due exchanges are finished or failed, at most ``timeout_s`` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure or self._now is None, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Stops the thread once all due exchanges are finished, or after ``timeout_s`` seconds.

        Before Python 3.14 a thread that returns from C++ while the interpreter ends aborts the process. So do Gloo's
        threads, which wait for the interpreter's lock after a collective, to release its tensors.
        """
        with self._changed:
            self._deadline = time.monotonic() + timeout_s
            self._changed.notify_all()
        if self._has_ended.wait(timeout_s + _NOTICE_S) and not self._hangs:
            # Otherwise the thread could be the last one to hold the group, whose destructor is C++, too.
            self._thread.join()

    def _check_due(self) -> None:
        """Checks whether an exchange is due. The caller holds the lock."""
        due = (said.iteration for said in self._submissions if said.is_last or said.iteration >= self._due)
        self._now = next(due, None)
        if self._now is not None:
            self._open = max(self._read, self._now + self._ahead)
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            while said := self._next():
                published, due = self._exchange(said)
                with self._changed:
                    if published:
                        self._published.append(published)
                    # All ranks have finished this iteration, so none reads the plan of an earlier one.
                    while len(self._published) > 1 and self._published[1].iteration <= said[-1].iteration:
                        self._published.popleft()
                    self._due = due
                    self._check_due()
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001  # the training must get any error instead of waiting for ever.
            traceback.clear_frames(error.__traceback__)  # They hold tensors.
            with self._changed:
                self._failure = error
                self._changed.notify_all()
        finally:
            deadline = time.monotonic() + _NOTICE_S
            for _, released in self._lent:
                with suppress(queue.Empty):
                    released.get(timeout=max(0.0, deadline - time.monotonic()))
            self._has_ended.set()

    def _next(self) -> list[Submission]:
        """Returns the submissions up to the next exchange; an empty list when the exchange is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._deadline is not None or self._now is not None)
            submissions_due: list[Submission] = []
            while self._now is not None and self._submissions and self._submissions[0].iteration <= self._now:
                submissions_due.append(self._submissions.popleft())
            return submissions_due

    def _exchange(self, submissions_due: list[Submission]) -> tuple[Published | None, int]:
        rank, world_size = dist.get_rank(self._group), dist.get_world_size(self._group)
        said, last = submissions_due[-1], self._published[-1]
        # One sum carries everything: each slot has one writer, and all other ranks add 0. The slots in order: the
        # header, the first open iteration of each rank, the limits of its passes, the evidence of each rank, the report
        # of each rank.
        limits = _HEADER + world_size
        evidences = limits + 2 * world_size
        rows = evidences + (2 * world_size if self._prior else 0)
        # Float64 holds iterations and lengths exactly, up to 2^53.
        slots = torch.zeros(rows + world_size * SLOTS, dtype=torch.float64)
        self._lend(slots)
        slots[_HEADER + rank] = self._open
        slots[limits + 2 * rank], slots[limits + 2 * rank + 1] = said.limits
        begin = rows + rank * SLOTS
        slots[begin : begin + SLOTS] = torch.tensor(self._row(submissions_due), dtype=torch.float64)
        if self._prior:
            # All ranks start from the share in force: otherwise their estimates could not be added up.
            at = evidences + 2 * rank
            slots[at : at + 2] = torch.tensor(self._observed.evidence(last.share), dtype=torch.float64)
        payload = b""
        if self._lead:
            cpu_s = time.thread_time() - self._waits_cpu_s
            # Only rank 0 knows the cost of exchanges, so it decides for all when the next one is.
            slots[1] = said.iteration + self._lead.iterations(said.iteration, cpu_s)
            # A plan equal to the current one need not be sent.
            if (taken := self._lead.planner.take(said.iteration + self._ahead)) and taken != last.plan:
                payload = taken.to_json().encode()
                slots[0] = len(payload)
        self._complete(dist.all_reduce(slots, group=self._group, async_op=True))

        length, due, *opened = (int(slot) for slot in slots[:limits].tolist())
        numbers = iter(map(int, slots[limits:evidences].tolist()))
        self.limits = list(zip(numbers, numbers, strict=True))
        plan, share = last.plan, last.share
        if self._prior:
            evidence = slots[evidences:rows].view(world_size, 2).tolist()
            # From the same numbers in the same order, so all ranks get the same share without another message.
            learned = self._prior.updated((precision, moment) for precision, moment in evidence)
            share = learned if abs(learned - share) > CHANGE_MIN else share
        if length:
            # The other ranks need a buffer of the plan's size, which they know only now.
            wire = torch.frombuffer(bytearray(payload or length), dtype=torch.uint8)
            self._lend(wire)
            self._complete(dist.broadcast(wire, src=0, group=self._group, async_op=True))
            plan = Plan.from_json(bytes(wire.tolist()).decode())
        # From the largest open iteration on, because no rank uses a plan for it before this exchange ends.
        published = None if (plan, share) == (last.plan, last.share) else Published(max(opened), plan, share)
        if self._lead:
            # If ranks plan further ahead than the predictor, they use a plan that it made for an earlier iteration.
            then = min(due + self._ahead, said.iteration + LOOK_AHEAD_MAX)
            samples, begun_s = [one.samples for one in submissions_due], submissions_due[0].begun_s
            whole = self._whole_steps.passed(samples, begun_s, said.ended_s)
            reported = slots[rows:].tolist()
            if self._lead.members:
                reported = by_worker(reported, self._lead.members)
            self._lead.planner.learn(said.iteration, reported, then, whole)
            current = published or last
            self._lead.share_log.see(current.iteration, current.plan)
        return published, due

    def _lend(self, tensor: torch.Tensor) -> None:
        """Observes when Python and Gloo's threads release a tensor."""
        # A callback in Python could give the interpreter's lock away.
        released = queue.SimpleQueue[object]()
        self._lent.append((weakref.ref(tensor, released.put), released))

    def _complete(self, work: dist.Work | None) -> None:
        """Waits for a collective, after :meth:`close` only until the deadline."""
        while work:
            try:
                work.wait(_WAIT)
            except RuntimeError:
                if work.is_completed():
                    work.wait()  # Raises its error, if it has one.
                elif self._deadline is not None and time.monotonic() > self._deadline:
                    self._hangs = True
                    self._has_ended.set()
                    # Another rank hangs. This thread keeps the group until the process ends: the destructor of a group
                    # waits for its collectives, up to half an hour.
                    threading.Event().wait()
                else:
                    continue
            return

    def _row(self, submissions_due: list[Submission]) -> list[float]:
        try:
            begun_s = time.thread_time()
            try:
                reports = [said.report() for said in submissions_due]
            finally:
                self._waits_cpu_s += time.thread_time() - begun_s
            for report in reports:
                self._observed.see(report.compute_time_s, report.work)
            report = merged(reports)
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
