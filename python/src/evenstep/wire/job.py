"""Jobs and their workers on the wire: what is asked for, and who takes part.

A field that is `None` (or at another default given here) is not sent: the predictor's own default holds.
`docs/http.md` has the rules of the values.
"""

from dataclasses import dataclass
from typing import Literal

from evenstep.wire.codec import Message

LearningRateRule = Literal["none", "linear", "sqrt", "dynamic_sgd", "legw", "adascale"]
"""How the learning rate follows the global batch."""

Hedge = Literal["auto", "off"]
"""Whether part of a batch may be left to a shared tail."""


@dataclass(frozen=True, slots=True)
class LearningRateSettings(Message):
    """Settings of the learning-rate rules.

    Attributes:
        ramp_iterations: `dynamic_sgd`: iterations of a ramp; 0 jumps.
        warmup_epochs: `legw`: epochs of warm-up at the base batch.
        dataset_samples: `legw`: samples of an epoch.
    """

    ramp_iterations: int | None = None
    warmup_epochs: float | None = None
    dataset_samples: int | None = None


@dataclass(frozen=True, slots=True)
class BackgroundSettings(Message):
    """A job beside which background work runs.

    Attributes:
        slow_down_limit: With it an iteration takes at most so many times as long as alone.
    """

    slow_down_limit: float | None = None


@dataclass(frozen=True, slots=True)
class JobSpec(Message):
    """`PUT /v1/jobs/{job}`: what a job wants. Putting the same again changes nothing.

    Attributes:
        global_batch: Samples per iteration over all workers, 1 to 2^31, a multiple of `quantum`.
        per_worker_batch: The global batch is so many samples for each live worker.
        quantum: Every local batch is a multiple of it.
        min_local_batch: Floor of every worker.
        max_local_batch: Cap of every worker.
        allowed_sizes: Local batches are of these sizes only; up to 64, rising.
        distinct_sizes: At most so many different local batches in an iteration, at least 2.
        accumulation: Caps bound what is computed at once, not the share.
        profile: The first iterations measure every worker at powers of two.
        overlap_begins: Share of the compute after which gradients can travel.
        memory_headroom: Share of memory that learned caps leave free.
        rule: How the learning rate follows the global batch.
        learning_rate: Settings of that rule.
        hedge: Whether part of a batch may be left to a shared tail.
        min_chunk: No chunk of a tail is smaller.
        background: Background work runs beside the job: answers say how much each worker may spend on it.
        min_workers: With fewer live workers the job is paused.
        lease_s: A worker that is silent for longer has left, in seconds.
        min_gain: Hold the shares while a change would save less of the step.
        max_batch_growth: No local batch exceeds this many times the largest batch that its worker was measured at.
        flap_cooldown_s: A worker that came and went too often may come back after so many seconds.
        keep_s: Older reports and answers become minutes and hours, in seconds.
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
    """`POST /v1/jobs/{job}/workers`: a worker takes part. Joining again renews its lease.

    Attributes:
        worker: Its stable id, `node/slot` by custom.
        device: What it computes on, in words.
        min_local_batch: Its own floor.
        max_local_batch: Its own cap.
        memory_bytes: Memory of what it computes on.
        claims: It can claim chunks of a shared tail.
    """

    worker: str
    device: str | None = None
    min_local_batch: int | None = None
    max_local_batch: int | None = None
    memory_bytes: int | None = None
    claims: bool = False


@dataclass(frozen=True, slots=True)
class JoinAnswer(Message):
    """Who takes part from the next unanswered iteration on: the answer to a join or a leave.

    Attributes:
        job_id: The job.
        worker: The worker that joined or left.
        generation: Rises by one with every change of the set of workers.
        workers: Live workers; the position is the rank.
        next_iteration: The first iteration that nobody has asked for yet.
    """

    job_id: str
    worker: str
    generation: int
    workers: tuple[str, ...]
    next_iteration: int


@dataclass(frozen=True, slots=True)
class OomReport(Message):
    """`POST /v1/jobs/{job}/workers/{worker}/oom`: it ran out of memory.

    Attributes:
        iteration: The iteration that failed.
        local_batch: Samples that did not fit (of a micro-batch, where it accumulates); at least 2.
    """

    iteration: int
    local_batch: int


@dataclass(frozen=True, slots=True)
class OomAnswer(Message):
    """The answer to an out-of-memory report.

    Attributes:
        job_id: The job.
        worker: The worker.
        max_local_batch: The most that it will get at once from now on.
        generation: The generation in which to ask again.
    """

    job_id: str
    worker: str
    max_local_batch: int
    generation: int
