"""Overhead of evenstep per step: the same training with and without it, alternating in the same processes.

    python benchmarks/overhead.py --step-ms 50 [--sleep] [--fsdp]

Two ranks, each pinned to its own core, compute matrix products for about the given time. Blocks of steps alternate
between plain DDP and the weighted hook with plans from a predictor. Both have even shares, so the compute is the same.
The script prints the CPU time of all threads next to the wall time: it is less noisy on a shared machine.

With ``--fsdp`` the model has 24 layers, each sharded by FSDP2 (ZeRO-3). Blocks without FSDP show which compute time the
ranks should report.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import evenstep
import start

BLOCK = 40


MATRIX = torch.randn(192, 192)


class Working(torch.nn.Module):
    """A small layer, and matrix products or a sleep that takes ``seconds`` seconds."""

    def __init__(self, products: int, seconds: float, outputs: int) -> None:
        super().__init__()
        self.products, self.seconds = products, seconds
        self.layer = torch.nn.Linear(64, outputs)

    def forward(self, x: torch.Tensor) -> Any:
        if not self.products:
            time.sleep(self.seconds)
        for _ in range(self.products):
            torch.mm(MATRIX, MATRIX)
        return self.layer(x)


def network(layers: int, per_s: float, seconds: float) -> torch.nn.Sequential:
    """Returns layers that take ``seconds`` seconds, with ``per_s`` products per second; they sleep if it is 0."""
    share = seconds / layers
    products = max(1, round(per_s * share)) if per_s else 0
    return torch.nn.Sequential(*(Working(products, share, 64 if at < layers - 1 else 1) for at in range(layers)))


def products_per_s() -> float:
    begun, products = time.perf_counter(), 0
    while time.perf_counter() - begun < 1.0:
        torch.mm(MATRIX, MATRIX)
        products += 1
    return float(products)


def sharded(net: torch.nn.Sequential) -> Any:
    for layer in net:
        fully_shard(layer)
    return fully_shard(net)


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def tell(times: dict[str, list[float]], cpu: dict[str, list[float]]) -> None:
    middle = {name: statistics.median(values) for name, values in times.items()}
    busy = {name: statistics.median(values) for name, values in cpu.items()}
    for name in times:
        print(f"{name}: {1e3 * middle[name]:.3f} ms per step (median), {1e3 * busy[name]:.3f} ms of CPU time")
    added = 1e6 * (middle["evenstep"] - middle["plain"])
    share = 100 * (middle["evenstep"] / middle["plain"] - 1)
    print(f"added: {added:.0f} us of wall time ({share:+.2f} %)")
    print(f"added: {1e6 * (busy['evenstep'] - busy['plain']):.0f} us of CPU time")


def rank(arguments: argparse.Namespace) -> None:
    """Runs one worker; rank 0 prints the results."""
    dist.init_process_group("gloo")
    me = dist.get_rank()
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[me]})
    torch.set_num_threads(1)
    x = torch.randn(8192, 64)
    dataset = TensorDataset(x, x[:, :1])
    per_s = 0.0 if arguments.sleep else products_per_s()
    layers, wrapped = (24, sharded) if arguments.fsdp else (1, DistributedDataParallel)

    def net() -> torch.nn.Sequential:
        return network(layers, per_s, arguments.step_ms / 1e3)

    job = evenstep.init(job_options={"min_gain": 1.0})
    loader = job.loader(dataset, global_batch=32)
    reported: list[Callable[[], float]] = []
    sensor = job._run.sensor  # noqa: SLF001  # No interface tells it in the process.
    computed = sensor.computed

    def kept() -> tuple[Callable[[], float], float]:
        told = computed()
        reported.append(told[0])
        return told

    sensor.computed = kept  # type: ignore[method-assign]
    plain_loader = DataLoader(dataset, batch_size=16, shuffle=True)
    arms = [
        ("plain", wrapped(net()), endless(plain_loader)),
        ("evenstep", job.wrap(wrapped(net())), endless(loader)),
    ]
    if arguments.fsdp:
        arms.append(("without FSDP", net(), endless(plain_loader)))

    def measure(model: torch.nn.Module, batches: Iterator[Any]) -> tuple[list[float], float]:
        steps, used = [], time.process_time()
        for _ in range(BLOCK):
            begun = time.perf_counter()
            inputs, targets = next(batches)
            model.zero_grad()
            computes = time.perf_counter()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            steps.append(time.perf_counter() - begun)
            passes[model].append(time.perf_counter() - computes)
        return steps, (time.process_time() - used) / BLOCK

    times: dict[str, list[float]] = {name: [] for name, _, _ in arms}
    cpu: dict[str, list[float]] = {name: [] for name, _, _ in arms}
    passes: dict[torch.nn.Module, list[float]] = {model: [] for _, model, _ in arms}
    for count, (name, model, batches) in zip(range(len(arms) * (arguments.blocks + 1)), cycle(arms), strict=False):
        steps, used = measure(model, batches)
        if count >= len(arms):
            # The last exchange of the previous block runs during the first step of a block.
            times[name] += steps[1:]
            cpu[name].append(used)
    if me == 0:
        tell(times, cpu)
        if arguments.fsdp:
            alone = statistics.median(passes[arms[-1][1]])
            told = statistics.median(time_s() for time_s in reported)
            print(
                f"reported compute time: {1e3 * told:.3f} ms (median), of the module without FSDP {1e3 * alone:.3f} ms "
                f"({100 * (told / alone - 1):+.2f} %)"
            )
    job.close()
    dist.destroy_process_group()


def main() -> None:
    """Starts the predictor and two ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step-ms", type=float, default=50.0)
    parser.add_argument("--blocks", type=int, default=12, help="number of blocks of each kind, with forty steps each")
    parser.add_argument("--sleep", action="store_true", help="leave the cores idle during the step, as with GPUs")
    parser.add_argument("--fsdp", action="store_true", help="24 layers, sharded with FSDP2")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        return rank(arguments)
    options = [f"--step-ms={arguments.step_ms}", f"--blocks={arguments.blocks}", "--rank"]
    options += [f"--{name}" for name in ("sleep", "fsdp") if getattr(arguments, name)]
    with start.predictor() as server:
        environ = {"EVENSTEP_SERVER": server, "EVENSTEP_JOB": f"overhead-{os.getpid()}"}
        start.torchrun(2, [__file__, *options], environ)
    return None


if __name__ == "__main__":
    main()
