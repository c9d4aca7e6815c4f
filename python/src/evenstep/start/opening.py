"""The start of a run: ranks check that they agree, and get the plans of the first iterations.

The first part is in ``job.loader``, the second before the first batch, so scripts may load a checkpoint between them.
"""

import functools
import itertools
import logging
import operator
import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from evenstep._native import Plan
from evenstep.errors import EvenstepError, RejectedError, SettingError
from evenstep.exchange.exchange import CLOSED, LOOK_AHEAD_MAX, Exchange, Lead
from evenstep.exchange.given_plans import AgreedPlans, FilledPlans, even_plan, given_plans
from evenstep.exchange.predictor import Predictor
from evenstep.exchange.share_log import ShareLog
from evenstep.measure.device import current_device
from evenstep.measure.drivers import Drivers
from evenstep.measure.drivers.gpu import gpu_name
from evenstep.measure.sensor import Sensor
from evenstep.run.loader import WEIGHTLESS_SAMPLES
from evenstep.run.run import Run
from evenstep.samples.order import Order
from evenstep.samples.progress import Progress, resumed
from evenstep.samples.work import Prior
from evenstep.settings import job_id, launcher
from evenstep.settings.budget import Budget
from evenstep.settings.connection import job_view
from evenstep.settings.options import RunOptions, job_spec
from evenstep.settings.settings import AUTO, OFF
from evenstep.settings.workers import Workers
from evenstep.start import earlier, lines
from evenstep.start.agreement import check_alike, gather_facts, gathered
from evenstep.start.group import awaiting, open_group
from evenstep.start.local import AGENT, PREDICTOR, local_url
from evenstep.start.local.embedded import Embedded

log = logging.getLogger("evenstep")

#: Additional iterations between a report and the plan that depends on its exchange, so that no step waits for it.
_SLACK = 1

#: Maximum number of iterations between two exchanges: with the shortest look-ahead, the predictor plans for the second.
_INTERVAL_MAX = LOOK_AHEAD_MAX - _SLACK - 1

#: Timeout of a reading of a GPU in seconds: its driver may take longer than the files of /proc.
_GPU_READING_S = 0.1

#: Time limit for a look at the job of a checkpoint, in seconds.
_LOOK_S = 2.0

#: Duration of a wait for the other ranks' first batches without a message, in seconds.
_NOTICE_S = 60.0

#: That message. The script may be slow, so it is no error.
_MISSING = (
    "rank %s has waited for %s s because other ranks have not read their first batch: all ranks must iterate over "
    "job.loader together, also to look at a batch. A rank that reads one before it creates DistributedDataParallel "
    "waits for ranks that wait for it there"
)


@dataclass(frozen=True, slots=True)
class Place:
    """A job at a predictor."""

    server: str
    job: str
    #: Host name of the only machine that can reach the predictor; None if all machines can.
    host: str | None = None

    def current_server(self) -> str:
        """Returns the URL now: an embedded predictor may have another address since the start."""
        return (self.host and local_url(PREDICTOR)) or self.server


@dataclass(frozen=True, slots=True)
class OpenedPlans:
    """The plans of a predictor."""

    exchange: Exchange
    #: On rank 0 only.
    predictor: Predictor | None
    place: Place


@dataclass(slots=True)
class OpenRun:
    """A run whose ranks agree, and the objects to close at its end."""

    run: Run
    begin: "_RunStart"
    group: dist.ProcessGroup | None
    workers: Sequence[Mapping[str, Any]]
    #: The values that ranks compare when the run starts.
    alike: dict[str, Any]
    embedded: Embedded | None
    #: Whether this is rank 0.
    is_first: bool
    #: The plans of the predictor since the start; None without one.
    plans: OpenedPlans | None = None

    def restore(self, state: dict[str, Any]) -> None:
        """Moves a run that has not started to the position of a checkpoint.

        Raises:
            SettingError: the checkpoint does not fit this run, which then does not change.
        """
        begin, before = self.begin.restored(state)
        plans = begin.plans(before)
        self.begin, self.alike = begin, begin.alike()
        self.run.binding.starts_at(begin.progress)
        self.run.plans, self.run.job = plans, begin.resumed_job
        self.run.quadratic_share = begin.quadratic_share

    def start(self) -> None:
        """Gets the first plans; all ranks call it together, before they read their first batch.

        Raises:
            DivergedError: only a part of the ranks has loaded the checkpoint.
            RejectedError: the predictor rejects this run.
            EvenstepError: other ranks do not read a first batch.
        """
        run, begin = self.run, self.begin
        if self.group:
            notice = threading.Timer(_NOTICE_S, log.warning, (_MISSING, dist.get_rank(), _NOTICE_S))
            notice.daemon = True
            notice.start()
            try:
                everyone = gathered(self.group, (self.alike, run.needs))
            except RuntimeError as error:
                raise EvenstepError(
                    f"not all ranks read their first batch: {error}; all ranks must iterate over job.loader together, "
                    "also to look at a batch"
                ) from error
            finally:
                notice.cancel()
            check_alike([alike for alike, _ in everyone])
            # A worker may have ranks with other models.
            run.needs = functools.reduce(operator.or_, [needs for _, needs in everyone])
            if begin.is_planned(run.world_size):
                otherwise = run.plans(run.binding.trained.iteration)
                self.plans = begin.opened(self.group, self.embedded, self.workers, otherwise, run.sensor)
        if self.plans and self.plans.predictor:
            lines.show([lines.page(self.plans.place.current_server(), self.plans.place.job)])
        elif self.group is None and begin.job_options.fixed is None and begin.job_options.settings.server != OFF:
            lines.show(["one process has no other worker to balance with; start several, for example with torchrun"])
        # Without a predictor, for example on a single rank, the next checkpoint still names the job.
        run.job = self.plans.place.job if self.plans else begin.resumed_job
        if self.plans:
            exchange = self.plans.exchange
            run.exchange, run.plans, run.quadratic_share = exchange, exchange.plan, exchange.share
        if begin.fills(run):
            run.plans = FilledPlans(
                run.plans, run.quantum, run.caps, tells=bool(begin.job_options.fixed and self.is_first)
            )

    def close(self, timeout_s: float) -> None:
        """Delivers the last reports and leaves the job, each within this time. Rank 0 shows what the job gained."""
        self.run.starts = _refuse_start
        if self.plans:
            self.plans.exchange.close(timeout_s)
            if self.plans.predictor:
                servers, job = self.plans.place.current_server(), self.plans.place.job
                # While its workers are still there: why one is slow is not known after they have left.
                summary = lines.summary(servers, job)
                earlier.remember(_script(), servers, job)
                self.plans.predictor.close(timeout_s)
                lines.show(summary)
        if self.embedded:
            self.embedded.close()


def open_run(job_options: RunOptions, order: Order, reads_ahead: int, state: dict[str, Any] | None) -> OpenRun:
    """Opens a run, which starts before its first batch; all ranks must call it with the same arguments.

    Raises:
        SettingError: an option breaks its rule, or there is no process group for several processes.
        DivergedError: ranks differ in a value that must be the same.
        EvenstepError: another rank ended, hangs, did not come, or cannot be reached.
    """
    quantum = _quantum(job_options.quantum, order)
    begin = _RunStart(job_options, order, quantum, reads_ahead + _SLACK + 1, order.prior)
    begin, before = begin.restored(state) if state else (begin, None)
    group = open_group(job_options.settings.world_size)
    facts = begin.facts(current_device())
    rank = dist.get_rank() if group else 0
    alike, name, workers, of = begin.alike(), "", list[Mapping[str, Any]](), Workers()
    if group:
        found = gather_facts(group, {**facts, "alike": alike})
        name, workers, of, fixed = found.name, list(found.workers), found.of, job_options.fixed
        if callable(fixed):
            fixed = AgreedPlans(fixed, _get_default_store(), f"evenstep/plans/{name}", deletes=rank == 0)
        begin = replace(
            begin,
            job_options=replace(job_options, settings=found.settings, fixed=fixed),
            was_restarted=found.restarts > 0 or bool(found.earlier_jobs),
            earlier_jobs=found.earlier_jobs,
            workers=of,
        )
    # Every rank knows all caps, so all come to the same plan, or to the same error.
    caps = [worker["max_local_batch"] for worker in workers] or [job_options.cap]
    begin = replace(begin, caps=caps)
    own, count = of.of_ranks[rank], max(1, len(workers))
    embedded = begin.embedded(rank) if count > 1 else None
    plans, share = begin.plans(before), begin.quadratic_share
    run = Run(order, own, count, quantum, plans, share, None, begin.ahead, Sensor(), begin.progress, workers=of)
    run.devices = found.devices if group else [facts["kind"]]
    opened = OpenRun(run, begin, group, workers, alike, embedded, is_first=rank == 0)
    run.caps, run.job, run.starts = caps, begin.resumed_job, opened.start
    run.name = name
    if isinstance(begin.job_options.fixed, AgreedPlans):
        run.binding.check = begin.job_options.fixed.check
    return opened


@dataclass(frozen=True, slots=True)
class _RunStart:
    """The values that all ranks know before the first exchange."""

    job_options: RunOptions
    order: Order
    quantum: int
    ahead: int
    #: The quadratic share of the work at the start; None without costs.
    prior: Prior | None
    progress: Progress = field(default_factory=Progress)
    #: The id of the job in the checkpoint that this run resumes from.
    resumed_job: str | None = None
    is_resumed: bool = False
    #: Whether the launcher started the processes of this run again.
    was_restarted: bool = False
    #: The jobs of earlier processes of this launch, in order.
    earlier_jobs: Sequence[str] = ()
    #: The caps of all ranks' local batches.
    caps: Sequence[int | None] = ()
    #: The workers of the ranks.
    workers: Workers = field(default_factory=Workers)

    def restored(self, state: dict[str, Any]) -> tuple["_RunStart", Plan]:
        """Returns the values of a run that resumes from a checkpoint, and the checkpoint's plan.

        Raises:
            SettingError: the checkpoint does not fit this run.
        """
        progress, before, prior = resumed(state, self.order)
        begin = replace(self, progress=progress, prior=prior, resumed_job=state.get("job"), is_resumed=True)
        return begin, before

    def quadratic_share(self, _: int) -> float:
        """Returns the quadratic share of the work in any iteration without a predictor."""
        return self.prior.share if self.prior else 0.0

    def plans(self, before: Plan | None) -> Callable[[int], Plan]:
        """Returns the plans by iteration without a predictor; ``before`` is the checkpoint's plan.

        Raises:
            SettingError: a given plan breaks a rule, or the caps do not allow the global batch.
        """
        if self.job_options.fixed is not None:
            return given_plans(self.job_options.fixed, self.order, self.caps, self.progress.iteration)
        plan = even_plan(before, self.order, self.caps, self.quantum)
        return lambda _: plan

    def is_planned(self, world_size: int) -> bool:
        """Returns whether a predictor makes the plans."""
        server = self.job_options.settings.server
        return self.job_options.fixed is None and server != OFF and (world_size > 1 or bool(server))

    def fills(self, run: Run) -> bool:
        """Returns whether ranks to which plans give no samples get some, because they would compute as long."""
        # A model that is wrapped later may have another loss, or batch norm, which should not normalise over few
        # samples. Hedged steps have no placeholders, plans of costs are no numbers of samples, sizes may be listed.
        sizes = {"allowed_sizes", "distinct_sizes"} & self.job_options.job.keys()
        takes_longer = run.quantum > WEIGHTLESS_SAMPLES * self.order.accumulate
        return run.needs.equal_passes and not (
            run.needs.avoids_singles or self.job_options.claims or self.order.costs or sizes or takes_longer
        )

    def embedded(self, rank: int) -> Embedded | None:
        """Starts the programs that this rank is responsible for; None if the run does not need them."""
        settings = self.job_options.settings
        starts_agent = settings.agent == AUTO or (settings.agent is None and settings.server is None)
        if self.job_options.fixed is not None or settings.server == OFF or not (starts_agent or self.is_local):
            return None
        return Embedded.start(
            rank, settings.local_rank, server=settings.server, with_agent=starts_agent, environ=os.environ
        )

    @property
    def is_local(self) -> bool:
        """Whether this run uses an embedded predictor."""
        return self.job_options.settings.server is None

    def opened(
        self,
        group: dist.ProcessGroup,
        embedded: Embedded | None,
        workers: Sequence[Mapping[str, Any]],
        otherwise: Plan,
        sensor: Sensor,
    ) -> OpenedPlans | None:
        """Returns the exchange that provides the plans, and the job; None if there is no predictor."""
        told: list[Any] = [None]
        predictor = None
        server = embedded.server if embedded and self.is_local else self.job_options.settings.server
        if dist.get_rank() == 0 and server is not None:
            try:
                plans, predictor = self.first_plans(server, embedded, workers, otherwise)
                place = Place(server, predictor.job_id, socket.gethostname() if self.is_local else None)
                told[0] = ([(iteration, plan.to_json()) for iteration, plan in plans], place)
            except EvenstepError as error:
                # All ranks must end, for the same reason.
                told[0] = str(error)
        with awaiting("ended or hung while rank 0 requested the first plans"):
            dist.broadcast_object_list(told, src=0, group=group)
        if told[0] is None:
            return None
        if isinstance(told[0], str):
            raise RejectedError(told[0])
        said, place = told[0]
        _jobs.append(place.job)
        if self.job_options.settings.local_rank == 0:
            launcher.keep_job(os.environ, _jobs)
        plans = [(iteration, Plan.from_json(plan)) for iteration, plan in said]
        budget = Budget(_INTERVAL_MAX, self.job_options.settings.overhead)
        members = self.workers.members if self.job_options.mesh else ()
        lead = Lead(predictor, budget, ShareLog(plans[0][1], noun=self.workers.noun), members) if predictor else None
        agent = self.job_options.settings.agent
        if agent in (None, AUTO):
            agent = local_url(AGENT) if embedded else None
        drivers = _drivers(agent, sensor, current_device())
        return OpenedPlans(Exchange(group, self.ahead, plans, drivers, lead, prior=self.prior), predictor, place)

    def first_plans(
        self, server: str, embedded: Embedded | None, workers: Sequence[Mapping[str, Any]], otherwise: Plan
    ) -> tuple[list[tuple[int, Plan]], Predictor]:
        """On rank 0: returns the first plans, and the connection to the predictor.

        Raises:
            EvenstepError: the predictor rejects this run.
        """
        first = self.progress.iteration
        wanted = range(first, first + min(self.ahead, LOOK_AHEAD_MAX))
        spec = job_spec(self.job_options, self.order, self.quantum)
        speeds = earlier.initial_speeds(_script(), workers)
        # A shared predictor of an earlier version would reject the option.
        if self.is_local and speeds:
            spec.setdefault("initial_speeds", speeds)
        *resumed_ids, job_id = self.job_ids()
        if resumed_ids and not self.was_restarted and _has_live_workers(server, resumed_ids[0]):
            log.warning("job %s of the checkpoint has live workers; starting the job %s", resumed_ids[0], job_id)
            resumed_ids = []
        candidates = [*resumed_ids, job_id]
        if self.is_resumed and self.was_restarted and not self.job_options.settings.job:
            # The predictor rejects iterations far ahead, which follow a long time with one rank and thus no predictor.
            candidates.append(f"{job_id}-{first}")
        for candidate, following in itertools.zip_longest(candidates, candidates[1:]):
            predictor = Predictor(
                server,
                candidate,
                spec,
                workers,
                begin=first,
                resumed=self.is_resumed,
                restarted=self.was_restarted,
                timeout_s=self.job_options.timeout_s,
                find_server=embedded.find_server if embedded and self.is_local else None,
            )
            try:
                return predictor.open(wanted, otherwise), predictor
            except RejectedError as error:
                if following is None:
                    raise
                log.warning("cannot continue the job of the checkpoint: %s; starting the job %s", error, following)
        raise AssertionError

    def job_ids(self) -> list[str]:
        """Returns the ids to try, in order. A checkpoint continues its job, if no other run does."""
        if given := self.job_options.settings.job:
            return [given]
        # Each job of a process has its own id, the same after a restart.
        number = next(_automatic_jobs)
        if number <= len(self.earlier_jobs):
            # Another node may have had rank 0.
            return [self.earlier_jobs[number - 1]]
        automatic = job_id.automatic(os.environ, _script(), os.getpid(), os.getppid())
        automatic = automatic if number == 1 else f"{automatic}-{number}"
        return [*([self.resumed_job] if self.resumed_job else []), automatic]

    def facts(self, device: torch.device) -> dict[str, Any]:
        """Returns this worker's description."""
        job_options, is_cuda = self.job_options, device.type == "cuda"
        return {
            "settings": job_options.settings,
            "name": secrets.token_hex(4),
            "device": torch.cuda.get_device_name(device) if is_cuda else "cpu",
            # Its peaks do not bound a share that is computed in passes.
            "memory_bytes": None if self.order.has_own_passes or not is_cuda else _memory_bytes(device),
            # Names do not tell the memory of each GPU.
            "kind": f"{torch.cuda.get_device_name(device)}, {_memory_bytes(device)} bytes" if is_cuda else "cpu",
            "gpu": f"{gpu_name(device)} on {socket.gethostname()}" if is_cuda else None,
            "max_local_batch": job_options.cap,
            "claims": job_options.claims,
            "mesh": job_options.mesh and job_options.mesh.ranks,
            "earlier_jobs": _earlier_jobs(),
        }

    def alike(self) -> dict[str, Any]:
        """Returns the values that must be the same on all ranks."""
        job_options, fixed = self.job_options, self.job_options.fixed
        return {
            "order": repr(self.order),
            "sample order": self.order.checksum(self.progress.epoch),
            "planning look-ahead": self.ahead,
            "state": repr(self.progress),
            "quadratic share": repr(self.prior),
            # Ranks agree on the plans of a function later.
            "plan": None if fixed is None else "a function" if callable(fixed) else list(fixed),
            "quantum": self.quantum,
            "server": job_options.settings.server,
            "claims": job_options.claims,
            "tail": repr(job_options.tail),
        }


def _quantum(asked: int, order: Order) -> int:
    """Returns the quantum of plans.

    Raises:
        SettingError: a quantum of samples, but plans are in units of cost.
    """
    if order.costs:
        if asked > 1:
            raise SettingError(f"quantum={asked} with cost: shares are in tokens, not in samples; remove quantum")
        return 1
    return asked if asked % order.accumulate == 0 else asked * order.accumulate


def _memory_bytes(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).total_memory


def _refuse_start() -> None:
    raise SettingError(f"job.loader: no epoch can begin, because {CLOSED}")


#: Numbers of the jobs of this process with automatic ids.
_automatic_jobs = itertools.count(1)


#: Ids of the jobs of this process, in order.
_jobs: list[str] = []


@functools.cache
def _earlier_jobs() -> list[str]:
    """Returns the jobs of earlier processes, which are read before this process keeps its own."""
    return launcher.earlier_jobs(os.environ)


def _has_live_workers(servers: str, job: str) -> bool:
    try:
        return bool(job_view(servers, job, "", _LOOK_S)["live_workers"])
    except (EvenstepError, ValueError, KeyError, TypeError):
        return False


def _script() -> str:
    return sys.argv[0] if sys.argv else ""


def _drivers(agent: str | None, sensor: Sensor, device: torch.device) -> Callable[[], dict[str, float]]:
    """Returns a function that reads the drivers of this process.

    Only the agent reads GPUs; other readings come from /proc, which is cheaper. The GPU is the one of the first
    forward pass: a script may use another one than CUDA's current ``device``.
    """

    @functools.cache
    def reader() -> Drivers:
        used = sensor.device or device
        if used.type != "cuda":
            return Drivers(agent or "")
        return Drivers(agent, gpu=gpu_name(used), timeout_s=_GPU_READING_S)

    return lambda: reader().read()
