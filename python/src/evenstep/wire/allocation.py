"""`/allocate` on the wire: what is asked before each iteration, and what is told."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from evenstep.wire.codec import Message


@dataclass(frozen=True, slots=True)
class TailReport(Message):
    """What one worker did of an iteration's tail.

    Attributes:
        chunks: Chunks it claimed, and computed.
        samples: Samples in them.
        compute_time_s: Forward and backward time over them, in seconds.
        claim_time_s: Time in which it waited for claims and computed nothing, in seconds.
    """

    chunks: int
    samples: int
    compute_time_s: float
    claim_time_s: float


@dataclass(frozen=True, slots=True)
class WorkerReport(Message):
    """How one iteration went for one worker.

    Attributes:
        worker: Whose report it is.
        iteration: Which iteration it tells of.
        local_batch: Samples it computed, those of the tail among them.
        compute_time_s: Forward and backward time over all of them, without any waiting, in seconds.
        micro_batches: In how many passes it computed them, where it took several: at least 2.
        tail: What of this it claimed from the tail.
        barrier_wait_s: Time it waited for the last worker, in seconds.
        loader_wait_s: Time it waited for its data, in seconds.
        peak_memory_bytes: Its highest memory use so far.
        cost: What its samples cost together, where the job counts by cost.
        communication_s: Communication that its compute could not hide, in seconds.
        overlapped_communication_s: Communication that could run beside its compute, in seconds.
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
    """`POST /allocate`: the batches of an iteration, please, and how earlier ones went.

    Attributes:
        job_id: The job.
        generation: The generation the asker trains in.
        iteration: The iteration asked for, from 0; at most 64 ahead.
        global_batch: Samples in this iteration, at the ragged end of an epoch.
        cost_per_sample: What each coming sample costs, in their order; at most 65,536.
        reports: One for each worker and finished iteration. Reporting again changes nothing.
    """

    job_id: str
    generation: int
    iteration: int
    global_batch: int | None = None
    cost_per_sample: tuple[float, ...] = ()
    reports: tuple[WorkerReport, ...] = ()


@dataclass(frozen=True, slots=True)
class BackgroundBudget(Message):
    """What one worker may spend on background work in one iteration.

    Attributes:
        slack_s: It would wait so long for the slowest worker, in seconds.
        budget_s: So much background work may delay it in the whole iteration, in seconds.
    """

    slack_s: float
    budget_s: float


@dataclass(frozen=True, slots=True)
class Allocation(Message):
    """The share of one worker in one iteration.

    Attributes:
        worker: Whose share.
        rank: Its position among the live workers.
        local_batch: Samples it computes.
        offset: It takes `offset .. offset + local_batch` of the iteration's samples.
        gradient_weight: Weight of its mean gradient in the global mean.
        planned_batch: Where there is a tail: what it would compute in all without one.
        pool: The pool of the tail that it claims from; `None`: it claims nothing.
        micro_batch: Where it accumulates: the most that it computes at once.
        cost: What its samples cost together, where the request said so.
        predicted_compute_time_s: Expected compute time in seconds; `None` while it is unmeasured.
        predicted_speed_samples_per_s: Expected speed; `None` while it is unmeasured.
        speed_lower_samples_per_s: Lower end of the speed's 90 % interval.
        speed_upper_samples_per_s: Upper end of the speed's 90 % interval.
        background: What it may spend on background work; `None` where the job runs none.
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
    """The last part of an iteration, claimed chunk by chunk by workers that have done their local batches.

    Attributes:
        offset: Where it begins within the iteration's samples.
        chunks: Samples of each chunk, in their order.
        pools: How many of the chunks, in their order, each pool has; empty: all are in pool 0.
    """

    offset: int
    chunks: tuple[int, ...]
    pools: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Ramp(Message):
    """A linear ramp: `from + (to - from) min(1, (iteration - start_iteration) / iterations)`.

    Attributes:
        from_: Multiplier at its start; `from` on the wire.
        to: Multiplier at its end.
        start_iteration: Iteration it starts at.
        iterations: How many iterations it takes.
    """

    from_: float
    to: float
    start_iteration: int
    iterations: int


@dataclass(frozen=True, slots=True)
class OptimizerInstruction(Message):
    """What the learning rate does in this iteration.

    Attributes:
        rule: The job's rule.
        lr_multiplier: Multiply the schedule's learning rate by this.
        momentum_buffer_scale: For optimizers that keep the rate inside the momentum buffer. PyTorch's do not.
        ramp: The ramp under way, so that a client can finish it alone.
        schedule_iteration: `adascale`: read the schedule's learning rate at this iteration of the base batch.
    """

    rule: str
    lr_multiplier: float
    momentum_buffer_scale: float
    ramp: Ramp | None = None
    schedule_iteration: float | None = None


@dataclass(frozen=True, slots=True)
class Decision(Message):
    """What was decided for an iteration, and why.

    Attributes:
        kind: `cold_start`, `profiling`, `rebalanced` or `held`; new kinds may come.
        reason: The reason in words.
        predicted_step_time_s: Expected time of the slowest worker, in seconds.
        even_step_time_s: The same under an even split, in seconds.
    """

    kind: str
    reason: str
    predicted_step_time_s: float | None = None
    even_step_time_s: float | None = None


@dataclass(frozen=True, slots=True)
class AllocateAnswer(Message):
    """The answer to `/allocate`; for one (job, iteration) always the same.

    Attributes:
        job_id: The job.
        generation: The generation it was planned in.
        iteration: The iteration.
        global_batch: Samples over all workers: the local batches and the tail's chunks sum to it exactly.
        allocations: One for each live worker, in rank order.
        optimizer: What the learning rate does.
        decision: What was decided, and why.
        tail: What nobody was given; `None` where everything was.
    """

    job_id: str
    generation: int
    iteration: int
    global_batch: int
    allocations: tuple[Allocation, ...]
    optimizer: OptimizerInstruction
    decision: Decision
    tail: Tail | None = None
