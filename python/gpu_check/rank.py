"""One rank of a check: torchrun starts this module with the name of the check."""

import importlib
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from gpu_check.training import Seat


def main() -> None:
    """Runs the rank, and writes its result."""
    name, folder = sys.argv[1], Path(os.environ["GPU_CHECK_FOLDER"])
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    device = torch.device("cpu")
    if os.environ["GPU_CHECK_DEVICE"] == "cuda":
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group(os.environ["GPU_CHECK_BACKEND"])
    seat = Seat(rank, dist.get_world_size(), device, folder)
    result = importlib.import_module(f"gpu_check.ranks.{name}").rank(seat)
    (folder / f"rank-{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
