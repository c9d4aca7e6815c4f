"""Speeds of the workers in the latest run of a script, so that the next run begins with uneven shares."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from evenstep.errors import EvenstepError
from evenstep.settings.connection import job_view
from evenstep.start.local import LocalError, open_folder

_TIMEOUT_S = 2.0
_WORKERS_MAX = 10_000
_BYTES_MAX = 8 << 20


def initial_speeds(script: str, workers: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the speeds in samples per second in the latest run; empty unless it had all these workers and devices."""
    try:
        path = _path(script)
        told = json.loads(path.read_bytes()) if path.stat().st_size <= _BYTES_MAX else {}
        known = {str(worker): (device, float(speed)) for worker, (device, speed) in told.items()}
    except (LocalError, OSError, ValueError, TypeError, AttributeError):
        return {}
    names = [str(worker["worker"]) for worker in workers]
    if any(known.get(name, (None, 0))[0] != worker["device"] for name, worker in zip(names, workers, strict=True)):
        return {}
    return {name: known[name][1] for name in names}


def remember(script: str, servers: str, job: str) -> None:
    """Stores the speeds of a job's workers for the next run. Without them, that run begins with even shares."""
    with suppress(EvenstepError, OSError, ValueError, KeyError, TypeError):
        workers = job_view(servers, job, "/workers", _TIMEOUT_S)["workers"][:_WORKERS_MAX]
        speeds = {
            worker["worker"]: [worker["device"], worker["speed_samples_per_s"]]
            for worker in workers
            if worker["speed_samples_per_s"]
        }
        if speeds:
            path = _path(script)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            # Of two runs that end at once, the later one counts.
            written = path.with_suffix(f".{os.getpid()}")
            written.write_text(json.dumps(speeds))
            written.replace(path)


def _path(script: str) -> Path:
    name = re.sub(r"[^A-Za-z0-9._-]", "_", Path(script).stem)[:100] or "job"
    return open_folder() / "speeds" / f"{name}.json"
