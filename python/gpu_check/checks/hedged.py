"""Hedged steps have the gradient of one process, and ranks claim chunks of the shared tail."""

from gpu_check.context import Context
from gpu_check.outcome import Outcome, judged
from gpu_check.sizes import TOLERANCE


def prevented(_: Context) -> str:
    """Returns why the check is not applicable."""
    return ""


def check(context: Context) -> Outcome:
    """Compares the parameters after an epoch with the parameters of one process."""
    told = context.run_ranks("hedged")
    worst, claimed = max(value for value, _ in told), sum(samples for _, samples in told)
    said = f"{context.where}: largest difference {worst:.0e}; {claimed} samples were claimed"
    return judged(worst <= TOLERANCE and claimed > 0, said, difference=worst, claimed=claimed)
