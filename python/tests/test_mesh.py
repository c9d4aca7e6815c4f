"""Workers of several ranks (``init(mesh=..)``), which get the same samples: four ranks, as two workers of two."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import evenstep
from evenstep.gradients import fsdp
from ranks import preload, run_ranks
from training import EPOCHS, GLOBAL_BATCH, Samples, difference, loss_of, network, one_process, sgd

preload("torch.distributed.fsdp", "torch.distributed.tensor.parallel", "torch.distributed.pipelining")

TOLERANCE = 1e-12

Parameters = list[list[float]]

#: Local batches of the two workers in successive iterations.
PLANS = [[12, 4], [2, 14], [16, 0], [9, 7]]


def plan(iteration: int) -> list[int]:
    return PLANS[iteration % 4]


def even(iteration: int) -> list[int]:
    """Multiples of two micro-batches."""
    return [[12, 4], [2, 14], [16, 0], [10, 6]][iteration % 4]


def parallel(mesh: DeviceMesh) -> Any:
    """Returns the network with tensor parallelism."""
    return parallelize_module(network(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def sharded(net: Any, mesh: DeviceMesh) -> Any:
    for module in (net[0], net[2], net):
        fully_shard(module, mesh=mesh)
    return net


def whole(parameters: list[torch.nn.Parameter], mesh: DeviceMesh | None = None) -> Parameters:
    """Returns the whole parameters; DDP's local parts are gathered over the mesh of tensor parallelism."""
    found = []
    for number, parameter in enumerate(parameters):
        at: Any = parameter.detach()
        if mesh is not None and number < 3:
            parts = [torch.empty_like(at) for _ in range(mesh.size())]
            dist.all_gather(parts, at.contiguous(), group=mesh.get_group())
            at = torch.cat(parts, dim=1 if number == 2 else 0)
        found.append(getattr(at, "full_tensor", lambda at=at: at)().flatten().tolist())
    return found


def descend(job: Any, model: Any, *, accumulate: int = 1, loss: str = "mean", **options: Any) -> list[int]:
    """The script of a user; returns the samples of this rank."""
    loader = job.loader(Samples(208 if accumulate > 1 else 205), global_batch=GLOBAL_BATCH, accumulate=accumulate)
    model = job.wrap(model, loss=loss, **options)
    optimizer, seen = sgd(model), list[int]()
    for _ in range(EPOCHS):
        for at, (x, y, index) in enumerate(loader):
            if loss == "tokens":
                job.count(y.numel())
                torch.nn.functional.mse_loss(model(x), y, reduction="sum").backward()
            else:
                (loss_of(model, x, y) / accumulate).backward()
            if (at + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
            seen += index.tolist() if loader.latest.local_batch else []
    return seen


def trained(rank: int) -> dict[str, tuple[Parameters, list[int]]]:
    """Trains with all kinds of parallelism, one after the other."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    hybrid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    dp, tp, replicate = mesh["dp"], mesh["tp"], hybrid["replicate"]
    # The workers are the ranks 0 and 3, and 1 and 2.
    crossed = DeviceMesh("cpu", [[0, 3], [1, 2]], mesh_dim_names=("dp", "tp"))["dp"]
    done = {}

    def case(name: str, over: Any, model: Any, tp: DeviceMesh | None = None, given: Any = plan, **options: Any) -> None:
        with evenstep.init(plan=given, mesh=over) as job:
            # With tensor parallelism, the module has DDP's parameters only until its first forward pass.
            parameters = list(model.parameters())
            seen = descend(job, model, **options)
            done[name] = whole(parameters, tp), seen

    case("DDP, process_group", dp.get_group(), DistributedDataParallel(network(), process_group=dp.get_group()))
    case("DDP, crossed", crossed, DistributedDataParallel(network(), device_mesh=crossed))
    case("DDP, all ranks", dp, DistributedDataParallel(network()))
    case("DDP, all ranks, tokens", dp, DistributedDataParallel(network()), loss="tokens")
    case("DDP + TP", dp, DistributedDataParallel(parallel(tp), device_mesh=dp), tp)
    case("FSDP2 + TP", dp, sharded(parallel(tp), dp))
    case("FSDP2 + TP, tokens", dp, sharded(parallel(tp), dp), loss="tokens")
    case("FSDP2 + TP, accumulate", dp, sharded(parallel(tp), dp), given=even, accumulate=2)
    case("HSDP, replicas", replicate, sharded(network(), hybrid))
    case("HSDP, replicas, tokens", replicate, sharded(network(), hybrid), loss="tokens")
    return done


def test_groups_of_ranks_train_as_one_process_does() -> None:
    from evenstep.samples.order import Order  # noqa: PLC0415

    reference, accumulated = one_process(), one_process(order=Order(208, GLOBAL_BATCH))
    everyone = run_ranks(4, trained)
    for rank, done in enumerate(everyone):
        for name, (parameters, seen) in done.items():
            print(name, rank, difference(parameters, accumulated if "accumulate" in name else reference))
