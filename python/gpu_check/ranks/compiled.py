"""Trains compiled models."""

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

import evenstep
from gpu_check.training import Net, Seat, dataset, difference, loss_of, quietly_closed, sgd, uneven


def rank(seat: Seat) -> dict[str, float]:
    """Returns the largest differences by name."""
    return {"inside": _trained(seat, is_inside=True), "outside": _trained(seat, is_inside=False)}


def _trained(seat: Seat, *, is_inside: bool) -> float:
    # On CPUs without a compiler for C++.
    backend = "inductor" if seat.device.type == "cuda" else "eager"
    torch._dynamo.reset()
    job: Any = evenstep.init(plan=uneven(seat.ranks))
    loader = job.loader(dataset())
    net: Any = Net().to(seat.device)
    if is_inside:
        model = job.wrap(DistributedDataParallel(torch.compile(net, backend=backend, dynamic=True)))
    else:
        model = job.wrap(torch.compile(DistributedDataParallel(net), backend=backend, dynamic=True))
    optimizer = sgd(model)
    for x, y in loader:
        optimizer.zero_grad()
        loss_of(model, x, y, seat.device).backward()
        optimizer.step()
    worst = difference(net, seat)
    quietly_closed(job)
    return worst
