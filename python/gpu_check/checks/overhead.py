"""evenstep adds little to a step, and ranks exchange reports at least once per second."""

import statistics

from gpu_check.context import Context
from gpu_check.outcome import Outcome, judged

#: Maximum time added to a step, relative to it. The design allows 0.5 %; a block of 50 steps is not as exact.
ADDED_MAX = 0.03
#: Maximum time between two exchanges, in seconds.
INTERVAL_MAX_S = 1.0


def prevented(_: Context) -> str:
    """Returns why the check is not applicable."""
    return ""


def check(context: Context) -> Outcome:
    """Compares blocks of steps with plain DDP and with evenstep, one after the other."""
    told = context.run_ranks("overhead")[0]
    plain_s, ours_s = (statistics.median(told[name]) for name in ("plain", "evenstep"))
    added, interval = ours_s / plain_s - 1, statistics.median(told["intervals"])
    said = (
        f"{context.where}: {1e3 * plain_s:.2f} ms per step, {added:+.2%} with evenstep; an exchange every "
        f"{interval:.0f} iterations ({interval * ours_s:.2f} s)"
    )
    # On a CPU the machine's other load decides.
    holds = (added <= ADDED_MAX and interval * ours_s <= INTERVAL_MAX_S) or not context.on_gpu
    return judged(holds, said, added=added, **told)
