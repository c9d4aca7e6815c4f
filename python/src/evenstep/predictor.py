"""Rank 0's connection to the predictor. While the predictor is unreachable, training continues without waiting."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evenstep.errors import EvenstepError, RejectedError
from evenstep.plan import Plan, Share, Tail
from evenstep.rate import Ramp, Rate
from evenstep.report import Report
from evenstep.wire.client import Client
from evenstep.wire.errors import RequestError, UnusableError
from evenstep.wire.messages import (
    AllocateRequest,
    AllocateResponse,
    JobSpec,
    JoinRequest,
    JoinResponse,
    TailReport,
    WorkerReport,
)

log = logging.getLogger("evenstep")

#: Number of iterations whose reports are kept while the predictor is unreachable; the oldest are dropped.
BACKLOG_MAX = 256

#: Maximum number of reports in a request; the reports of one iteration are never split.
REPORTS_PER_REQUEST = 256

#: Maximum number of plans that wait to be published; each iteration publishes at most one.
PLANS_MAX = 256

#: Pause between attempts to reach an unreachable predictor, in seconds: the first, which doubles up to the last.
RETRY_FIRST_S, RETRY_LAST_S = 0.1, 2.0

#: Number of consecutive rejections after which the reports in the request are dropped, because they may be the cause.
REFUSALS_MAX = 3


@dataclass(frozen=True, slots=True)
class Registration:
    """The job, and the workers of this run in rank order."""

    client: Client
    job_id: str
    spec: JobSpec
    workers: Sequence[JoinRequest]
    #: The first iteration of this run.
    begin: int
    #: Whether the run resumes from a checkpoint. It may then request allocations again, and gets the same responses.
    resumed: bool
    #: Whether torchrun restarted the run. The job's earlier state then belongs to this run, and dead workers may still
    #: be listed.
    restarted: bool = False

    def register(self) -> JoinResponse:
        """Creates the job and joins all workers in rank order. It may be repeated.

        Raises:
            AskError: no response, or the leases of workers that died have not expired yet.
            RejectedError: the job options break a rule, or the job has other workers.
        """
        self.client.put_job(self.spec)
        joined = [self.client.join(worker) for worker in self.workers][-1]
        ours = {worker.worker for worker in self.workers}
        for other in joined.workers:
            if other not in ours and self.restarted:
                raise RequestError(
                    f"job {self.job_id} still has worker {other} from before the restart, until its lease expires"
                )
            if other not in ours:
                raise RejectedError(
                    f"job {self.job_id} has another live worker, {other}: use a new EVENSTEP_JOB, or wait until "
                    "its lease expires"
                )
        return joined

    def check_ownership(self, joined: JoinResponse) -> None:
        """Rejects a job that belongs to another run: a job id identifies one run.

        Raises:
            RejectedError: the job has allocations past the first iteration of this run.
        """
        if not self.resumed and not self.restarted and joined.next_iteration > self.begin:
            raise RejectedError(
                f"job {self.job_id} already has allocations up to iteration {joined.next_iteration - 1}, but this "
                f"run starts at {self.begin}: a job id identifies one run; resume with load_state_dict, or use a "
                "new EVENSTEP_JOB"
            )

    def request(self, generation: int, iteration: int, size: int, reports: Sequence[WorkerReport]) -> AllocateRequest:
        """Returns a request for the allocation of an iteration with ``size`` samples."""
        return AllocateRequest(
            job_id=self.job_id,
            generation=generation,
            iteration=iteration,
            global_batch=size if size != self.spec.global_batch else None,
            reports=tuple(reports),
        )

    def plan(self, answer: AllocateResponse, size: int) -> Plan:
        """Converts a response to a plan in the run's rank order.

        Raises:
            UnusableError: the response has other workers, or does not cover the iteration exactly once.
        """
        told = {allocation.worker: allocation for allocation in answer.allocations}
        ours = [worker.worker for worker in self.workers]
        if len(answer.allocations) != len(ours) or set(told) != set(ours):
            raise UnusableError(f"the response names the workers {sorted(told)}, but this run has {sorted(ours)}")
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
    """A :class:`~evenstep.exchange.Planner` that requests plans from the predictor in its own thread."""

    def __init__(self, registration: Registration) -> None:
        """Sends no request before :meth:`open`."""
        self._registration = registration
        self._changed = threading.Condition()
        self._next_request: tuple[int, int] | None = None
        self._plans: dict[int, Plan] = {}
        self._backlog: deque[tuple[int, list[WorkerReport]]] = deque(maxlen=BACKLOG_MAX)
        self._generation: int | None = None
        #: Whether the predictor accepted this run. From then on the job's earlier state belongs to this run.
        self._known = False
        self._refusals = 0
        #: CPU time of the requests up to now, in seconds.
        self.cpu_s = 0.0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="evenstep-predictor", daemon=True)

    def open(self, wanted: Sequence[tuple[int, int]], otherwise: Callable[[int], Plan]) -> list[tuple[int, Plan]]:
        """Returns the plans of the first iterations, then requests further ones in the background.

        The iterations are (iteration, samples) pairs. If no predictor responds, training starts with the plans that
        `otherwise` returns for a number of samples.

        Raises:
            RejectedError: the predictor rejects this run.
        """
        plans = []
        try:
            self._register()
            for iteration, size in wanted:
                plans.append((iteration, self._ask(iteration, size, [])))
        except RequestError as error:
            log.warning("%s; training starts with equal batches while requests continue in the background", error)
            self._generation = None
            plans += [(iteration, otherwise(size)) for iteration, size in wanted[len(plans) :]]
        self._thread.start()
        return plans

    def take(self, iteration: int) -> Plan | None:
        """Returns the newest unused plan for this iteration or an earlier one.

        If responses take longer than iterations, every plan is late, but still better than the current one.
        """
        with self._changed:
            answered = [at for at in self._plans if at <= iteration]
            plans = [self._plans.pop(at) for at in sorted(answered)]
            return plans[-1] if plans else None

    def learn(self, iteration: int, reports: list[Report | None], then: tuple[int, int]) -> None:
        """Keeps the reports of an iteration for the next request, and requests the next plan."""
        with self._changed:
            self._backlog.append((iteration, self._worker_report(reports)))
            # Only the newest request is useful: the response to an older one would come too late.
            self._next_request = then
            self._changed.notify()

    def close(self, timeout_s: float) -> None:
        """Delivers the last reports and leaves the job, if the predictor responds within this time."""
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
                wanted, self._next_request = (self._next_request, None) if is_up else (None, self._next_request)
            if wanted:
                self._answer(*wanted)
                retry_s = RETRY_FIRST_S
            elif not self._rejoin():
                retry_s = min(2 * retry_s, RETRY_LAST_S)
            self.cpu_s = time.thread_time()
        self._leave()

    def _has_work(self) -> bool:
        return self._closing or (self._generation is not None and self._next_request is not None)

    def _answer(self, iteration: int, size: int) -> None:
        taken = self._taken(iteration)
        try:
            plan = self._ask(iteration, size, [report for _, reports in taken for report in reports])
        except RejectedError as error:
            self._refusals += 1
            if self._refusals < REFUSALS_MAX:
                self._restore_reports(taken)
            if self._refusals in (1, REFUSALS_MAX):
                log.warning("iteration %s: %s; keeping the last plan", iteration, error)
        except UnusableError as error:
            # The predictor accepted the reports. Joining again corrects the set of workers.
            log.warning("iteration %s: %s; joining again", iteration, error)
            self._generation = None
        except RequestError as error:
            log.warning("iteration %s: %s; keeping the last plan and retrying", iteration, error)
            self._restore_reports(taken)
            self._generation = None
        else:
            self._refusals = 0
            with self._changed:
                self._plans[iteration] = plan
                while len(self._plans) > PLANS_MAX:
                    del self._plans[min(self._plans)]

    def _ask(self, iteration: int, size: int, reports: Sequence[WorkerReport]) -> Plan:
        assert self._generation is not None  # noqa: S101  # the callers register first.
        answer = self._registration.client.allocate(
            self._registration.request(self._generation, iteration, size, reports)
        )
        return self._registration.plan(answer, size)

    def _register(self) -> None:
        joined = self._registration.register()
        if not self._known:
            self._registration.check_ownership(joined)
        self._known = True
        self._generation = joined.generation

    def _rejoin(self) -> bool:
        try:
            self._register()
        except RejectedError as error:
            if not self._known:
                log.warning("%s; training continues without the predictor", error)
                self._closing = True
            return False
        except RequestError:
            return False
        log.warning("connected to the predictor; generation %s", self._generation)
        return True

    def _taken(self, iteration: int) -> list[tuple[int, list[WorkerReport]]]:
        """Returns the reports for the next request: the oldest ones, of iterations before ``iteration``."""
        taken: list[tuple[int, list[WorkerReport]]] = []
        count = 0
        with self._changed:
            while self._backlog and self._backlog[0][0] < iteration:
                count += len(self._backlog[0][1])
                if taken and count > REPORTS_PER_REQUEST:
                    break
                taken.append(self._backlog.popleft())
        return taken

    def _restore_reports(self, taken: list[tuple[int, list[WorkerReport]]]) -> None:
        with self._changed:
            room = BACKLOG_MAX - len(self._backlog)
            for entry in reversed(taken[max(0, len(taken) - room) :]):
                self._backlog.appendleft(entry)

    def _leave(self) -> None:
        if self._generation is None:
            return
        client, spec = self._registration.client, self._registration.spec
        # The last request carries as many reports as fit; the others are lost, because the run is over.
        if self._backlog:
            after = self._backlog[-1][0] + 1
            reports = [report for _, of_iteration in self._taken(after) for report in of_iteration]
            request = self._registration.request(self._generation, after, spec.global_batch, reports)
            try:
                client.allocate(request)
            except (RequestError, RejectedError) as error:
                log.warning("cannot send the last reports: %s", error)
        try:
            for worker in self._registration.workers:
                client.leave(worker.worker)
        except (RequestError, RejectedError) as error:
            log.warning("cannot leave the job: %s; the leases of its workers will expire", error)

    def _worker_report(self, reports: list[Report | None]) -> list[WorkerReport]:
        pairs = zip(self._registration.workers, reports, strict=True)
        # A worker without samples has no speed to report.
        there = [(worker.worker, report) for worker, report in pairs if report and report.compute_time_s > 0]
        last = max((_busy_s(report) for _, report in there), default=0.0)
        return [_worker_report(worker, report, last) for worker, report in there if report.local_batch]


def _worker_report(worker: str, report: Report, last: float) -> WorkerReport:
    tail = report.tail
    return WorkerReport(
        worker=worker,
        iteration=report.iteration,
        local_batch=report.local_batch,
        compute_time_s=report.compute_time_s,
        # A report without this field means one pass.
        micro_batches=report.micro_batches if report.micro_batches > 1 else None,
        tail=TailReport(tail.chunks, tail.samples, tail.compute_time_s, tail.claim_time_s) if tail else None,
        barrier_wait_s=last - _busy_s(report),
        loader_wait_s=report.loader_wait_s,
        peak_memory_bytes=report.peak_memory_bytes,
        drivers=report.drivers,
    )


def _busy_s(report: Report) -> float:
    return report.compute_time_s + report.loader_wait_s + (report.tail.claim_time_s if report.tail else 0.0)
