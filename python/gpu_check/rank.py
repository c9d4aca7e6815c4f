"""One rank of a check: torchrun starts this module with the name of the check."""

import importlib
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # missing in torch's type stubs.

from gpu_check.training import Seat


def main() -> None:
    """Runs the rank, and writes its result."""
    name, folder = sys.argv[1], Path(os.environ["GPU_CHECK_FOLDER"])
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    device = torch.device("cpu")
    if os.environ["GPU_CHECK_DEVICE"] == "cuda":
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    # After a restart, torchrun's store still has the addresses of the previous ranks. A rank that reads one hangs.
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = PrefixStore(f"attempt-{os.environ['TORCHELASTIC_RESTART_COUNT']}", TCPStore(*address, is_master=False))
    ranks = int(os.environ["WORLD_SIZE"])
    dist.init_process_group(os.environ["GPU_CHECK_BACKEND"], store=store, rank=rank, world_size=ranks)
    seat = Seat(rank, ranks, device, folder)
    result = importlib.import_module(f"gpu_check.ranks.{name}").rank(seat)
    (folder / f"rank-{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
