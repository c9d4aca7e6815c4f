"""The last lines of a run on rank 0: what it gained, how long workers waited, and who was slow."""

import logging
import sys

from evenstep.errors import EvenstepError
from evenstep.settings.connection import job_view

log = logging.getLogger("evenstep")

_TIMEOUT_S = 2.0


def lines(servers: str, job: str) -> list[str]:
    """Returns the summary of a job and the address of its page; empty if the predictor does not respond."""
    try:
        summary = [str(line) for line in job_view(servers, job, "/summary", _TIMEOUT_S)["lines"]]
    except (EvenstepError, ValueError, KeyError, TypeError):
        return []
    server = servers.partition(",")[0].strip().rstrip("/")
    return [*summary, f"page: {server}/#/jobs/{job}; later: evenstep report {job} --html FILE"]


def show(told: list[str]) -> None:
    """Logs the lines; without any logging configured, writes them to standard error."""
    if log.hasHandlers():
        for line in told:
            log.info("%s", line)
    else:
        sys.stderr.writelines(f"evenstep: {line}\n" for line in told)
        sys.stderr.flush()
