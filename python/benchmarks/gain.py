"""The gain that evenstep reports, compared with the gain that a user measures, in varied training runs.

    python benchmarks/gain.py

Each run is a DDP script on four ranks (Gloo on CPUs) whose passes take imposed times. It trains two models in
alternating blocks of iterations: one with even shares and without a predictor, one with planned shares. Iteration k of
either model has the same noise, so the ratio of their times is the true gain. It is compared with the gain of the job
at the predictor (``GET /v1/jobs/{job}``) and its 90 % interval.
"""

import argparse
import json
import math
import os
import random
import statistics
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import evenstep
import start

RANKS = 4

#: Seconds of a pass over the rank and its work in samples.
Law = Callable[[int, float], float]
#: Factor on the time of a rank in an iteration.
Load = Callable[[int, int], float]


def affine(fixed_ms: tuple[float, ...], sample_ms: tuple[float, ...]) -> Law:
    """A fixed time and a time per sample, by rank."""
    return lambda rank, work: (fixed_ms[rank] + sample_ms[rank] * work) / 1e3


def flat(until: int, sample_ms: tuple[float, ...]) -> Law:
    """Flat up to a number of samples, as on a GPU that is not saturated; then proportional."""
    return lambda rank, work: sample_ms[rank] * max(until, work) / 1e3


def tiles(tile: int, sample_ms: tuple[float, ...]) -> Law:
    """Proportional to the number of tiles, whether they are full or not."""
    return lambda rank, work: sample_ms[rank] * math.ceil(work / tile) * tile / 1e3


def noise(sigma: float) -> Load:
    """Independent noise."""
    return lambda rank, at: math.exp(sigma * random.Random(f"{rank} {at}").gauss(0, 1))


def regimes(length: int, factor: float, quiet: float = 0.02) -> Load:
    """Every ``length`` iterations, a rank shares its core with another program, or does not."""

    def load(rank: int, at: int) -> float:
        is_slow = random.Random(f"{rank} {at // length}").random() < 0.3
        return (factor if is_slow else 1.0) * noise(quiet)(rank, at)

    return load


def wave(period: int, depth: float) -> Load:
    """A slow change, at another time on each rank."""
    return lambda rank, at: (1 + depth * math.sin(2 * math.pi * (at / period + rank / RANKS))) * noise(0.02)(rank, at)


QUIET = noise(0.02)


@dataclass(frozen=True)
class Case:
    """A kind of run."""

    law: Law
    load: Load = QUIET
    #: Samples of an epoch, which is a block. The last iteration has fewer than 256 if the epoch is ragged.
    samples: int = 12 * 256
    #: Largest local batch of rank 3, if it has one.
    cap: int | None = None
    is_hedged: bool = False
    has_costs: bool = False


EQUAL, HALVES, MIXED = (2.0, 2.0, 2.0, 2.0), (3.0, 1.5, 1.5, 1.5), (4.0, 2.0, 2.0, 1.0)
NONE = (0.0, 0.0, 0.0, 0.0)

#: The runs. Steps take 0.1 to 0.3 s: four ranks on two cores compute their gradients one after the other if they finish
#: together, which would count in short steps.
CASES = {
    "affine 1:2:2:4": Case(affine(NONE, MIXED)),
    "affine, one slow": Case(affine(NONE, HALVES), noise(0.05)),
    "affine, fixed 75 ms on one": Case(affine((0, 75, 0, 0), EQUAL)),
    "affine, fixed 50 ms on all": Case(affine((50, 50, 50, 50), MIXED)),
    "affine, equal, noise 10 %": Case(affine(NONE, EQUAL), noise(0.1)),
    "saturating at even shares": Case(flat(64, (2.4, 2.0, 2.0, 2.0))),
    "saturating below even shares": Case(flat(32, (3.0, 2.0, 1.5, 1.0))),
    "saturating, tiles of 16": Case(tiles(16, (3.0, 3.0, 1.5, 1.5))),
    "capped at 80": Case(affine(NONE, MIXED), cap=80),
    "capped at 70, fixed times": Case(affine((25, 25, 25, 25), MIXED), noise(0.03), cap=70),
    "hedged, one slow": Case(affine(NONE, HALVES), noise(0.05), is_hedged=True),
    "hedged, changing load": Case(affine(NONE, EQUAL), regimes(8, 2.0), is_hedged=True),
    "hedged, noise 20 %": Case(affine((12, 12, 12, 12), EQUAL), noise(0.2), is_hedged=True),
    "tokens 1:2:2:4": Case(affine(NONE, MIXED), has_costs=True),
    "tokens, fixed times": Case(affine((40, 40, 40, 40), HALVES), noise(0.05), has_costs=True),
    "ragged epochs 1:2:2:4": Case(affine(NONE, MIXED), samples=11 * 256 + 40),
    "ragged epochs, fixed 75 ms": Case(affine((0, 75, 0, 0), EQUAL), noise(0.03), samples=9 * 256 + 100),
    "load in regimes": Case(affine(NONE, EQUAL), regimes(25, 2.0)),
    "load in short regimes": Case(affine((12, 12, 12, 12), EQUAL), regimes(6, 1.7)),
    "load in waves": Case(affine((20, 20, 20, 20), EQUAL), wave(90, 0.4)),
}


class Paced(torch.nn.Module):
    """A forward pass of an imposed time; the backward pass adds very little."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(16, 1)
        self.case = case
        #: Number of the iteration.
        self.at = 0

    def forward(self, x: torch.Tensor) -> Any:
        begun = time.perf_counter()
        y = self.layer(x)
        rank = dist.get_rank()
        work = float(x[:, 0].sum()) if self.case.has_costs else len(x)
        wanted = self.case.law(rank, work) * self.case.load(rank, self.at)
        time.sleep(max(0.0, wanted - (time.perf_counter() - begun)))
        return y


class Training:
    """A job with its model."""

    def __init__(self, case: Case, data: TensorDataset, *, is_even: bool) -> None:
        if is_even:
            self.job = evenstep.init(server="off", job="even")
        else:
            self.job = evenstep.init(max_local_batch=case.cap if dist.get_rank() == RANKS - 1 else None)
        self.net = Paced(case)
        self.model = self.job.wrap(DistributedDataParallel(self.net))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.001)
        self.is_hedged = case.is_hedged and not is_even
        costs: dict[str, Any] = {"cost": data.tensors[0][:, 0]} if case.has_costs else {}
        self.batches: Iterable[Any] = (
            self.job.steps(data, global_batch=256, model=self.model, **costs)
            if self.is_hedged
            else self.job.loader(data, global_batch=256, **costs)
        )
        self.took_s = 0.0

    def passes(self) -> Iterator[Iterable[Any]]:
        """Yields the passes of each iteration of an epoch."""
        for batch in self.batches:
            yield batch if self.is_hedged else [batch]

    def epoch(self) -> None:
        """Trains an epoch."""
        begun = None
        for step in self.passes():
            # Opening an epoch, and the connection to the predictor in the first one, is not part of a step.
            begun = begun or time.perf_counter()
            self.optimizer.zero_grad()
            for x, y in step:
                torch.nn.functional.mse_loss(self.model(x), y).backward()
            self.optimizer.step()
            self.net.at += 1
        self.took_s += time.perf_counter() - (begun or 0.0)


def alternate(case: Case, blocks: int) -> dict[str, Any] | None:
    """Runs a rank of a case.

    Returns:
        On rank 0 the measured gain as ``true``, and the gain of the job at the predictor as ``said``.
    """
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.randn(case.samples, 16)
    if case.has_costs:
        x[:, 0] = torch.exp(0.7 * torch.randn(case.samples)).clamp(0.1, 8.0)
        x[:, 0] /= x[:, 0].mean()
    data = TensorDataset(x, x[:, 1:2])
    even, planned = (Training(case, data, is_even=is_even) for is_even in (True, False))
    for _ in range(blocks):
        even.epoch()
        planned.epoch()
    # The last reports are stored by then.
    planned.job.close()
    even.job.close()
    if dist.get_rank() > 0:
        return None
    url = f"{os.environ['EVENSTEP_SERVER']}/v1/jobs/{os.environ['EVENSTEP_JOB']}"
    with urllib.request.urlopen(url) as answer:  # noqa: S310  # The predictor of this run.
        return {"true": even.took_s / planned.took_s, "said": json.load(answer)["gain"]}


def rank(arguments: argparse.Namespace) -> None:
    """Runs a rank. Rank 0 prints the result as JSON."""
    dist.init_process_group("gloo")
    if result := alternate(CASES[arguments.rank], arguments.blocks):
        print("RESULT " + json.dumps(result), flush=True)
    dist.destroy_process_group()


def main() -> None:
    """Runs the cases and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=8, help="number of blocks with even shares and with planned ones")
    parser.add_argument("--only", default="", help="a part of the names of the cases to run")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        return rank(arguments)
    errors, inside = [], 0
    for number, name in enumerate(name for name in CASES if arguments.only in name):
        with start.predictor() as server:
            environ = {"EVENSTEP_SERVER": server, "EVENSTEP_JOB": f"gain-{number}"}
            printed = start.torchrun(
                RANKS, [__file__, f"--rank={name}", f"--blocks={arguments.blocks}"], environ, captures=True
            )
        result = json.loads(next(line for line in printed.splitlines() if line.startswith("RESULT "))[7:])
        true, said = result["true"], result["said"]
        error = said["ratio"] / true - 1
        is_inside = said["lower"] <= true <= said["upper"]
        errors.append(abs(error))
        inside += is_inside
        interval = f"{said['lower']:.2f} to {said['upper']:.2f}"
        print(
            f"{name:30} measured {true:.3f}, said {said['ratio']:.3f} ({interval}), error {100 * error:+.1f} %"
            f"{'' if is_inside else ', outside'}",
            flush=True,
        )
    median = 100 * statistics.median(errors)
    print(f"{inside} of {len(errors)} intervals contain the measured gain; median error {median:.1f} %")
    return None


if __name__ == "__main__":
    main()
