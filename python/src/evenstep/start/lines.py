"""The first and the last lines of a run on rank 0: its page, then its gain, waits and slow workers."""

import logging
import sys

from evenstep.errors import EvenstepError
from evenstep.settings.connection import job_view

log = logging.getLogger("evenstep")

_TIMEOUT_S = 2.0


def summary(servers: str, job: str) -> list[str]:
    """Returns the summary of a job and the address of its page; empty if the predictor does not respond."""
    try:
        told = [str(line) for line in job_view(servers, job, "/summary", _TIMEOUT_S)["lines"]]
    except (EvenstepError, ValueError, KeyError, TypeError):
        return []
    return [*told, f"{page(servers, job)}; later: evenstep report {job} --html FILE"]


def page(servers: str, job: str) -> str:
    """Returns the line with the address of a job's page."""
    return f"page: {servers.partition(',')[0].strip().rstrip('/')}/#/jobs/{job}"


def show(told: list[str]) -> None:
    """Logs the lines; without any logging configured, writes them to standard error."""
    if log.hasHandlers():
        for line in told:
            log.info("%s", line)
    else:
        sys.stderr.writelines(f"evenstep: {line}\n" for line in told)
        sys.stderr.flush()
