"""Runs a script with imposed speeds, in float64, and records the parts of the iterations that its ranks computed.

Usage: paced.py SCRIPT [ARGUMENT..]

The variable PACES has a JSON object: seconds per sample by the name of the node, or by the rank. The variable RECORDS
names a folder for the records. If ALLOWED is set, it names a file with a number: the ranks wait before this iteration.
"""

import json
import os
import runpy
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

import evenstep

#: A process can be killed at any time: each line is one write.
_file = os.open(Path(os.environ["RECORDS"]) / f"{uuid.uuid4().hex}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
_jobs: list[Any] = []
_groups: list[str] = []


def _pace_s() -> float:
    paces = json.loads(os.environ["PACES"])
    names = (os.environ.get("SLURMD_NODENAME", ""), os.environ.get("RANK", "0"), "default")
    return float(next(paces[name] for name in names if name in paces))


def _allowed() -> float:
    name = os.environ.get("ALLOWED")
    return float(Path(name).read_text()) if name else float("inf")


def _sleep(module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
    # The first layer of the examples; the forward pass of DDP is not measured.
    if isinstance(module, torch.nn.Linear) and module.in_features == 64:
        while _jobs[0]._run.current.step.iteration >= _allowed():
            time.sleep(0.02)
        time.sleep(_pace_s() * len(inputs[0]))


def _record(*_: Any) -> None:
    run = _jobs[0]._run
    if not _groups:
        # Processes that are in one group, from its start to its end.
        name = [uuid.uuid4().hex]
        dist.broadcast_object_list(name, src=0)
        _groups.append(name[0])
    step = run.current.step
    line = {
        "group": _groups[0],
        "ranks": dist.get_world_size(),
        "iteration": step.iteration,
        "offset": step.offset,
        "local_batch": step.local_batch,
        "job": run.job,
    }
    os.write(_file, f"{json.dumps(line)}\n".encode())


def main() -> None:
    if node := os.environ.get("SLURMD_NODENAME"):
        # As on two machines: both nodes of the tests have one host name.
        os.environ["EVENSTEP_HOME"] = str(Path(os.environ["EVENSTEP_HOME"]) / node)
    torch.set_default_dtype(torch.float64)
    torch.nn.modules.module.register_module_forward_pre_hook(_sleep)
    register_optimizer_step_post_hook(_record)
    init = evenstep.init

    def opened(*args: Any, **options: Any) -> Any:
        _jobs.append(init(*args, **options))
        return _jobs[-1]

    evenstep.init = opened
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
