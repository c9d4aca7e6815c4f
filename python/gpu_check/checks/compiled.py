"""torch.compile inside and outside of DDP has the gradient of one process with uneven batches."""

import shutil
from importlib.util import find_spec

from gpu_check.context import Context
from gpu_check.outcome import Outcome, judged
from gpu_check.sizes import TOLERANCE


def prevented(context: Context) -> str:
    """Returns why the check is not applicable."""
    if not context.on_gpu:
        return ""
    if find_spec("triton") is None:
        return "torch.compile needs triton on GPUs"
    return "" if shutil.which("cc") or shutil.which("gcc") else "torch.compile needs a C compiler"


def check(context: Context) -> Outcome:
    """Compares the parameters after an epoch with the parameters of one process."""
    worst: dict[str, float] = {}
    for told in context.run_ranks("compiled"):
        for name, value in told.items():
            worst[name] = max(value, worst.get(name, 0.0))
    said = ", ".join(f"{name} {value:.0e}" for name, value in worst.items())
    return judged(max(worst.values()) <= TOLERANCE, f"{context.where}: largest differences {said}", differences=worst)
