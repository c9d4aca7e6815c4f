"""Rank 0's line to the predictor: asks while it answers, and costs the training nothing while it does not."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evenstep.errors import EvenstepError, RefusedError
from evenstep.plan import Plan, Share, Tail
from evenstep.rate import Ramp, Rate
from evenstep.report import Report
from evenstep.wire.client import Client
from evenstep.wire.errors import AskError, UnusableError
from evenstep.wire.messages import (
    AllocateAnswer,
    AllocateRequest,
    JobSpec,
    JoinAnswer,
    JoinRequest,
    TailReport,
    WorkerReport,
)

log = logging.getLogger("evenstep")

#: Iterations whose reports are kept while the predictor is away; the oldest fall out.
BACKLOG_MAX = 256

#: Reports that a request carries at most; but always those of one whole iteration.
REPORTS_PER_REQUEST = 256

#: Plans that wait to be published: they are taken up one an iteration.
PLANS_MAX = 256

#: Seconds between attempts to find a silent predictor again: the first, doubled up to the last.
RETRY_FIRST_S, RETRY_LAST_S = 0.1, 2.0

#: Refusals in a row after which the reports that went along are given up: they may be the cause.
REFUSALS_MAX = 3


@dataclass(frozen=True, slots=True)
class Registration:
    """The job, and the workers of this run in rank order."""

    client: Client
    job_id: str
    spec: JobSpec
    workers: Sequence[JoinRequest]
    #: The iteration that this run begins with.
    begin: int
    #: Whether it goes on from a checkpoint: it may ask again for what was answered then, and gets the same.
    resumed: bool
    #: Whether torchrun began it again: what the job has from before is ours, and so are the workers that died.
    restarted: bool = False

    def register(self) -> JoinAnswer:
        """Puts the job and joins every worker in rank order. All of it may be repeated.

        Raises:
            AskError: no answer, or workers that died are not known to be gone yet.
            RefusedError: the job's wishes break a rule, or it has other workers.
        """
        self.client.put_job(self.spec)
        joined = [self.client.join(worker) for worker in self.workers][-1]
        ours = {worker.worker for worker in self.workers}
        for other in joined.workers:
            if other not in ours and self.restarted:
                raise AskError(
                    f"job {self.job_id} has {other} from before its restart, until that one's lease runs out"
                )
            if other not in ours:
                raise RefusedError(
                    f"job {self.job_id} has another live worker, {other}: take a new EVENSTEP_JOB, or wait until its "
                    "lease runs out"
                )
        return joined

    def check_past(self, joined: JoinAnswer) -> None:
        """Refuses a job whose past is not ours: a job id is one run.

        Raises:
            RefusedError: it was answered past the iteration that this run begins with.
        """
        if not self.resumed and not self.restarted and joined.next_iteration > self.begin:
            raise RefusedError(
                f"job {self.job_id} was answered up to iteration {joined.next_iteration - 1} already, and this run "
                f"begins with {self.begin}: a job id is one run; go on with load_state_dict, or take a new EVENSTEP_JOB"
            )

    def request(self, generation: int, iteration: int, size: int, reports: Sequence[WorkerReport]) -> AllocateRequest:
        """A request for the plan of an iteration of ``size`` samples."""
        return AllocateRequest(
            job_id=self.job_id,
            generation=generation,
            iteration=iteration,
            global_batch=size if size != self.spec.global_batch else None,
            reports=tuple(reports),
        )

    def plan(self, answer: AllocateAnswer, size: int) -> Plan:
        """An answer in our rank order.

        Raises:
            UnusableError: it is about other workers, or does not cover the iteration exactly once.
        """
        told = {allocation.worker: allocation for allocation in answer.allocations}
        ours = [worker.worker for worker in self.workers]
        if len(answer.allocations) != len(ours) or set(told) != set(ours):
            raise UnusableError(f"the answer names the workers {sorted(told)}, and ours are {sorted(ours)}")
        by_rank = [told[worker] for worker in ours]
        said = answer.optimizer.ramp
        ramp = Ramp(said.from_, said.to, said.start_iteration, said.iterations) if said else None
        tail = None
        if answer.tail:
            tail = Tail(
                offset=answer.tail.offset,
                chunks=answer.tail.chunks,
                pools=answer.tail.pools or (len(answer.tail.chunks),),
                pool=tuple(allocation.pool for allocation in by_rank),
                speed=tuple(allocation.predicted_speed_samples_per_s for allocation in by_rank),
            )
        shares = tuple(Share(allocation.offset, allocation.local_batch) for allocation in by_rank)
        try:
            return Plan(shares, Rate(answer.optimizer.lr_multiplier, ramp), tail).checked(size)
        except EvenstepError as error:
            raise UnusableError(str(error)) from error


class Predictor:
    """A :class:`~evenstep.exchange.Planner` whose plans the predictor makes, asked by a thread of its own."""

    def __init__(self, registration: Registration) -> None:
        """Nothing is asked before :meth:`open`."""
        self._registration = registration
        self._changed = threading.Condition()
        self._wanted: tuple[int, int] | None = None
        self._plans: dict[int, Plan] = {}
        self._backlog: deque[tuple[int, list[WorkerReport]]] = deque(maxlen=BACKLOG_MAX)
        self._generation: int | None = None
        #: Whether the predictor took this run in: from then on the job's past is ours.
        self._known = False
        self._refusals = 0
        #: CPU time that asking has taken so far, in seconds.
        self.cpu_s = 0.0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="evenstep-predictor", daemon=True)

    def open(self, wanted: Sequence[tuple[int, int]], otherwise: Callable[[int], Plan]) -> list[tuple[int, Plan]]:
        """The plans of the first iterations, given as (iteration, samples); then asks on in the background.

        Where nobody answers the training begins with plans made `otherwise`, by the number of samples.

        Raises:
            RefusedError: the predictor refuses this run.
        """
        plans = []
        try:
            self._register()
            for iteration, size in wanted:
                plans.append((iteration, self._ask(iteration, size, [])))
        except AskError as error:
            log.warning("%s; training begins with even shares, and asking goes on", error)
            self._generation = None
            plans += [(iteration, otherwise(size)) for iteration, size in wanted[len(plans) :]]
        self._thread.start()
        return plans

    def take(self, iteration: int) -> Plan | None:
        """The newest plan that was answered by now, for this iteration or an earlier one, and is not taken.

        Where answers take longer than iterations each is late, and still better than what is in force.
        """
        with self._changed:
            answered = [at for at in self._plans if at <= iteration]
            plans = [self._plans.pop(at) for at in sorted(answered)]
            return plans[-1] if plans else None

    def learn(self, iteration: int, reports: list[Report | None], then: tuple[int, int]) -> None:
        """Keeps the reports of an iteration for the next request, and wants the next plan."""
        with self._changed:
            self._backlog.append((iteration, self._on_the_wire(reports)))
            # Only the newest is worth asking for: of one that still waits the answer would come too late.
            self._wanted = then
            self._changed.notify()

    def close(self, timeout_s: float) -> None:
        """Delivers the last reports and says that the workers leave, if the predictor answers within this time."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        retry_s = RETRY_FIRST_S
        while True:
            with self._changed:
                is_up = self._generation is not None
                self._changed.wait_for(self._has_work, None if is_up else retry_s)
                if self._closing:
                    break
                wanted, self._wanted = (self._wanted, None) if is_up else (None, self._wanted)
            if wanted:
                self._answer(*wanted)
                retry_s = RETRY_FIRST_S
            elif not self._recovered():
                retry_s = min(2 * retry_s, RETRY_LAST_S)
            self.cpu_s = time.thread_time()
        self._leave()

    def _has_work(self) -> bool:
        return self._closing or (self._generation is not None and self._wanted is not None)

    def _answer(self, iteration: int, size: int) -> None:
        taken = self._taken(iteration)
        try:
            plan = self._ask(iteration, size, [report for _, reports in taken for report in reports])
        except RefusedError as error:
            self._refusals += 1
            if self._refusals < REFUSALS_MAX:
                self._put_back(taken)
            if self._refusals in (1, REFUSALS_MAX):
                log.warning("iteration %s: %s; the last plan stays in force", iteration, error)
        except UnusableError as error:
            # The reports were taken in. Joining again puts foreign workers right.
            log.warning("iteration %s: %s; joining again", iteration, error)
            self._generation = None
        except AskError as error:
            log.warning("iteration %s: %s; the last plan stays in force, and asking goes on", iteration, error)
            self._put_back(taken)
            self._generation = None
        else:
            self._refusals = 0
            with self._changed:
                self._plans[iteration] = plan
                while len(self._plans) > PLANS_MAX:
                    del self._plans[min(self._plans)]

    def _ask(self, iteration: int, size: int, reports: Sequence[WorkerReport]) -> Plan:
        assert self._generation is not None  # noqa: S101  # callers have registered.
        answer = self._registration.client.allocate(
            self._registration.request(self._generation, iteration, size, reports)
        )
        return self._registration.plan(answer, size)

    def _register(self) -> None:
        joined = self._registration.register()
        if not self._known:
            self._registration.check_past(joined)
        self._known = True
        self._generation = joined.generation

    def _recovered(self) -> bool:
        try:
            self._register()
        except RefusedError as error:
            if not self._known:
                log.warning("%s; this run goes on without asking", error)
                self._closing = True
            return False
        except AskError:
            return False
        log.warning("the predictor answers; generation %s", self._generation)
        return True

    def _taken(self, iteration: int) -> list[tuple[int, list[WorkerReport]]]:
        """What a request for an iteration may carry: the oldest reports, of iterations before it."""
        taken: list[tuple[int, list[WorkerReport]]] = []
        count = 0
        with self._changed:
            while self._backlog and self._backlog[0][0] < iteration:
                count += len(self._backlog[0][1])
                if taken and count > REPORTS_PER_REQUEST:
                    break
                taken.append(self._backlog.popleft())
        return taken

    def _put_back(self, taken: list[tuple[int, list[WorkerReport]]]) -> None:
        with self._changed:
            room = BACKLOG_MAX - len(self._backlog)
            for entry in reversed(taken[max(0, len(taken) - room) :]):
                self._backlog.appendleft(entry)

    def _leave(self) -> None:
        if self._generation is None:
            return
        client, spec = self._registration.client, self._registration.spec
        try:
            # What a request may carry; the rest is lost with the run, which is over.
            if self._backlog:
                after = self._backlog[-1][0] + 1
                reports = [report for _, of_iteration in self._taken(after) for report in of_iteration]
                client.allocate(self._registration.request(self._generation, after, spec.global_batch, reports))
            for worker in self._registration.workers:
                client.leave(worker.worker)
        except (AskError, RefusedError) as error:
            log.warning("leaving the job: %s; the leases will run out instead", error)

    def _on_the_wire(self, reports: list[Report | None]) -> list[WorkerReport]:
        pairs = zip(self._registration.workers, reports, strict=True)
        # A worker that computed nothing has no speed to tell of.
        there = [(worker.worker, report) for worker, report in pairs if report and report.compute_time_s > 0]
        last = max((_busy_s(report) for _, report in there), default=0.0)
        return [_on_the_wire(worker, report, last) for worker, report in there if report.local_batch]


def _on_the_wire(worker: str, report: Report, last: float) -> WorkerReport:
    tail = report.tail
    return WorkerReport(
        worker=worker,
        iteration=report.iteration,
        local_batch=report.local_batch,
        compute_time_s=report.compute_time_s,
        # One pass is what a report without it says.
        micro_batches=report.micro_batches if report.micro_batches > 1 else None,
        tail=TailReport(tail.chunks, tail.samples, tail.compute_time_s, tail.claim_time_s) if tail else None,
        barrier_wait_s=last - _busy_s(report),
        loader_wait_s=report.loader_wait_s,
        peak_memory_bytes=report.peak_memory_bytes,
        drivers=report.drivers,
    )


def _busy_s(report: Report) -> float:
    return report.compute_time_s + report.loader_wait_s + (report.tail.claim_time_s if report.tail else 0.0)
