"""The start of a run: ranks check that they agree and get the plans of the first iterations."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torch.distributed as dist

from evenstep.budget import Budget
from evenstep.drivers import Drivers
from evenstep.errors import DivergedError, EvenstepError, RejectedError, SettingError
from evenstep.exchange import Exchange, Lead
from evenstep.hedge.chunks import SharedTail
from evenstep.order import Order
from evenstep.plan import Plan
from evenstep.predictor import Predictor, Registration
from evenstep.run import Progress, Run, resumed
from evenstep.sensor import Sensor
from evenstep.settings import Settings
from evenstep.wire.client import Client
from evenstep.wire.messages import JobSpec, JoinRequest

log = logging.getLogger("evenstep")

#: Local batches by rank, constant or as a function of the iteration.
Fixed = Sequence[int] | Callable[[int], Sequence[int]]

#: Additional iterations between a report and the plan that depends on its exchange, so that no step waits for it.
_SLACK = 1

#: The predictor plans at most this many iterations past the last report.
_LOOK_AHEAD_MAX = 64

#: Number of iterations of a given plan that ranks compare at the start.
_COMPARED = 4


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The user's options of a run."""

    settings: Settings
    #: A plan that needs no predictor.
    fixed: Fixed | None
    quantum: int
    #: The cap of this worker.
    max_local_batch: int | None
    #: Other fields of `PUT /v1/jobs/{job}`.
    job: Mapping[str, Any]
    #: Whether workers can claim chunks of a shared tail.
    claims: bool
    #: The shared tail that is taken from plans without one; None for no tail.
    tail: SharedTail | None
    #: Timeout of a request to the predictor, in seconds.
    timeout_s: float


@dataclass(slots=True)
class OpenRun:
    """A started run, and the objects to close at its end."""

    run: Run
    exchange: Exchange | None = None
    predictor: Predictor | None = None


def open_run(job_options: RunOptions, order: Order, reads_ahead: int, state: dict[str, Any] | None) -> OpenRun:
    """Starts a run; all ranks must call it with the same arguments.

    Raises:
        SettingError: an option breaks its rule, or there is no process group for several processes.
        DivergedError: ranks differ in a value that must be the same.
        RejectedError: the predictor rejects this run.
    """
    progress, before = resumed(state, order) if state else (Progress(), None)
    group = _group(job_options)
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if group else (0, 1)
    quantum = (
        job_options.quantum if job_options.quantum % order.accumulate == 0 else job_options.quantum * order.accumulate
    )
    if job_options.fixed is not None:
        _check_fixed(job_options.fixed, order, world_size, progress.iteration)
    device = _device()
    begin = _RunStart(job_options, order, quantum, reads_ahead + _SLACK + 1, progress, is_resumed=state is not None)
    workers, restarts = _gather_facts(group, begin.facts(device)) if group else ([], 0)
    begin = replace(begin, was_restarted=restarts > 0)

    def even(size: int) -> Plan:
        fits = before is not None and len(before.shares) == world_size
        return before.resized(size, quantum) if before and fits else Plan.even(size, world_size, quantum)

    plans, exchange, predictor = begin.opened(group, rank, workers, even, _drivers(job_options.settings.agent, device))
    run = Run(order, rank, world_size, quantum, plans, exchange, begin.ahead, Sensor(), progress)
    return OpenRun(run, exchange, predictor)


@dataclass(frozen=True, slots=True)
class _RunStart:
    """The values that all ranks know before the first exchange."""

    job_options: RunOptions
    order: Order
    quantum: int
    ahead: int
    progress: Progress
    is_resumed: bool
    #: Whether torchrun restarted any of the ranks.
    was_restarted: bool = False

    def opened(
        self,
        group: dist.ProcessGroup | None,
        rank: int,
        workers: Sequence[JoinRequest],
        even: Callable[[int], Plan],
        drivers: Drivers,
    ) -> tuple[Callable[[int], Plan], Exchange | None, Predictor | None]:
        """Returns the source of plans, and the exchange and predictor that run in the background."""
        server = self.job_options.settings.server
        if self.job_options.fixed is not None:
            world_size = dist.get_world_size(group) if group else 1
            return _plans_of(self.job_options.fixed, world_size, self.order.accumulate), None, None
        if server is None or group is None:
            if server is None and group is not None and rank == 0:
                log.warning("neither EVENSTEP_SERVER nor a plan is set: all workers get equal batches")
            return (lambda _: even(self.order.global_batch)), None, None
        told: list[Any] = [None]
        predictor = None
        if rank == 0:
            told[0], predictor = self.first_plans(server, workers, even)
        dist.broadcast_object_list(told, src=0, group=group)
        if isinstance(told[0], str):
            raise RejectedError(told[0])
        plans = [(iteration, Plan.from_json(plan)) for iteration, plan in told[0]]
        budget = Budget(max(1, _LOOK_AHEAD_MAX - self.ahead), self.job_options.settings.overhead)
        lead = Lead(predictor, budget) if predictor else None
        exchange = Exchange(group, self.ahead, plans, drivers.read, lead)
        return exchange.plan, exchange, predictor

    def first_plans(
        self, server: str, workers: Sequence[JoinRequest], even: Callable[[int], Plan]
    ) -> tuple[list[Any] | str, Predictor | None]:
        """On rank 0: returns the first plans, or the error message for all ranks."""
        job_id, first = self.job_options.settings.job, self.progress.iteration
        sizes = [self.order.size(self.progress.position + k) for k in range(self.ahead)]
        try:
            if job_id is None:
                raise SettingError(
                    "EVENSTEP_JOB is not set: set it to the id of this run at the predictor, or use init(job=..)"
                )
            spec = _spec(self.job_options, self.order, self.quantum)
            client = Client(server, job_id, self.job_options.timeout_s)
            registration = Registration(client, job_id, spec, workers, first, self.is_resumed, self.was_restarted)
            predictor = Predictor(registration)
            plans = predictor.open([(first + k, size) for k, size in enumerate(sizes)], even)
        except EvenstepError as error:
            # All ranks must end, for the same reason.
            return str(error), None
        return [(iteration, plan.to_json()) for iteration, plan in plans], predictor

    def facts(self, device: torch.device) -> dict[str, Any]:
        """Returns this worker's description and the values that must be the same on all ranks."""
        job_options, first = self.job_options, self.progress.iteration
        fixed, is_cuda = job_options.fixed, device.type == "cuda"
        return {
            "worker": job_options.settings.worker,
            "device": torch.cuda.get_device_name(device) if is_cuda else "cpu",
            "memory_bytes": torch.cuda.get_device_properties(device).total_memory if is_cuda else None,
            "max_local_batch": job_options.max_local_batch,
            "claims": job_options.claims,
            "restarts": job_options.settings.restarts,
            "alike": {
                "order": repr(self.order),
                "sample order": self.order.checksum(self.progress.epoch),
                "planning look-ahead": self.ahead,
                "state": repr(self.progress),
                "plan": None if fixed is None else [list(_batches(fixed, first + k)) for k in range(_COMPARED)],
                "quantum": self.quantum,
                "server": job_options.settings.server is not None,
                "claims": job_options.claims,
                "tail": repr(job_options.tail),
            },
        }


def _group(job_options: RunOptions) -> dist.ProcessGroup | None:
    """Returns a CPU process group of all ranks for evenstep; None if this process is alone."""
    if dist.is_available() and dist.is_initialized():
        group = dist.new_group(backend="gloo")
        return group if isinstance(group, dist.ProcessGroup) else None
    if job_options.settings.world_size > 1:
        raise SettingError(
            f"WORLD_SIZE={job_options.settings.world_size} and no process group: call "
            "torch.distributed.init_process_group() before job.loader"
        )
    return None


def _spec(job_options: RunOptions, order: Order, quantum: int) -> JobSpec:
    return JobSpec(
        global_batch=order.global_batch,
        quantum=quantum,
        hedge="auto" if job_options.claims else "off",
        **job_options.job,
    )


#: Job options that the loader and :func:`evenstep.init` set.
_SET_ELSEWHERE = ("global_batch", "per_worker_batch", "quantum", "hedge")


def checked_job_options(job: Mapping[str, Any]) -> dict[str, Any]:
    """Checks the names of the other job options; the predictor checks the values.

    Raises:
        SettingError: an unknown option, or one that is set elsewhere.
    """
    known = sorted({field.name for field in fields(JobSpec)} - set(_SET_ELSEWHERE))
    for name in job:
        if name not in known:
            raise SettingError(f"job_options: {name!r}: must be one of {', '.join(known)}")
    return dict(job)


def _gather_facts(group: dist.ProcessGroup, own: dict[str, Any]) -> tuple[list[JoinRequest], int]:
    """Returns the workers of all ranks and the highest restart count.

    Raises:
        DivergedError: ranks differ in a value that must be the same, or two have the same worker name.
    """
    all_facts: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(all_facts, own, group=group)
    for name, value in all_facts[0]["alike"].items():
        for rank, facts in enumerate(all_facts):
            if facts["alike"][name] != value:
                other = facts["alike"][name]
                raise DivergedError(
                    f"{name}: rank 0 has {value} but rank {rank} has {other}; must be the same on all ranks"
                )
    names = [facts["worker"] for facts in all_facts]
    for rank, name in enumerate(names):
        if name in names[:rank]:
            raise DivergedError(
                f"ranks {names.index(name)} and {rank} have the same worker name {name!r}: set a different "
                "EVENSTEP_WORKER for each"
            )
    workers = [
        JoinRequest(
            worker=facts["worker"],
            device=facts["device"],
            max_local_batch=facts["max_local_batch"],
            memory_bytes=facts["memory_bytes"],
            claims=facts["claims"],
        )
        for facts in all_facts
    ]
    return workers, max(facts["restarts"] for facts in all_facts)


def _device() -> torch.device:
    """Returns the device that this process will compute on, as far as it is known yet."""
    uses_cuda = torch.cuda.is_available() and (
        torch.cuda.is_initialized() or (dist.is_initialized() and dist.get_backend() == "nccl")
    )
    return torch.device("cuda", torch.cuda.current_device()) if uses_cuda else torch.device("cpu")


def _drivers(agent: str | None, device: torch.device) -> Drivers:
    """Returns the driver reader. Only the agent reads GPUs; other readings come from /proc, which is cheaper."""
    if device.type == "cuda":
        return Drivers(agent, gpu=device.index)
    return Drivers(agent or "")


def _batches(fixed: Fixed, iteration: int) -> Sequence[int]:
    return fixed(iteration) if callable(fixed) else fixed


def _plans_of(fixed: Fixed, world_size: int, accumulate: int) -> Callable[[int], Plan]:
    if callable(fixed):
        return lambda iteration: Plan.of(_checked(fixed(iteration), world_size, accumulate, iteration))
    plan = Plan.of(_checked(fixed, world_size, accumulate, 0))
    return lambda _: plan


def _checked(batches: Sequence[int], world_size: int, accumulate: int, iteration: int) -> Sequence[int]:
    what = f"plan={list(batches)} of iteration {iteration}"
    if len(batches) != world_size:
        raise SettingError(f"{what}: must have one batch for each of the {world_size} ranks")
    if any(batch < 0 or batch % accumulate for batch in batches):
        raise SettingError(f"{what}: batches must be multiples of accumulate={accumulate} and at least 0")
    return batches


def _check_fixed(fixed: Fixed, order: Order, world_size: int, first: int) -> None:
    batches = list(_checked(_batches(fixed, first), world_size, order.accumulate, first))
    if sum(batches) != order.global_batch:
        raise SettingError(
            f"plan={batches} sums to {sum(batches)}, but global_batch is {order.global_batch}: make them equal"
        )
