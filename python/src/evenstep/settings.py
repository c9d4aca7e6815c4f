"""Settings from the environment: torchrun's variables and those of evenstep."""

import math
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from evenstep._native import check_job_id, check_worker_id
from evenstep.budget import SHARE
from evenstep.connection import client_tls
from evenstep.errors import SettingError

#: The value of ``EVENSTEP_SERVER`` for training without a predictor.
OFF = "off"


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
    #: URL of the node's agent; None if it is not set.
    agent: str | None
    #: Number of times that torchrun restarted the processes after a failure.
    restarts: int = 0
    #: Maximum CPU time of exchanges between ranks, as a fraction of one core; a larger value means more exchanges.
    overhead: float = SHARE

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None, hostname: str | None = None) -> "Settings":
        """Reads torchrun's variables and ``EVENSTEP_{SERVER,JOB,NODE,WORKER,AGENT,OVERHEAD}``; checks the TLS files.

        Without torchrun's variables the process is alone.

        Raises:
            SettingError: a variable is not a valid number or id, or a TLS file cannot be used.
        """
        environ = os.environ if environ is None else environ
        client_tls(environ)
        hostname = socket.gethostname() if hostname is None else hostname
        local_rank = _count(environ, "LOCAL_RANK", 0)
        job = environ.get("EVENSTEP_JOB") or None
        node = environ.get("EVENSTEP_NODE") or hostname
        # Several containers may be on one node.
        place = node if node == hostname else f"{node}/{hostname}"
        worker = environ.get("EVENSTEP_WORKER") or f"{place}/{local_rank}"
        return cls(
            rank=_count(environ, "RANK", 0),
            local_rank=local_rank,
            world_size=_count(environ, "WORLD_SIZE", 1),
            server=environ.get("EVENSTEP_SERVER") or None,
            job=None if job is None else check_job_id(job),
            worker=check_worker_id(worker),
            agent=environ.get("EVENSTEP_AGENT") or None,
            restarts=_count(environ, "TORCHELASTIC_RESTART_COUNT", 0),
            overhead=_share(environ, "EVENSTEP_OVERHEAD", SHARE),
        )


def _count(environ: Mapping[str, str], name: str, default: int) -> int:
    value = environ.get(name)
    if value is None:
        return default
    if not value.isdecimal():
        raise SettingError(f"{name}={value!r}: must be a whole number of at least 0")
    return int(value)


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
