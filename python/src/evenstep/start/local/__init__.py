"""Programs that the processes of a user share on one machine: a predictor, and an agent.

Processes start and find them through the files of a folder:

- ``predictor.json`` and ``agent.json`` name the address of a running program, which holds an exclusive lock on its
  file.
- Every process that needs the programs holds a shared lock on ``users``. Without users, the programs end after a while.

The locks are those of ``flock(2)``: the system releases them when a process ends, in whatever way.
"""

from evenstep.start.local.error import LocalError
from evenstep.start.local.folder import open_folder
from evenstep.start.local.programs import (
    AGENT,
    PREDICTOR,
    Local,
    Running,
    find_program,
    local_url,
    own_version,
    running,
)

__all__ = [
    "AGENT",
    "PREDICTOR",
    "Local",
    "LocalError",
    "Running",
    "find_program",
    "local_url",
    "open_folder",
    "own_version",
    "running",
]
