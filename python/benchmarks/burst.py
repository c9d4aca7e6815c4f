"""Planned against measured iteration times of burst-parallel plans, on four ranks with imposed layer times.

    python benchmarks/burst.py

Layers sleep, so that ranks need few processors. Their times depend on the samples of a rank: ``vgg16``
has four times those of DeepPool's artifact (forward and backward together), the others have a fixed part and a part
per sample. ``evenstep.burst(.., "auto")`` measures the layers and the network, and plans; then iterations are
measured. Rows alternate over rounds.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import evenstep
from start import binary, torchrun

RANKS, GLOBAL_BATCH, WIDTH = 4, 32, 64
ROUNDS, WARM_UP, ITERATIONS = 3, 3, 15

#: Milliseconds of DeepPool's layers of VGG-16 with 32, 16 and 8 samples, times four.
VGG16 = [
    (33.78, 17.89, 9.19),
    (50.04, 26.09, 13.40),
    (20.57, 10.58, 5.61),
    (27.52, 14.09, 7.42),
    (15.00, 7.90, 4.04),
    (16.92, 8.92, 4.56),
    (19.38, 10.18, 5.23),
    (12.20, 6.43, 3.63),
    (14.09, 7.40, 4.14),
    (15.41, 8.10, 4.46),
    (4.15, 2.46, 1.65),
    (4.15, 2.46, 1.65),
    (4.55, 2.70, 1.83),
    (2.61, 8.67, 8.65),
    (1.56, 2.76, 2.67),
    (0.10, 0.33, 0.33),
]
FORWARD = 1 / 3

#: Milliseconds of each layer: the fixed part, and the part per sample.
AFFINE = {
    "scales": [(1.0, 1.5)] * 8,
    "shrinks": [(2.0, 1.6 / 2**at) for at in range(6) for _ in range(2)],
    "wide head": [(1.0, 1.0)] * 8 + [(30.0, 0.0)] * 2,
}


def times_of(name: str) -> list[Callable[[int], float]]:
    """Returns the milliseconds of each layer, by samples."""
    if name == "vgg16":
        return [partial(between, points) for points in VGG16]
    return [partial(affine, fixed, per_sample) for fixed, per_sample in AFFINE[name]]


def affine(fixed: float, per_sample: float, samples: int) -> float:
    return fixed + per_sample * samples


def between(points: tuple[float, float, float], samples: int) -> float:
    """Returns the time of a number of samples, between the times of the table."""
    known = [(0, 0.0), *zip((8, 16, 32), reversed(points), strict=True)]
    for (few, least), (many, most) in pairwise(known):
        if samples <= many:
            return least + (most - least) * (samples - few) / (many - few)
    raise ValueError(samples)


class Sleep(torch.autograd.Function):
    """Takes the time of a layer."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, ms: float) -> torch.Tensor:
        ctx.ms = ms
        time.sleep(FORWARD * ms / 1e3)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep((1 - FORWARD) * ctx.ms / 1e3)
        return gradient, None


class Layer(nn.Linear):
    """A layer with an imposed time."""

    def __init__(self, time_of: Callable[[int], float]) -> None:
        super().__init__(WIDTH, WIDTH)
        self.time_of = time_of

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = Sleep.apply(super().forward(x), self.time_of(len(x)))
        return made


def measured(model: evenstep.Burst) -> float:
    """Returns the median iteration time in milliseconds."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(GLOBAL_BATCH, WIDTH), torch.randint(0, WIDTH, (GLOBAL_BATCH,))
    times = []
    for _ in range(WARM_UP + ITERATIONS):
        begun = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[model.rows]), model.targets(y[model.rows])).backward()
        optimizer.step()
        times.append(1e3 * (time.perf_counter() - begun))
    return statistics.median(times[WARM_UP:])


def rank_main() -> None:
    """Runs one rank."""
    dist.init_process_group("gloo")
    rows: dict[tuple[str, float | None], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for at in range(ROUNDS):
            for name in ("vgg16", *AFFINE):
                for limit in (None, 1.5):
                    torch.manual_seed(0)
                    net = nn.Sequential(*map(Layer, times_of(name)))
                    path = Path(folder) / f"{name} {limit} {at}.json"
                    model = evenstep.burst(
                        net,
                        "auto",
                        sample_input=torch.randn(1, WIDTH),
                        global_batch=GLOBAL_BATCH,
                        amplification=limit,
                        path=path,
                    )
                    ms = measured(model)
                    if not dist.get_rank():
                        plan = json.loads(path.read_text())
                        rows.setdefault((name, limit), []).append((plan["iteration_us"] / 1e3, ms))
    dist.barrier()
    for (name, limit), runs in rows.items():
        planned, taken = (", ".join(f"{run[part]:.0f}" for run in runs) for part in (0, 1))
        ratio = statistics.median(ms / planned_ms for planned_ms, ms in runs)
        print(f"| {name} | {limit or 'none'} | {planned} | {taken} | {ratio:.2f} |")
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        rank_main()
    else:
        path = f"{binary().parent}{os.pathsep}{os.environ['PATH']}"
        torchrun(RANKS, [str(Path(sys.argv[0]).resolve())], {"PATH": path})
