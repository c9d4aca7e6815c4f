"""CUDA's devices and NVIDIA's driver name each GPU by the same UUID, in any order of the devices."""

import json
import os
import subprocess
import sys

from gpu_check.context import Context
from gpu_check.outcome import Outcome, judged


def prevented(context: Context) -> str:
    """Returns why the check is not applicable."""
    if not context.on_gpu:
        return "CPUs have no UUID"
    return "" if context.machine.listed else "nvidia-smi lists no GPU"


def check(context: Context) -> Outcome:
    """Compares names, also with the devices in reverse order."""
    import torch

    from evenstep.device import current_device
    from evenstep.drivers.gpu import gpu_name

    torch.cuda.init()
    own = gpu_name(current_device())
    listed = context.machine.listed
    seen = [gpu["uuid"] for gpu in context.machine.gpus]
    # By UUID, because indices count in CUDA's own order.
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(reversed(seen))}
    command = [sys.executable, "-m", "gpu_check.machine"]
    said = subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout
    turned = [gpu["uuid"] for gpu in json.loads(said)["gpus"]]
    parts = {uuid for uuid in seen if uuid not in listed}
    holds = not parts and turned == seen[::-1] and f"GPU-{own}" == seen[0]
    order = "in the same order" if seen == listed else "in another order than CUDA's"
    said = f"{len(seen)} GPUs; nvidia-smi lists them {order}"
    if parts:
        said = f"nvidia-smi does not list {', '.join(sorted(parts))} as a GPU (parts of GPUs have other names)"
    return judged(holds, said, cuda=seen, nvidia_smi=listed, reversed=turned)
