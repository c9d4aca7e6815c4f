"""Trains with plain DDP and with evenstep, in blocks of steps."""

import copy
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import evenstep
from gpu_check.sizes import FEATURES
from gpu_check.training import Seat, Work, endless

STEP_S, BATCH, BLOCK, BLOCKS = 0.02, 32, 50, 8


def rank(seat: Seat) -> dict[str, list[float]]:
    """Returns the seconds per step of each block by name, and the iterations between exchanges."""
    x = torch.randn(8192, FEATURES)
    dataset = TensorDataset(x, x[:, :1])
    work = Work(seat.device, STEP_S * seat.ranks / BATCH)
    job: Any = evenstep.init(job_options={"min_gain": 1.0})
    ours_loader = job.loader(dataset, global_batch=BATCH)
    plain_loader = DataLoader(dataset, batch_size=BATCH // seat.ranks, shuffle=True, drop_last=True)
    arms = {
        "plain": (DistributedDataParallel(work), endless(plain_loader)),
        "evenstep": (job.wrap(DistributedDataParallel(copy.deepcopy(work))), endless(ours_loader)),
    }
    times: dict[str, list[float]] = {name: [] for name in arms}
    intervals: list[float] = []
    for block in range(seat.steps(BLOCKS) + 1):
        for name, (model, batches) in arms.items():
            begun = seat.finish()
            for _ in range(BLOCK):
                inputs, targets = next(batches)
                model.zero_grad()
                torch.nn.functional.mse_loss(model(inputs.to(seat.device)), targets.to(seat.device)).backward()
            # The first block has the exchanges of the warm-up.
            if block:
                times[name].append((seat.finish() - begun) / BLOCK)
        lead = job._run.exchange._lead
        if block == 1 and lead:
            count = lead.budget.iterations

            def counted(iteration: int, cpu_s: float, count: Any = count) -> int:
                intervals.append(count(iteration, cpu_s))
                return int(intervals[-1])

            lead.budget.iterations = counted
    job.close()
    return {**times, "intervals": intervals or [0.0]}
