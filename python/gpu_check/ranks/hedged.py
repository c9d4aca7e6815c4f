"""Trains with hedged steps."""

from typing import Any

from torch.nn.parallel import DistributedDataParallel

import evenstep
from gpu_check.training import Net, Seat, dataset, difference, loss_of, quietly_closed, sgd, uneven


def rank(seat: Seat) -> tuple[float, int]:
    """Returns the largest difference, and the number of claimed samples."""
    job: Any = evenstep.init(plan=uneven(seat.ranks))
    model = job.wrap(DistributedDataParallel(Net().to(seat.device)))
    optimizer = sgd(model)
    claimed = 0
    for step in job.steps(dataset(), tail=0.5):
        optimizer.zero_grad()
        samples = 0
        for x, y in step:
            loss_of(model, x, y, seat.device).backward()
            samples += len(x)
        optimizer.step()
        claimed += samples - step.step.local_batch if samples > step.step.local_batch else 0
    worst = difference(model, seat)
    quietly_closed(job)
    return worst, claimed
