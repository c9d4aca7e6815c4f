"""Facts about the launcher of this process: torchrun, Slurm or Ray Train.

A launcher may start the processes of a run several times. The run stays one job at the predictor.
"""

import hashlib
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evenstep.errors import SettingError

#: Name of the file in torchrun's folder that keeps the ids of the jobs of a launch.
_JOBS_FILE = "evenstep-jobs.json"

#: Maximum size of that file in bytes. A process has a few jobs.
_JOBS_BYTES_MAX = 1 << 16


def count(environ: Mapping[str, str], name: str, default: int = 0) -> int:
    """Returns a variable that is a whole number.

    Raises:
        SettingError: it has another value.
    """
    value = environ.get(name)
    if value is None:
        return default
    if not value.isdecimal():
        raise SettingError(f"{name}={value!r}: must be a whole number of at least 0")
    return int(value)


def local_rank(environ: Mapping[str, str]) -> int:
    """Returns the rank of this process on its node, also in a task of srun without torchrun.

    Raises:
        SettingError: a variable is not a number.
    """
    return count(environ, "LOCAL_RANK" if "LOCAL_RANK" in environ else "SLURM_LOCALID")


def node(environ: Mapping[str, str], hostname: str) -> str:
    """Returns the name of this node in the ids of workers: ``EVENSTEP_NODE``, Slurm's name, or the host name."""
    if given := environ.get("EVENSTEP_NODE"):
        # Several containers may be on one node.
        return given if given == hostname else f"{given}/{hostname}"
    return environ.get("SLURMD_NODENAME") or hostname


def restarts(environ: Mapping[str, str]) -> int:
    """Returns how often the launcher has started the processes of this run again.

    It is the number of restarts by torchrun and of requeues by Slurm. torchrun does not count a restart because nodes
    came or went: :func:`earlier_jobs` tells that. Ray tells neither, but its name of a run belongs to one run, so an
    earlier job with that name always belongs to it: the result is 1.

    Raises:
        SettingError: a variable is not a number.
    """
    counted = count(environ, "TORCHELASTIC_RESTART_COUNT") + count(environ, "SLURM_RESTART_COUNT")
    return counted or (1 if ray_run() else 0)


def slurm_job(environ: Mapping[str, str]) -> str:
    """Returns Slurm's name of this job, such as ``1234``, or ``1230_4`` for task 4 of an array; empty without Slurm.

    It stays the same if the job is requeued, and is the same in all components of a heterogeneous job.
    """
    if array := environ.get("SLURM_ARRAY_JOB_ID"):
        return f"{array}_{environ.get('SLURM_ARRAY_TASK_ID', '')}"
    return environ.get("SLURM_JOB_ID", "")


def slurm_step(environ: Mapping[str, str]) -> str:
    """Returns the identity of this job step; empty outside of srun.

    A job may run several trainings one after the other, each in a separate step.
    """
    job, step = slurm_job(environ), environ.get("SLURM_STEP_ID", "")
    return f"slurm {environ.get('SLURM_CLUSTER_NAME', '')} {job} {step}" if job and step else ""


def ray_run() -> tuple[str, str] | None:
    """Returns the name and the identity of this run of Ray Train; None outside of its workers."""
    train: Any = sys.modules.get("ray.train")
    if train is None:
        return None
    try:
        name = str(train.get_context().get_experiment_name() or "")
    except (AttributeError, RuntimeError):
        # Not in a worker.
        return None
    return (name, f"ray {name} {_ray_run_id()}") if name else None


def _ray_run_id() -> str:
    """Returns the id of this call of ``fit()``. Ray has no public name for it; without it, the name must be new."""
    context: Any = sys.modules.get("ray.train.v2._internal.execution.context")
    try:
        return str(context.get_train_context().train_run_context.run_id)
    except (AttributeError, RuntimeError):
        return ""


def code(identity: str, characters: int = 10) -> str:
    """Returns a short code of an identity."""
    return hashlib.sha256(identity.encode()).hexdigest()[:characters]


def earlier_jobs(environ: Mapping[str, str]) -> list[str]:
    """Returns the ids of the jobs that earlier processes of this torchrun opened, in order.

    torchrun restarts its processes also if a node comes or goes. It does not count that, and another node may then
    have rank 0. So each torchrun keeps the ids, in the folder that it makes for its logs.
    """
    path = _jobs_file(environ)
    try:
        if path is None or path.stat().st_size > _JOBS_BYTES_MAX:
            return []
        told = json.loads(path.read_text())
    except (OSError, ValueError):
        return []
    return [job for job in told if isinstance(job, str)] if isinstance(told, list) else []


def keep_job(environ: Mapping[str, str], jobs: list[str]) -> None:
    """Keeps the ids of the jobs for later processes of this torchrun. Never raises."""
    path = _jobs_file(environ)
    if path is None:
        return
    partial = path.with_suffix(".partial")
    try:
        partial.write_text(json.dumps(jobs))
        partial.replace(path)
    except OSError:
        # The next processes then take another id.
        return


def _jobs_file(environ: Mapping[str, str]) -> Path | None:
    """Returns the file in torchrun's folder; None without one."""
    # FOLDER/attempt_0/0/error.json
    path = Path(environ.get("TORCHELASTIC_ERROR_FILE") or ".")
    if len(path.parts) < 4 or not re.fullmatch(r"attempt_\d+", path.parent.parent.name):
        return None
    return path.parents[2] / _JOBS_FILE
