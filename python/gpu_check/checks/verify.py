"""`evenstep verify` finds that a script's gradients on GPUs are the gradients of one process."""

import subprocess
import sys

from gpu_check.context import Context, last_lines
from gpu_check.outcome import Outcome, judged
from gpu_check.place import ROOT


def prevented(context: Context) -> str:
    """Returns why the check is not applicable."""
    if context.on_gpu and len(context.machine.gpus) < 2:
        return "it needs a GPU for each of at least two ranks: this machine has one GPU"
    return ""


def check(context: Context) -> Outcome:
    """Runs the command on the example."""
    script = ROOT / "python" / "examples" / "plain.py"
    command = [
        sys.executable,
        "-m",
        "evenstep",
        "verify",
        f"--ranks={context.ranks}",
        f"--device={context.device}",
        str(script),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=context.folder)
    said = last_lines(done.stdout) or last_lines(done.stderr)
    return judged(done.returncode == 0, said)
