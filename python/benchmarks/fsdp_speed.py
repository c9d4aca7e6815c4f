"""The compute time that evenstep reports for FSDP2 with resharding, and the CPU time that it adds to a step.

    python benchmarks/fsdp_speed.py [--ranks 2] [--layers 24]

All ranks have the same layers and batches of the same size, in three models whose steps alternate: layers alone, FSDP2
alone, and FSDP2 with evenstep, given plans, and DataLoaders of the same batches. Times are CPU times of the thread of
the training, which other programs change less; so the clock of the sensor is that time, too. Numbers are medians.
"""

import argparse
import os
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

import evenstep
import start
from evenstep.measure import moment


def layers(arguments: argparse.Namespace) -> Any:
    """Returns the layers, the same on all ranks."""
    torch.manual_seed(0)
    width = arguments.width
    return torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh()) for _ in range(arguments.layers))
    )


def sharded(net: Any) -> Any:
    """Shards each layer (ZeRO-3)."""
    for layer in net:
        fully_shard(layer)
    return fully_shard(net)


def rank(arguments: argparse.Namespace) -> None:
    """Runs one rank; rank 0 prints the times."""
    dist.init_process_group("gloo")
    clock = time.thread_time
    data = TensorDataset(torch.randn(arguments.steps * arguments.batch * dist.get_world_size(), arguments.width))
    job = evenstep.init(plan=[arguments.batch] * dist.get_world_size())
    batches = job.loader(data)
    sensor = job._run.sensor  # noqa: SLF001  # The benchmark measures it.
    sensor._timer_of = lambda _: moment.HostTimer(clock)  # noqa: SLF001
    reported: list[float] = []
    computed = sensor.computed

    def observed() -> Any:
        read, waits = computed()
        reported.append(read())
        return read, waits

    sensor.computed = observed  # type: ignore[method-assign]
    own = job.wrap(sharded(layers(arguments)))
    models = {"layers alone": layers(arguments), "FSDP2": sharded(layers(arguments)), "FSDP2 and evenstep": own}
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=1e-3) for name, model in models.items()}
    alike: dict[str, Any] = {name: iter(DataLoader(data, batch_size=arguments.batch, shuffle=True)) for name in models}
    alike["FSDP2 and evenstep"] = iter(batches)
    passes: dict[str, list[float]] = {name: [] for name in models}
    steps: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(arguments.steps):
        for name, model in models.items():
            begun = clock()
            [x] = next(alike[name])
            forward = clock()
            model(x).square().mean().backward()
            passes[name].append(clock() - forward)
            optimizers[name].step()
            optimizers[name].zero_grad()
            steps[name].append(clock() - begun)
    if dist.get_rank() == 0:
        warm = arguments.steps // 5
        alone, whole = (statistics.median(at["layers alone"][warm:]) for at in (passes, steps))
        told = statistics.median(reported[warm:])
        added = [own - plain for own, plain in zip(steps["FSDP2 and evenstep"], steps["FSDP2"], strict=True)]
        print(
            f"passes of the layers alone {1e3 * alone:.2f} ms, reported {1e3 * told:.2f} ms "
            f"({100 * (told / alone - 1):+.1f} %); steps alone {1e3 * whole:.2f} ms, with FSDP2 "
            f"{1e3 * statistics.median(steps['FSDP2'][warm:]):.2f} ms, added by evenstep "
            f"{1e3 * statistics.median(added[warm:]):+.2f} ms"
        )
    job.close()
    dist.destroy_process_group()


def main() -> None:
    """Starts the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=256, help="number of samples of each rank")
    parser.add_argument("--steps", type=int, default=60, help="number of steps of each model")
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        return rank(arguments)
    options = [f"--{name}={value}" for name, value in vars(arguments).items()]
    start.torchrun(arguments.ranks, [__file__, *options], {"EVENSTEP_SERVER": "off"})
    return None


if __name__ == "__main__":
    main()
