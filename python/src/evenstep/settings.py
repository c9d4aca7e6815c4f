"""What a run is told from outside: torchrun's environment and evenstep's own variables."""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from evenstep.errors import SettingError

#: What an id on the wire may be made of.
_ID = re.compile(r"[A-Za-z0-9._:@/-]{1,128}")

#: Where the node's agent answers, unless ``EVENSTEP_AGENT`` says otherwise.
AGENT = "http://127.0.0.1:7118"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says; arguments of :func:`evenstep.init` stand above it."""

    #: Position of this process among all, its position on its node, and how many there are.
    rank: int
    local_rank: int
    world_size: int
    #: Predictors, comma-separated; None: there is none, and plans are even or given.
    server: str | None
    #: The job's id; one id is one run.
    job: str | None
    #: Stable id of this worker: ``node/slot``.
    worker: str
    #: The node's agent.
    agent: str

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None, hostname: str | None = None) -> "Settings":
        """Reads ``RANK``, ``LOCAL_RANK``, ``WORLD_SIZE`` and ``EVENSTEP_{SERVER,JOB,WORKER,AGENT}``.

        Without torchrun's variables the process is alone. The job's id falls back to torchrun's ``--rdzv-id``.

        Raises:
            SettingError: a variable is no number, or no id.
        """
        environ = os.environ if environ is None else environ
        hostname = socket.gethostname() if hostname is None else hostname
        local_rank = _count(environ, "LOCAL_RANK", 0)
        run_id = environ.get("TORCHELASTIC_RUN_ID", "")
        job = environ.get("EVENSTEP_JOB") or (run_id if run_id not in ("", "none") else None)
        worker = environ.get("EVENSTEP_WORKER") or f"{hostname}/{local_rank}"
        return cls(
            rank=_count(environ, "RANK", 0),
            local_rank=local_rank,
            world_size=_count(environ, "WORLD_SIZE", 1),
            server=environ.get("EVENSTEP_SERVER") or None,
            job=None if job is None else checked_id("EVENSTEP_JOB", job),
            worker=checked_id("EVENSTEP_WORKER", worker),
            agent=environ.get("EVENSTEP_AGENT") or AGENT,
        )


def checked_id(name: str, value: str) -> str:
    """The value, if it can name a job or a worker.

    Raises:
        SettingError: it cannot.
    """
    if not _ID.fullmatch(value):
        raise SettingError(f"{name}={value!r}: must be 1 to 128 characters of A-Z a-z 0-9 . _ : @ / -")
    return value


def _count(environ: Mapping[str, str], name: str, default: int) -> int:
    value = environ.get(name)
    if value is None:
        return default
    if not value.isdecimal():
        raise SettingError(f"{name}={value!r}: must be a whole number of at least 0")
    return int(value)
