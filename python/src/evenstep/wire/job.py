"""Messages about jobs and their workers: job options and membership.

A field that is `None` (or has another default given here) is not sent, and the predictor uses its own default.
`docs/http.md` has the rules of the values.
"""

from dataclasses import dataclass
from typing import Literal

from evenstep.wire.codec import Message

LearningRateRule = Literal["none", "linear", "sqrt", "dynamic_sgd", "legw", "adascale"]
"""Names of the learning-rate rules."""

Hedge = Literal["auto", "off"]
"""Whether part of a batch may become a shared tail."""


@dataclass(frozen=True, slots=True)
class LearningRateSettings(Message):
    """Settings of the learning-rate rules.

    Attributes:
        ramp_iterations: `dynamic_sgd`: number of iterations of a ramp; 0 for a jump.
        warmup_epochs: `legw`: number of warm-up epochs at the base batch.
        dataset_samples: `legw`: number of samples in an epoch.
    """

    ramp_iterations: int | None = None
    warmup_epochs: float | None = None
    dataset_samples: int | None = None


@dataclass(frozen=True, slots=True)
class BackgroundSettings(Message):
    """The options of a job with background work.

    Attributes:
        slow_down_limit: Maximum ratio of an iteration's time with background work to that without.
    """

    slow_down_limit: float | None = None


@dataclass(frozen=True, slots=True)
class JobSpec(Message):
    """Request of `PUT /v1/jobs/{job}`: the job options. Repeating it has no effect.

    Attributes:
        global_batch: Number of samples per iteration over all workers, 1 to 2^31, a multiple of `quantum`.
        per_worker_batch: The global batch is this number of samples times the number of live workers.
        quantum: Every local batch is a multiple of it.
        min_local_batch: Floor of every worker.
        max_local_batch: Cap of every worker.
        allowed_sizes: The only sizes of local batches; up to 64, in increasing order.
        distinct_sizes: Maximum number of different local batches in an iteration, at least 2.
        accumulation: Caps limit the samples per pass, not the share.
        profile: The first iterations measure every worker at powers of two.
        overlap_begins: Fraction of the compute after which gradients can be sent.
        memory_headroom: Fraction of memory that learned caps leave free.
        rule: How the learning rate follows the global batch.
        learning_rate: Settings of that rule.
        hedge: Whether part of a batch may become a shared tail.
        min_chunk: Minimum number of samples in a chunk.
        background: Options for background work; responses then include each worker's allowance.
        min_workers: Minimum number of live workers; with fewer, the job is paused.
        lease_s: Time without requests after which a worker has left, in seconds.
        min_gain: Minimum fraction of the step time that a change must save; otherwise the shares are held.
        max_batch_growth: Maximum ratio of a local batch to the largest measured batch of its worker.
        flap_cooldown_s: Cooldown before a worker that left too often may rejoin, in seconds.
        keep_s: Age at which reports and responses are rolled up to minutes and hours, in seconds.
    """

    global_batch: int
    per_worker_batch: int | None = None
    quantum: int | None = None
    min_local_batch: int | None = None
    max_local_batch: int | None = None
    allowed_sizes: tuple[int, ...] | None = None
    distinct_sizes: int | None = None
    accumulation: bool | None = None
    profile: bool | None = None
    overlap_begins: float | None = None
    memory_headroom: float | None = None
    rule: LearningRateRule | None = None
    learning_rate: LearningRateSettings | None = None
    hedge: Hedge | None = None
    min_chunk: int | None = None
    background: BackgroundSettings | None = None
    min_workers: int | None = None
    lease_s: float | None = None
    min_gain: float | None = None
    max_batch_growth: float | None = None
    flap_cooldown_s: float | None = None
    keep_s: int | None = None


@dataclass(frozen=True, slots=True)
class JoinRequest(Message):
    """Request of `POST /v1/jobs/{job}/workers`: a worker joins. Joining again renews its lease.

    Attributes:
        worker: Its stable id, usually `node/slot`.
        device: Name of its device.
        min_local_batch: Its own floor.
        max_local_batch: Its own cap.
        memory_bytes: Memory of its device in bytes.
        claims: Whether it can claim chunks of a shared tail.
    """

    worker: str
    device: str | None = None
    min_local_batch: int | None = None
    max_local_batch: int | None = None
    memory_bytes: int | None = None
    claims: bool = False


@dataclass(frozen=True, slots=True)
class JoinResponse(Message):
    """Response to a join or leave: the membership from the next unallocated iteration on.

    Attributes:
        job_id: The job.
        worker: The worker that joined or left.
        generation: Increases by one with every change of the set of workers.
        workers: Live workers; the position is the rank.
        next_iteration: The first iteration without an allocation.
    """

    job_id: str
    worker: str
    generation: int
    workers: tuple[str, ...]
    next_iteration: int


@dataclass(frozen=True, slots=True)
class OomReport(Message):
    """Request of `POST /v1/jobs/{job}/workers/{worker}/oom`: the worker ran out of memory.

    Attributes:
        iteration: The iteration that failed.
        local_batch: Number of samples that did not fit (in one micro-batch with gradient accumulation); at least 2.
    """

    iteration: int
    local_batch: int


@dataclass(frozen=True, slots=True)
class OomResponse(Message):
    """Response to an out-of-memory report.

    Attributes:
        job_id: The job.
        worker: The worker.
        max_local_batch: Maximum number of samples per pass from now on.
        generation: The generation for the next request.
    """

    job_id: str
    worker: str
    max_local_batch: int
    generation: int
