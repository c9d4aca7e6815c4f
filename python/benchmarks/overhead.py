"""Overhead of evenstep per step: the same DDP training with and without it, alternating in the same processes.

    python benchmarks/overhead.py --step-ms 50 [--sleep]

Two ranks, each pinned to its own core, train 24 layers with 288 parameters and compute matrix products for about the
given time. Blocks of steps alternate between plain DDP, even shares from a predictor, and given uneven shares. The
samples take little of the time. The script prints the CPU time of all threads next to the wall time: it is less noisy
on a shared machine.
"""

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import evenstep
import start

BLOCK = 40
LAYERS = 24
WIDTH = 64


class Layer(torch.nn.Module):
    """The parameters of a transformer's layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(WIDTH) for _ in range(2))
        self.mix, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        query, key, value = self.mix(self.norms[0](x)).chunk(3, -1)
        x = x + self.out(query * key + value)
        return x + self.narrow(torch.relu(self.wide(self.norms[1](x))))


class Working(torch.nn.Module):
    """Small layers, and matrix products that take about ``seconds`` seconds."""

    def __init__(self, seconds: float, *, sleeps: bool) -> None:
        super().__init__()
        self.seconds = seconds if sleeps else None
        self.layers = torch.nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.matrix = torch.randn(192, 192)
        begun, products = time.perf_counter(), 0
        while time.perf_counter() - begun < 1.0:
            torch.mm(self.matrix, self.matrix)
            products += 1
        self.products = max(1, round(products * seconds))

    def forward(self, x: torch.Tensor) -> Any:
        if self.seconds:
            time.sleep(self.seconds)
            return self.layers(x)
        for _ in range(self.products):
            torch.mm(self.matrix, self.matrix)
        return self.layers(x)


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def rank(arguments: argparse.Namespace) -> None:
    """Runs one worker; rank 0 prints the results."""
    dist.init_process_group("gloo")
    me = dist.get_rank()
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[me]})
    torch.set_num_threads(1)
    x = torch.randn(8192, WIDTH)
    dataset = TensorDataset(x, x)
    seconds = arguments.step_ms / 1e3
    plain = DistributedDataParallel(Working(seconds, sleeps=arguments.sleep))
    jobs = {
        "even shares": evenstep.init(job_options={"min_gain": 1.0}),
        "uneven shares": evenstep.init(plan=[17, 15]),
    }
    loaders = {name: job.loader(dataset, global_batch=32) for name, job in jobs.items()}

    def wrapped(job: evenstep.Job) -> DistributedDataParallel:
        net = Working(seconds, sleeps=arguments.sleep)
        net.products = plain.module.products
        return job.wrap(DistributedDataParallel(net))

    plain_loader = DataLoader(dataset, batch_size=16, shuffle=True)

    def measure(model: DistributedDataParallel, batches: Iterator[Any]) -> tuple[list[float], float]:
        steps, used = [], time.process_time()
        for _ in range(BLOCK):
            begun = time.perf_counter()
            inputs, targets = next(batches)
            model.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            steps.append(time.perf_counter() - begun)
        return steps, (time.process_time() - used) / BLOCK

    arms = [("plain", plain, endless(plain_loader))]
    arms += [(name, wrapped(job), endless(loaders[name])) for name, job in jobs.items()]
    times: dict[str, list[float]] = {name: [] for name, _, _ in arms}
    cpu: dict[str, list[float]] = {name: [] for name, _, _ in arms}
    for count, (name, model, batches) in zip(range(len(arms) * (arguments.blocks + 1)), cycle(arms), strict=False):
        steps, used = measure(model, batches)
        if count >= len(arms):
            # The last exchange of the previous block runs during the first step of a block.
            times[name] += steps[1:]
            cpu[name].append(used)
    if me == 0:
        parameters = len(list(plain.parameters()))
        for name, steps in times.items():
            wall, used = 1e3 * statistics.median(steps), 1e3 * statistics.median(cpu[name])
            print(f"{name}: {wall:.3f} ms per step (median), {used:.3f} ms of CPU time")
            added = used - 1e3 * statistics.median(cpu["plain"])
            longer = wall - 1e3 * statistics.median(times["plain"])
            print(f"  added: {longer:+.3f} ms of wall time, {added:+.3f} ms of CPU time")
            share, each = added / arguments.step_ms, 1e3 * added / parameters
            print(f"  CPU time: {share:+.2%} of a step, {each:+.2f} us per parameter")
    for job in jobs.values():
        job.close()
    dist.destroy_process_group()


def main() -> None:
    """Starts the predictor and two ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step-ms", type=float, default=50.0)
    parser.add_argument("--blocks", type=int, default=12, help="number of blocks of each kind, with forty steps each")
    parser.add_argument("--sleep", action="store_true", help="leave the cores idle during the step, as with GPUs")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        return rank(arguments)
    options = [f"--step-ms={arguments.step_ms}", f"--blocks={arguments.blocks}", "--rank"]
    options += ["--sleep"] if arguments.sleep else []
    with start.predictor() as server:
        environ = {"EVENSTEP_SERVER": server, "EVENSTEP_JOB": f"overhead-{os.getpid()}"}
        start.torchrun(2, [__file__, *options], environ)
    return None


if __name__ == "__main__":
    main()
