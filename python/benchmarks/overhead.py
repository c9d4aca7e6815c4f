"""Overhead of evenstep per step: the same DDP training with and without it, alternating in the same processes.

    python benchmarks/overhead.py --step-ms 50 [--sleep]

Two ranks, each pinned to its own core, compute matrix products for about the given time. Blocks of steps alternate
between plain DDP and the weighted hook with plans from a predictor. Both have even shares, so the compute is the same.
The script prints the CPU time of all threads next to the wall time: it is less noisy on a shared machine.
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


class Working(torch.nn.Module):
    """A small layer, and matrix products that take about ``seconds`` seconds."""

    def __init__(self, seconds: float, *, sleeps: bool) -> None:
        super().__init__()
        self.seconds = seconds if sleeps else None
        self.layer = torch.nn.Linear(64, 1)
        self.matrix = torch.randn(192, 192)
        begun, products = time.perf_counter(), 0
        while time.perf_counter() - begun < 1.0:
            torch.mm(self.matrix, self.matrix)
            products += 1
        self.products = max(1, round(products * seconds))

    def forward(self, x: torch.Tensor) -> Any:
        if self.seconds:
            time.sleep(self.seconds)
            return self.layer(x)
        for _ in range(self.products):
            torch.mm(self.matrix, self.matrix)
        return self.layer(x)


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def rank(arguments: argparse.Namespace) -> None:
    """Runs one worker; rank 0 prints the results."""
    dist.init_process_group("gloo")
    me = dist.get_rank()
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[me]})
    torch.set_num_threads(1)
    x = torch.randn(8192, 64)
    dataset = TensorDataset(x, x[:, :1])
    seconds = arguments.step_ms / 1e3
    plain = DistributedDataParallel(Working(seconds, sleeps=arguments.sleep))
    job = evenstep.init(job_options={"min_gain": 1.0})
    ours_loader = job.loader(dataset, global_batch=32)
    net = Working(seconds, sleeps=arguments.sleep)
    net.products = plain.module.products
    ours = job.wrap(DistributedDataParallel(net))
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

    arms = [("plain", plain, endless(plain_loader)), ("evenstep", ours, endless(ours_loader))]
    times: dict[str, list[float]] = {name: [] for name, _, _ in arms}
    cpu: dict[str, list[float]] = {name: [] for name, _, _ in arms}
    for count, (name, model, batches) in zip(range(2 * arguments.blocks + 2), cycle(arms), strict=False):
        steps, used = measure(model, batches)
        if count >= len(arms):
            # The last exchange of the previous block runs during the first step of a block.
            times[name] += steps[1:]
            cpu[name].append(used)
    if me == 0:
        middle = {name: statistics.median(values) for name, values in times.items()}
        busy = {name: statistics.median(values) for name, values in cpu.items()}
        for name in times:
            print(f"{name}: {1e3 * middle[name]:.3f} ms per step (median), {1e3 * busy[name]:.3f} ms of CPU time")
        added = 1e6 * (middle["evenstep"] - middle["plain"])
        share = 100 * (middle["evenstep"] / middle["plain"] - 1)
        print(f"added: {added:.0f} us of wall time ({share:+.2f} %)")
        print(f"added: {1e6 * (busy['evenstep'] - busy['plain']):.0f} us of CPU time")
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
