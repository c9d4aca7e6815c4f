"""The function that creates a training job."""

import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, overload

from evenstep._native import check_job_id
from evenstep.elastic.job import ElasticJob
from evenstep.elastic.members import Limits
from evenstep.errors import SettingError, UnsupportedError
from evenstep.job.job import Job
from evenstep.settings.options import Fixed, RunOptions, checked_job_options
from evenstep.settings.settings import Settings
from evenstep.settings.workers import DataMesh, Mesh


@overload
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
    mesh: Mesh | None = None,
    elastic: Literal[False] = False,
) -> Job: ...


@overload
def init(
    *,
    elastic: Literal[True],
    epochs: int,
    min_workers: int = 1,
    max_workers: int | None = None,
    hang_s: float = 60.0,
    plan: Fixed | None = None,
    server: str | None = None,
    job: str | None = None,
    quantum: int = 1,
    max_local_batch: int | None = None,
    job_options: Mapping[str, Any] | None = None,
    timeout_s: float = 2.0,
) -> ElasticJob: ...


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
    mesh: Mesh | None = None,
    elastic: bool = False,
    min_workers: int = 1,
    max_workers: int | None = None,
    hang_s: float = 60.0,
) -> Job | ElasticJob:
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
        mesh: the ranks over which samples differ, if some ranks get the same samples: a DeviceMesh such as
            ``mesh["dp"]``, or a process group. The ranks of a tensor, context or pipeline parallel group are one worker
            then: plans and ``plan`` have one batch for each worker.
        elastic: whether workers may join and leave a running job (experimental). The job then makes the process group
            itself and has other methods: :class:`ElasticJob`. Requires ``epochs``.
        min_workers: number of workers below which an elastic job waits for more. It begins with as many, or with
            ``WORLD_SIZE`` if that is larger.
        max_workers: maximum number of workers of an elastic job; None for no maximum.
        hang_s: time after which an elastic job continues without a worker that does not come, in seconds. It must be
            longer than the computation of an iteration.

    Raises:
        SettingError: an argument or environment variable breaks its rule.
        UnsupportedError: this PyTorch, the launcher or an option does not allow an elastic job.

    Example:
        >>> job = evenstep.init(plan=[24, 12, 16])  # the local batches of ranks 0, 1 and 2
        >>> evenstep.init(max_local_batch=0)
        Traceback (most recent call last):
        evenstep.errors.SettingError: max_local_batch=0: must be at least 1
    """
    settings = Settings.read()
    numbers = {"quantum": quantum, "max_local_batch": max_local_batch, "epochs": epochs, "min_workers": min_workers}
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise SettingError(f"{name}={number}: must be at least 1")
    given = settings.job if job is None else check_job_id(job)
    settings = replace(settings, server=server or settings.server, job=given)
    job_options = checked_job_options(job_options or {})
    if elastic and mesh is not None:
        raise UnsupportedError("init(elastic=True) with mesh: it has a fixed number of ranks; remove one of them")
    data_mesh = None if mesh is None else DataMesh.of(mesh)
    options = RunOptions(settings, plan, quantum, max_local_batch, job_options, timeout_s, epochs, data_mesh)
    if not elastic:
        elastic_only = {"min_workers": (min_workers, 1), "max_workers": (max_workers, None), "hang_s": (hang_s, 60.0)}
        for name, (value, default) in elastic_only.items():
            if value != default:
                raise SettingError(f"{name}={value} without elastic=True: pass both, or none")
        return Job(options)
    if max_workers is not None and max_workers < min_workers:
        raise SettingError(f"max_workers={max_workers}: must be at least min_workers={min_workers}")
    if not isinstance(hang_s, (int, float)) or not 0 < hang_s < math.inf:
        raise SettingError(f"hang_s={hang_s!r}: must be a number of seconds above 0")
    first = min(max(min_workers, settings.world_size), max_workers or sys.maxsize)
    return ElasticJob(options, Limits(min_workers, first, max_workers, hang_s))
