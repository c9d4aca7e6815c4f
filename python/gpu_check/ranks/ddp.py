"""Trains with DDP and uneven batches."""

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import evenstep
from gpu_check.sizes import FEATURES, GLOBAL_BATCH
from gpu_check.training import Net, Seat, dataset, difference, loss_of, quietly_closed, sgd, uneven


def rank(seat: Seat) -> dict[str, float]:
    """Returns the largest differences by name."""
    return {
        "uneven": _trained(seat),
        "accumulated": _trained(seat, accumulate=2),
        "token means": _trained(seat, loss="tokens"),
        "running statistics": _statistics(seat),
    }


def _trained(seat: Seat, *, accumulate: int = 1, loss: Any = "mean") -> float:
    shares = uneven(seat.ranks) if accumulate == 1 else [2 * share for share in uneven(seat.ranks, GLOBAL_BATCH // 2)]
    job = evenstep.init(plan=shares)
    loader = job.loader(dataset(), accumulate=accumulate)
    model = job.wrap(DistributedDataParallel(Net().to(seat.device)), loss=loss)
    optimizer = sgd(model)
    for x, y in loader:
        if loss == "tokens":
            job.count(len(x))
        scale = len(x) if loss == "tokens" else 1 / accumulate
        if loader.is_last:
            (scale * loss_of(model, x, y, seat.device)).backward()
            optimizer.step()
            optimizer.zero_grad()
        else:
            with model.no_sync():
                (scale * loss_of(model, x, y, seat.device)).backward()
    worst = difference(model, seat)
    quietly_closed(job)
    return worst


def _statistics(seat: Seat) -> float:
    """Returns the largest difference of batch norm's statistics between ranks; 1 if they are not numbers."""
    torch.manual_seed(3)
    norm = torch.nn.BatchNorm1d(8)
    net = torch.nn.Sequential(torch.nn.Linear(FEATURES, 8), norm, torch.nn.Linear(8, 3)).double()
    job = evenstep.init(plan=[2 * share for share in uneven(seat.ranks, GLOBAL_BATCH // 2)])
    loader = job.loader(dataset())
    model = job.wrap(DistributedDataParallel(net.to(seat.device)))
    optimizer = sgd(model)
    for x, y in loader:
        optimizer.zero_grad()
        loss_of(model, x, y, seat.device).backward()
        optimizer.step()
    mean = torch.as_tensor(norm.running_mean).cpu()
    everyone: list[Any] = [None] * seat.ranks
    dist.all_gather_object(everyone, mean.tolist())
    quietly_closed(job)
    worst = max(float((torch.tensor(other, dtype=torch.float64) - mean).abs().max()) for other in everyone)
    return worst if mean.isfinite().all() and mean.abs().max() > 0 else 1.0
