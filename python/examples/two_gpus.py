"""Two different GPUs in one machine: even shares, a plan by hand, and the predictor's plans.

Start it with `torchrun --nproc-per-node 2 two_gpus.py`, with one GPU for each process. Without GPUs, or with `--pace`,
speeds are imposed: `torchrun --nproc-per-node 2 two_gpus.py --pace 1 2.4`. The last part needs `EVENSTEP_SERVER` and
`EVENSTEP_JOB`.
"""

import argparse
import os
import time
from collections.abc import Iterator
from typing import Any

import evenstep
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils import data

#: Time per sample of a worker with pace 1, in seconds.
IMPOSED_S = 0.001


class Net(torch.nn.Module):
    """A perceptron with an imposed time per sample."""

    def __init__(self, width: int, s_per_sample: float) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU(),
            torch.nn.Linear(width, 1),
        )  # fmt: skip
        self.s_per_sample = s_per_sample

    def forward(self, x: torch.Tensor) -> Any:
        time.sleep(self.s_per_sample * len(x))
        return self.layers(x)


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()


def finished(device: torch.device) -> float:
    """Returns the time after the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def speed_alone(net: Net, batch: int, device: torch.device) -> float:
    """Returns the samples per second of this worker without waiting for others."""
    x, y = torch.randn(batch, 64, device=device), torch.randn(batch, 1, device=device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    step(net, optimizer, x, y)
    begun = finished(device)
    for _ in range(5):
        step(net, optimizer, x, y)
    return 5 * batch / (finished(device) - begun)


def train(job: evenstep.Job, net: Net, loading: dict[str, Any], steps: int, device: torch.device) -> float:
    """Returns the samples per second of all workers, over the second half of the steps."""

    def batches() -> Iterator[Any]:
        loader = job.loader(**loading)
        while True:
            yield from loader

    model = job.wrap(DistributedDataParallel(net))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    begun = 0.0
    for at, (x, y) in zip(range(steps), batches(), strict=False):
        if at == steps // 2:
            begun = finished(device)
        step(model, optimizer, x.to(device), y.to(device))
    samples: int = (steps - steps // 2) * loading["global_batch"]
    throughput = samples / (finished(device) - begun)
    job.close()
    return throughput


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pace", type=float, nargs="+", help="impose these speeds, one for each rank")
    parser.add_argument("--global-batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--width", type=int, help="width of the network; default 64, and 4096 on GPUs")
    options = parser.parse_args()

    dist.init_process_group()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    is_real = torch.cuda.is_available() and options.pace is None
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if is_real else torch.device("cpu")
    if is_real:
        torch.cuda.set_device(device)
    paces = options.pace or ([] if is_real else [1.0, 2.4])
    if paces and len(paces) != ranks:
        parser.error(f"--pace {paces}: must be one for each of the {ranks} ranks")

    torch.manual_seed(0)
    x = torch.randn(16_384, 64)
    dataset = data.TensorDataset(x, (x[:, :8] * x[:, 8:16]).sum(1, keepdim=True))
    batch, steps = options.global_batch, options.steps
    loading = {"dataset": dataset, "global_batch": batch, "drop_last": True}
    width = options.width or (4096 if is_real else 64)

    def net() -> Net:
        return Net(width, IMPOSED_S / paces[rank] if paces else 0.0).to(device)

    def say(what: str) -> None:
        if rank == 0:
            print(what, flush=True)

    speeds = [torch.zeros(1, dtype=torch.float64, device=device) for _ in range(ranks)]
    own = speed_alone(net(), batch // ranks, device)
    dist.all_gather(speeds, torch.tensor([own], dtype=torch.float64, device=device))
    alone = [speed.item() for speed in speeds]
    say(f"alone: {', '.join(f'{speed:,.0f}' for speed in alone)} samples/s; {sum(alone):,.0f} together at best")

    def tell(name: str, throughput: float) -> None:
        gain, share = throughput / even, throughput / sum(alone)
        say(f"{name}: {throughput:,.0f} samples/s, {gain:.2f} times even shares, {share:.0%} of best")

    even_plan = [batch // ranks] * (ranks - 1) + [batch - batch // ranks * (ranks - 1)]
    even = train(evenstep.init(plan=even_plan), net(), loading, steps, device)
    tell(f"even shares {even_plan}", even)

    plan = [round(batch * speed / sum(alone)) for speed in alone[:-1]]
    plan.append(batch - sum(plan))
    tell(f"a plan by hand {plan}", train(evenstep.init(plan=plan), net(), loading, steps, device))

    if os.environ.get("EVENSTEP_SERVER"):
        tell("the predictor's plans", train(evenstep.init(), net(), loading, steps, device))
    else:
        say("EVENSTEP_SERVER is not set: there is no predictor to plan")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
