"""Overhead of evenstep per step: the same training with and without it, alternating in the same processes.

    python benchmarks/overhead.py --step-ms 50 [--sleep] [--fsdp]

Two ranks, each pinned to its own core, train 24 layers with 288 parameters, and compute matrix products for about the
given time. Blocks of steps alternate between plain DDP, even shares from a predictor, and given uneven shares. The
samples take little of the time. The script prints the CPU time of all threads next to the wall time: it is less noisy
on a shared machine.

With ``--fsdp`` each layer is sharded by FSDP2 (ZeRO-3). Blocks without FSDP show which compute time the ranks should
report.
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
LAYERS = 24
WIDTH = 64
MATRIX = torch.randn(192, 192)


class Working(torch.nn.Module):
    """A layer with the parameters of a transformer's, and products or a sleep that takes ``seconds`` seconds."""

    def __init__(self, products: int, seconds: float) -> None:
        super().__init__()
        self.products, self.seconds = products, seconds
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(WIDTH) for _ in range(2))
        self.mix, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        if not self.products:
            time.sleep(self.seconds)
        for _ in range(self.products):
            torch.mm(MATRIX, MATRIX)
        query, key, value = self.mix(self.norms[0](x)).chunk(3, -1)
        x = x + self.out(query * key + value)
        return x + self.narrow(torch.relu(self.wide(self.norms[1](x))))


def network(per_s: float, seconds: float) -> torch.nn.Sequential:
    """Returns layers that take ``seconds`` seconds, with ``per_s`` products per second; they sleep if it is 0."""
    share = seconds / LAYERS
    products = max(1, round(per_s * share)) if per_s else 0
    return torch.nn.Sequential(*(Working(products, share) for _ in range(LAYERS)))


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
    for name in list(times)[1:]:
        added, cost = 1e6 * (middle[name] - middle["plain"]), 1e6 * (busy[name] - busy["plain"])
        share = middle[name] / middle["plain"] - 1
        print(f"{name}: added {added:.0f} us of wall time ({share:+.2%}), {cost:.0f} us of CPU time")


def rank(arguments: argparse.Namespace) -> None:  # noqa: PLR0915  # A script.
    """Runs one worker; rank 0 prints the results."""
    dist.init_process_group("gloo")
    me = dist.get_rank()
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[me]})
    torch.set_num_threads(1)
    x = torch.randn(8192, WIDTH)
    dataset = TensorDataset(x, x)
    per_s = 0.0 if arguments.sleep else products_per_s()
    wrapped = sharded if arguments.fsdp else DistributedDataParallel

    def net() -> torch.nn.Sequential:
        return network(per_s, arguments.step_ms / 1e3)

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
        ("even shares", job.wrap(wrapped(net())), endless(loader)),
    ]
    uneven = evenstep.init(plan=[17, 15])
    if arguments.fsdp:
        arms.append(("without FSDP", net(), endless(plain_loader)))
    else:
        uneven_loader = uneven.loader(dataset, global_batch=32)
        arms.append(("uneven shares", uneven.wrap(wrapped(net())), endless(uneven_loader)))

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
    uneven.close()
    dist.destroy_process_group()


def main() -> None:
    """Starts the predictor and two ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step-ms", type=float, default=50.0)
    parser.add_argument("--blocks", type=int, default=12, help="number of blocks of each kind, with forty steps each")
    parser.add_argument("--sleep", action="store_true", help="leave the cores idle during the step, as with GPUs")
    parser.add_argument("--fsdp", action="store_true", help="layers sharded with FSDP2")
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
