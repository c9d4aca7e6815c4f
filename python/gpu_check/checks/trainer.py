"""The Rust trainer trains on GPUs, if it was built with a libtorch for CUDA."""

import shutil
import subprocess

from gpu_check.context import Context, last_lines
from gpu_check.outcome import Outcome, judged


def prevented(_: Context) -> str:
    """Returns why the check is not applicable."""
    return "" if shutil.which("evenstep-trainer") else "evenstep-trainer was not built (scripts/libtorch --cuda)"


def check(context: Context) -> Outcome:
    """Trains with even shares, a worker for each GPU, and compares gradients with one process."""
    workers = len(context.machine.gpus) if context.on_gpu else context.ranks
    options = [f"--workers={workers}", "--policy=even", f"--device={context.device}", "--verify-gradient"]
    command = ["evenstep-trainer", "launch", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=context.folder)
    said = last_lines(done.stdout) or last_lines(done.stderr)
    return judged(done.returncode == 0, said)
