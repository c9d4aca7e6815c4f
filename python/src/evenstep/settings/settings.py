"""Settings from the environment: the variables of the launcher and those of evenstep."""

import math
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from evenstep._native import check_job_id, check_worker_id
from evenstep.errors import SettingError
from evenstep.settings.budget import SHARE
from evenstep.settings.connection import client_tls
from evenstep.settings.launcher import count, local_rank, node, restarts

#: The value of ``EVENSTEP_SERVER`` for training without a predictor.
OFF = "off"

#: The value of ``EVENSTEP_AGENT`` for an agent that the ranks start, on each node.
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings from the environment; arguments of :func:`evenstep.init` take precedence."""

    #: Rank of this process, its rank on its node, and the number of processes.
    rank: int
    local_rank: int
    world_size: int
    #: Predictor URLs, comma-separated; None for an embedded one, :data:`OFF` for none.
    server: str | None
    #: Id of the job; one id identifies one run. None for an automatic one.
    job: str | None
    #: Stable id of this worker: ``node/slot``.
    worker: str
    #: URL of the node's agent, :data:`AUTO` for one that the ranks start; None if it is not set.
    agent: str | None
    #: Name of this node; None if torchrun numbers its processes.
    node: str | None = None
    #: Number of times that torchrun or Slurm started the processes again.
    restarts: int = 0
    #: Maximum CPU time of exchanges between ranks, as a fraction of one core; a larger value means more exchanges.
    overhead: float = SHARE

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None, hostname: str | None = None) -> "Settings":
        """Reads the launcher's variables, ``EVENSTEP_{SERVER,JOB,NODE,WORKER,AGENT,OVERHEAD}``, and the TLS files.

        Without torchrun's variables the process is alone. Slurm's are used for the name of the node, the rank on the
        node, and the number of restarts.

        Raises:
            SettingError: a variable is not a valid number or id, or a TLS file cannot be used.
        """
        environ = os.environ if environ is None else environ
        client_tls(environ)
        hostname = socket.gethostname() if hostname is None else hostname
        slot = local_rank(environ)
        job = environ.get("EVENSTEP_JOB") or None
        name = node(environ, hostname)
        worker = environ.get("EVENSTEP_WORKER") or f"{name}/{slot}"
        return cls(
            rank=count(environ, "RANK"),
            local_rank=slot,
            world_size=count(environ, "WORLD_SIZE", 1),
            server=environ.get("EVENSTEP_SERVER") or None,
            job=None if job is None else check_job_id(job),
            worker=check_worker_id(worker),
            agent=environ.get("EVENSTEP_AGENT") or None,
            node=None if "LOCAL_RANK" in environ else name,
            restarts=restarts(environ),
            overhead=_share(environ, "EVENSTEP_OVERHEAD", SHARE),
        )


def _share(environ: Mapping[str, str], name: str, default: float) -> float:
    value = environ.get(name)
    if not value:
        return default
    try:
        share = float(value)
    except ValueError:
        share = math.nan
    if not 0 < share < math.inf:
        raise SettingError(f"{name}={value!r}: must be a number above 0")
    return share
