"""Forecasts get readings of each rank's own GPU, from the agent that training starts."""

import json
import sqlite3
from contextlib import closing
from typing import Any

from gpu_check.context import Context
from gpu_check.outcome import Outcome, judged

#: Readings of a GPU that enter forecasts.
GPU = ("sm_clock_mhz", "gpu_busy", "gpu_power_w", "gpu_temperature_celsius")


def prevented(_: Context) -> str:
    """Returns why the check is not applicable."""
    return ""


def check(context: Context) -> Outcome:
    """Counts the reports with each reading."""
    from evenstep.local.folder import open_folder

    told = context.run_ranks("drivers")
    store, job = open_folder() / "evenstep.db", told[0]["job"]
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
        query = "SELECT worker, drivers FROM report WHERE job_id = ?"
        rows = [(worker, json.loads(drivers)) for worker, drivers in connection.execute(query, (job,))]
    workers = sorted({worker for worker, _ in rows})
    wanted = GPU if context.on_gpu else ("procs_running", "memory_used")
    shares = {
        name: min(_share([drivers for worker, drivers in rows if worker == of], name) for of in workers)
        for name in wanted
    }
    said = ", ".join(f"{name} in {share:.0%}" for name, share in shares.items())
    # A driver may lack a reading of its GPU, such as the power of a laptop's.
    holds = bool(rows) and len(workers) == context.ranks and max(shares.values()) >= 0.5
    said = f"{len(rows)} reports of {len(workers)} workers: {said} of them"
    return judged(holds, said, shares=shares, forecast=told[0]["forecast"])


def _share(drivers: list[dict[str, Any]], name: str) -> float:
    return sum(name in one for one in drivers) / max(len(drivers), 1)
