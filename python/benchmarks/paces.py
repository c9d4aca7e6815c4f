"""Throughput of a script whose workers have imposed speeds, relative to the sum of their speeds.

    python benchmarks/paces.py --paces 1,2,2,4 [--fsdp] [--members 2] [--micro-batch 64,64,64,16]

The model is DDP, or FSDP2 with resharding of each layer (ZeRO-3), whose ranks wait for each other in each layer.
With several ranks for each worker (``init(mesh=..)``), DDP has tensor parallelism, and FSDP2 a replica per worker.
Each worker takes a given time per sample (real gradients, and sleep up to the target), so four workers fit on two
cores. The ideal is the sum of the speeds, reached if all workers compute all the time. A run measures even shares
first, and then the predictor's shares. ``--micro-batch`` bounds the passes of each worker, as its memory would.
"""

import argparse
import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import evenstep
import start


class Sleep(torch.autograd.Function):
    """The identity, whose backward pass takes ``seconds`` seconds."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(ctx.seconds)
        return gradient, None


class Paced(torch.nn.Module):
    """A forward pass that takes a third of ``pace_s`` seconds per sample, and a backward pass that takes the rest."""

    def __init__(self, model: torch.nn.Module, pace_s: float) -> None:
        super().__init__()
        self.model = model
        self.pace_s = pace_s

    def forward(self, x: torch.Tensor) -> Any:
        begun, seconds = time.perf_counter(), self.pace_s * len(x)
        y = Sleep.apply(self.model(x), 2 / 3 * seconds)
        time.sleep(max(0.0, seconds / 3 - (time.perf_counter() - begun)))
        return y


def paced(pace_s: float, mesh: DeviceMesh | None, *, uses_fsdp: bool) -> Any:
    """Returns a model of four layers that takes ``pace_s`` seconds per sample."""
    layers = [
        *(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()) for _ in range(3)),
        torch.nn.Linear(64, 1),
    ]
    net = torch.nn.Sequential(*(Paced(layer, pace_s / len(layers)) for layer in layers))
    if not uses_fsdp and mesh:
        halves = ColwiseParallel(output_layouts=Replicate())
        parallelize_module(net, mesh["members"], {f"{at}.model.0": halves for at in range(len(layers) - 1)})
        return DistributedDataParallel(net, device_mesh=mesh["workers"])
    if not uses_fsdp:
        return DistributedDataParallel(net)
    for layer in net:
        fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def rank(arguments: argparse.Namespace) -> None:
    """Runs one worker; rank 0 prints the throughput of all workers after the warm-up."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    paces = [float(pace) * arguments.unit_ms / 1e3 for pace in arguments.paces.split(",")]
    size, steps = arguments.global_batch, arguments.warm_up + arguments.steps
    x = torch.randn(steps * size, 64)
    dataset = TensorDataset(x, x[:, :1] * x[:, 1:2])

    mesh = None
    if arguments.members > 1:
        mesh = init_device_mesh("cpu", (len(paces), arguments.members), mesh_dim_names=("workers", "members"))
    job = evenstep.init(mesh=mesh and mesh["workers"])
    sizes = [int(most) for most in arguments.micro_batch.split(",")] if arguments.micro_batch else None
    loader = job.loader(dataset, global_batch=size, micro_batch=sizes[dist.get_rank()] if sizes else None)
    model = job.wrap(paced(paces[dist.get_rank() // arguments.members], mesh, uses_fsdp=arguments.fsdp))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    begun = time.perf_counter()
    for inputs, targets in loader:
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        if not loader.is_last:
            continue
        optimizer.step()
        optimizer.zero_grad()
        if loader.latest.position + 1 == arguments.warm_up:
            dist.barrier()
            begun = time.perf_counter()
    dist.barrier()
    took = time.perf_counter() - begun
    if dist.get_rank() == 0:
        ideal = sum(1 / pace for pace in paces)
        reached = arguments.steps * size / took
        print(
            f"{arguments.rank}: {1e3 * took / arguments.steps:.1f} ms per step, {reached:.0f} samples/s, "
            f"{100 * reached / ideal:.1f} % of the sum of the speeds ({ideal:.0f})"
        )
    job.close()
    dist.destroy_process_group()


def main() -> None:
    """Starts the predictor and the ranks, twice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paces", default="1,2,2,4", help="relative times per sample, one for each worker")
    parser.add_argument("--unit-ms", type=float, default=2.0, help="time per sample of a worker with pace 1")
    parser.add_argument("--global-batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=100, help="number of measured steps")
    parser.add_argument("--warm-up", type=int, default=30, help="number of warm-up steps")
    parser.add_argument("--micro-batch", help="maximum number of samples in a pass, one for each worker")
    parser.add_argument("--fsdp", action="store_true", help="shard the layers with FSDP2")
    parser.add_argument("--members", type=int, default=1, help="number of ranks of each worker")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        return rank(arguments)
    given = {
        name: value for name, value in vars(arguments).items() if name not in ("rank", "fsdp") and value is not None
    }
    options = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    options += ["--fsdp"] if arguments.fsdp else []
    ranks = len(arguments.paces.split(",")) * arguments.members
    start.torchrun(ranks, [__file__, *options, "--rank=even shares"], {"EVENSTEP_SERVER": ""})
    with start.predictor() as server:
        environ = {"EVENSTEP_SERVER": server, "EVENSTEP_JOB": f"paces-{os.getpid()}"}
        start.torchrun(ranks, [__file__, *options, "--rank=by forecast"], environ)
    return None


if __name__ == "__main__":
    main()
