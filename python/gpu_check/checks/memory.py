"""A batch that exceeds a GPU's memory is reported, and the restarted job gives this rank fewer samples and ends."""

from gpu_check.context import Context
from gpu_check.outcome import Outcome, judged
from gpu_check.sizes import GLOBAL_BATCH


def prevented(context: Context) -> str:
    """Returns why the check is not applicable."""
    least = min((gpu["memory_bytes"] for gpu in context.machine.gpus), default=0)
    return "the GPU has less than 4 GiB of memory" if context.on_gpu and least < 4 << 30 else ""


def check(context: Context) -> Outcome:
    """Trains with a limit of memory, and restarts after the failure."""
    told = context.run_ranks("memory", restarts=2)
    restarts, share = told[0]["restarts"], told[0]["shares"][1]
    even = GLOBAL_BATCH // context.ranks
    said = f"{context.where}: {restarts} restart; rank 1 has {share} samples instead of {even}"
    return judged(restarts >= 1 and share < even and not told[0]["difference_is_large"], said, **told[0])
