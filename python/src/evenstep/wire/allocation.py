"""Messages of `/allocate`: the request before each iteration, and its response."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from evenstep.wire.codec import Message


@dataclass(frozen=True, slots=True)
class TailReport(Message):
    """One worker's part of an iteration's shared tail.

    Attributes:
        chunks: Number of chunks it claimed and computed.
        samples: Number of samples in these chunks.
        compute_time_s: Forward and backward time for these samples, in seconds.
        claim_time_s: Time spent waiting for claims without computing, in seconds.
    """

    chunks: int
    samples: int
    compute_time_s: float
    claim_time_s: float


@dataclass(frozen=True, slots=True)
class WorkerReport(Message):
    """One worker's report of one iteration.

    Attributes:
        worker: Id of the worker.
        iteration: The reported iteration.
        local_batch: Number of samples it computed, including samples of the tail.
        compute_time_s: Forward and backward time for all these samples, without waiting, in seconds.
        micro_batches: Number of passes, if there were several; at least 2.
        tail: The part that it claimed from the tail.
        barrier_wait_s: Time of waiting for the slowest worker, in seconds.
        loader_wait_s: Time of waiting for data, in seconds.
        peak_memory_bytes: Its peak memory use up to now, in bytes.
        cost: Total cost of its samples, if the job balances by cost.
        communication_s: Communication time not hidden by compute, in seconds.
        overlapped_communication_s: Communication time that can overlap compute, in seconds.
        gradient_sqr: Squared norm of its own mean gradient (`adascale`).
        global_gradient_sqr: Squared norm of the global mean gradient (`adascale`).
        drivers: Readings at the end of that iteration's compute, by name; at most 64.
    """

    worker: str
    iteration: int
    local_batch: int
    compute_time_s: float
    micro_batches: int | None = None
    tail: TailReport | None = None
    barrier_wait_s: float | None = None
    loader_wait_s: float | None = None
    peak_memory_bytes: int | None = None
    cost: float | None = None
    communication_s: float | None = None
    overlapped_communication_s: float | None = None
    gradient_sqr: float | None = None
    global_gradient_sqr: float | None = None
    drivers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AllocateRequest(Message):
    """Request of `POST /allocate`: requests an iteration's allocation and reports earlier iterations.

    Attributes:
        job_id: The job.
        generation: The generation that the client trains in.
        iteration: The requested iteration, from 0; at most 64 ahead.
        global_batch: Number of samples in this iteration, if it differs at the end of an epoch.
        cost_per_sample: Cost of each sample of the iteration, in order; at most 65,536.
        reports: One for each worker and finished iteration. Repeated reports have no effect.
    """

    job_id: str
    generation: int
    iteration: int
    global_batch: int | None = None
    cost_per_sample: tuple[float, ...] = ()
    reports: tuple[WorkerReport, ...] = ()


@dataclass(frozen=True, slots=True)
class BackgroundBudget(Message):
    """One worker's allowance for background work in one iteration.

    Attributes:
        slack_s: Its expected wait for the slowest worker, in seconds.
        budget_s: Maximum delay by background work in the whole iteration, in seconds.
    """

    slack_s: float
    budget_s: float


@dataclass(frozen=True, slots=True)
class Allocation(Message):
    """The share of one worker in one iteration.

    Attributes:
        worker: Id of the worker.
        rank: Its position among the live workers.
        local_batch: Number of samples it computes.
        offset: It takes `offset .. offset + local_batch` of the iteration's samples.
        gradient_weight: Weight of its mean gradient in the global mean.
        planned_batch: With a tail: the number of samples it would compute without one.
        pool: The pool of the tail that it claims from; `None` if it claims nothing.
        micro_batch: With gradient accumulation: maximum number of samples per pass.
        cost: Total cost of its samples, if the request has costs.
        predicted_compute_time_s: Expected compute time in seconds; `None` while it is unmeasured.
        predicted_speed_samples_per_s: Expected speed; `None` while it is unmeasured.
        speed_lower_samples_per_s: Lower end of the speed's 90 % interval.
        speed_upper_samples_per_s: Upper end of the speed's 90 % interval.
        background: Its allowance for background work; `None` if the job has none.
    """

    worker: str
    rank: int
    local_batch: int
    offset: int
    gradient_weight: float
    planned_batch: int | None = None
    pool: int | None = None
    micro_batch: int | None = None
    cost: float | None = None
    predicted_compute_time_s: float | None = None
    predicted_speed_samples_per_s: float | None = None
    speed_lower_samples_per_s: float | None = None
    speed_upper_samples_per_s: float | None = None
    background: BackgroundBudget | None = None


@dataclass(frozen=True, slots=True)
class Tail(Message):
    """The shared tail of an iteration, which workers claim in chunks after their local batches.

    Attributes:
        offset: Offset of its first sample within the iteration.
        chunks: Number of samples of each chunk, in order.
        pools: Number of successive chunks of each pool; if empty, all are in pool 0.
    """

    offset: int
    chunks: tuple[int, ...]
    pools: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Ramp(Message):
    """A linear ramp: `from + (to - from) min(1, (iteration - start_iteration) / iterations)`.

    Attributes:
        from_: Multiplier at its start; `from` in JSON.
        to: Multiplier at its end.
        start_iteration: Iteration it starts at.
        iterations: Number of iterations of the ramp.
    """

    from_: float
    to: float
    start_iteration: int
    iterations: int


@dataclass(frozen=True, slots=True)
class OptimizerInstruction(Message):
    """The learning-rate instruction of an iteration.

    Attributes:
        rule: The job's rule.
        lr_multiplier: Multiply the schedule's learning rate by this.
        momentum_buffer_scale: Factor for momentum buffers that contain the learning rate. PyTorch's do not.
        ramp: The current ramp, so that a client can finish it without the predictor.
        schedule_iteration: `adascale`: read the schedule's learning rate at this iteration of the base batch.
    """

    rule: str
    lr_multiplier: float
    momentum_buffer_scale: float
    ramp: Ramp | None = None
    schedule_iteration: float | None = None


@dataclass(frozen=True, slots=True)
class Decision(Message):
    """The decision for an iteration and its reason.

    Attributes:
        kind: `cold_start`, `profiling`, `rebalanced` or `held`; new kinds may be added.
        reason: The reason in words.
        predicted_step_time_s: Expected time of the slowest worker, in seconds.
        even_step_time_s: The same with an even split, in seconds.
    """

    kind: str
    reason: str
    predicted_step_time_s: float | None = None
    even_step_time_s: float | None = None


@dataclass(frozen=True, slots=True)
class AllocateResponse(Message):
    """Response of `/allocate`. It never changes for a given (job, iteration).

    Attributes:
        job_id: The job.
        generation: The generation it was planned in.
        iteration: The iteration.
        global_batch: Number of samples over all workers: the exact sum of the local batches and the tail's chunks.
        allocations: One for each live worker, in rank order.
        optimizer: The learning-rate instruction.
        decision: The decision and its reason.
        tail: The samples without a worker; `None` if all are allocated.
    """

    job_id: str
    generation: int
    iteration: int
    global_batch: int
    allocations: tuple[Allocation, ...]
    optimizer: OptimizerInstruction
    decision: Decision
    tail: Tail | None = None
