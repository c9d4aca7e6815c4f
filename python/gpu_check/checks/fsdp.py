"""FSDP2 (fully_shard) with uneven batches has the gradient of one process."""

from gpu_check.context import Context
from gpu_check.outcome import Outcome, judged
from gpu_check.sizes import TOLERANCE


def prevented(context: Context) -> str:
    """Returns why the check is not applicable."""
    if context.on_gpu and context.backend != "nccl":
        return "FSDP2 on GPUs needs NCCL, and that a GPU for each rank: this machine has one GPU"
    version = tuple(int(part) for part in context.machine.torch.split("+")[0].split(".")[:2] if part.isdigit())
    return "" if version >= (2, 9) else f"job.wrap with fully_shard needs PyTorch 2.9; this is {context.machine.torch}"


def check(context: Context) -> Outcome:
    """Compares the parameters after an epoch with the parameters of one process."""
    worst = max(context.run_ranks("fsdp"))
    return judged(worst <= TOLERANCE, f"{context.where}: largest difference {worst:.0e}", difference=worst)
