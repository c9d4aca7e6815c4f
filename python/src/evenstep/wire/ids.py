"""Ids of jobs and workers, which outlive processes."""

import re

from evenstep.errors import SettingError

ID_CHARS_MAX = 128
"""Maximum length of an id."""

_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}")
_WORKER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/-]{0,127}")
_RULE = f"must be 1 to {ID_CHARS_MAX} characters of A-Z a-z 0-9 . _ : @ -%s, beginning with a letter or digit"


def check_job_id(job_id: str) -> str:
    """Validates the id of a job and returns it.

    Raises:
        SettingError: The id breaks the rule.
    """
    return _check(_JOB, "job id", job_id, "")


def check_worker_id(worker: str) -> str:
    """Validates the id of a worker (usually `node/slot`) and returns it.

    Raises:
        SettingError: The id breaks the rule.
    """
    return _check(_WORKER, "worker id", worker, " /")


def _check(pattern: re.Pattern[str], kind: str, value: str, extra: str) -> str:
    if pattern.fullmatch(value):
        return value
    raise SettingError(f"{kind} {value[:ID_CHARS_MAX]!r}: " + _RULE % extra)
