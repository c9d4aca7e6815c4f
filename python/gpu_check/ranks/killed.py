"""Trains with a rank that is killed."""

import os
import signal
from typing import Any

from gpu_check.training import Net, Seat, resumable

#: The iteration before whose backward pass rank 1 is killed, in the second epoch.
AT = 11


def rank(seat: Seat) -> dict[str, Any]:
    """Trains until the end; the first attempt kills rank 1."""

    def dies(iteration: int) -> None:
        if seat.rank == 1 and iteration == AT and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)

    return resumable(seat, Net(), dies)
