"""Trains a sharded model."""

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import evenstep
from gpu_check.training import Net, Seat, dataset, difference, loss_of, quietly_closed, sgd, uneven


def rank(seat: Seat) -> float:
    """Returns the largest difference."""
    job = evenstep.init(plan=uneven(seat.ranks))
    loader = job.loader(dataset())
    net = Net().to(seat.device)
    mesh = init_device_mesh(seat.device.type, (seat.ranks,))
    for layer in net.layers:
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    model = job.wrap(net)
    optimizer = sgd(model)
    for x, y in loader:
        optimizer.zero_grad()
        loss_of(model, x, y, seat.device).backward()
        optimizer.step()
    worst = difference(model, seat)
    quietly_closed(job)
    return worst
