"""DDP with uneven batches has the gradient of one process: plain, accumulated, token means, batch norm."""

from gpu_check.context import Context
from gpu_check.outcome import Outcome, judged
from gpu_check.sizes import TOLERANCE


def prevented(_: Context) -> str:
    """Returns why the check is not applicable."""
    return ""


def check(context: Context) -> Outcome:
    """Compares the parameters after an epoch with the parameters of one process."""
    worst: dict[str, float] = {}
    for told in context.run_ranks("ddp"):
        for name, value in told.items():
            worst[name] = max(value, worst.get(name, 0.0))
    said = ", ".join(f"{name} {value:.0e}" for name, value in worst.items())
    return judged(max(worst.values()) <= TOLERANCE, f"{context.where}: largest differences {said}", differences=worst)
