"""The training job: the package's main interface."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from evenstep._native import check_job_id
from evenstep.errors import SettingError
from evenstep.job.job_data import JobData
from evenstep.job.job_gradients import JobGradients
from evenstep.settings.options import Fixed, RunOptions, checked_job_options
from evenstep.settings.settings import Settings


def init(
    *,
    plan: Fixed | None = None,
    server: str | None = None,
    job: str | None = None,
    quantum: int = 1,
    max_local_batch: int | None = None,
    job_options: Mapping[str, Any] | None = None,
    epochs: int | None = None,
    timeout_s: float = 2.0,
) -> "Job":
    """Creates the training job from the arguments and the environment.

    It reads torchrun's variables, ``EVENSTEP_SERVER`` and ``EVENSTEP_JOB``.

    Rank 0 starts the predictor in :meth:`Job.loader` or :meth:`Job.steps`, if there are several processes and neither a
    server nor a plan is given. No request is sent before the first batch.

    Args:
        plan: local batches by rank, such as ``[24, 12, 16]``, or a function that returns them for an iteration. No
            predictor is needed then.
        server: predictor URLs, comma-separated, or ``"off"`` for equal batches without a predictor; default
            ``EVENSTEP_SERVER``.
        job: id of this run at the predictor; default ``EVENSTEP_JOB``, else an automatic one.
        quantum: every local batch is a multiple of it.
        max_local_batch: the largest local batch of this worker, in samples: all micro-batches of an iteration together.
        job_options: other job options: the fields of ``PUT /v1/jobs/{job}`` (``rule``, ``min_gain``, ...).
        epochs: number of epochs that the script trains, for the progress of a TrainJob of Kubeflow.
        timeout_s: timeout of a request to the predictor, in seconds. Training steps do not wait for requests.

    Raises:
        SettingError: an argument or environment variable breaks its rule.

    Example:
        >>> job = evenstep.init(plan=[24, 12, 16])  # the local batches of ranks 0, 1 and 2
        >>> evenstep.init(max_local_batch=0)
        Traceback (most recent call last):
        evenstep.errors.SettingError: max_local_batch=0: must be at least 1
    """
    settings = Settings.read()
    if quantum < 1:
        raise SettingError(f"quantum={quantum}: must be at least 1")
    if max_local_batch is not None and max_local_batch < 1:
        raise SettingError(f"max_local_batch={max_local_batch}: must be at least 1")
    if epochs is not None and epochs < 1:
        raise SettingError(f"epochs={epochs}: must be at least 1")
    settings = replace(
        settings,
        server=server or settings.server,
        job=settings.job if job is None else check_job_id(job),
    )
    job_options = checked_job_options(job_options or {})
    return Job(
        RunOptions(
            settings,
            plan,
            quantum,
            max_local_batch,
            job_options,
            claims=False,
            tail=None,
            timeout_s=timeout_s,
            epochs=epochs,
        )
    )


class Job(JobData, JobGradients):
    """The part of a training job that runs in this process. Create it with :func:`init`.

    Example:
        One process, which gets all samples. With torchrun, each rank gets its part of each iteration.

        >>> import torch.distributed as dist
        >>> from torch.nn.parallel import DistributedDataParallel
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> job = evenstep.init()
        >>> loader = job.loader(torch.arange(5.0), global_batch=2, shuffle=False)
        >>> model = job.wrap(DistributedDataParallel(torch.nn.Linear(1, 1)))
        >>> for x in loader:
        ...     model(x[:, None]).mean().backward()
        ...     print(x.tolist())
        [0.0, 1.0]
        [2.0, 3.0]
        [4.0]
        >>> job.state_dict()["iteration"]
        3
        >>> job.close()
        >>> dist.destroy_process_group()
    """

    def __enter__(self) -> "Job":  # noqa: PYI034  # Self is newer than Python 3.10.
        """Returns the job, for ``with evenstep.init() as job``."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the job, also after an error."""
        self.close()
