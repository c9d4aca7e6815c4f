"""Gain of hedged steps with changing speeds: plans by forecast alone, compared with plans with a shared tail.

    OMP_NUM_THREADS=1 python benchmarks/hedged.py --predictor ../target/release/evenstep-predictor

The script starts a predictor and the ranks like torchrun, with Gloo on CPUs. Paces change like those of
``evenstep-trainer launch --vary-pace``: half of the time a rank is alone, otherwise it shares its core with
one to three busy threads. A regime lasts 3 s on average. Each policy runs for the same time with the same regimes.
Rates are samples per second over all ranks after the first iterations. *Of ideal* is their fraction of the sum of the
ranks'
measured speeds.
"""

import argparse
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # missing in torch's type stubs.
from torch.nn.parallel import DistributedDataParallel

import evenstep

#: Mean, minimum and maximum duration of a regime in seconds, and the maximum number of busy threads.
REGIME_S, REGIME_MIN_S, REGIME_MAX_S = 3.0, 0.75, 9.0
THREADS_MAX = 3

POLICIES = ("even", "forecast", "hedged")

_CONTEXT = multiprocessing.get_context("forkserver")
# DistributedDataParallel loads the compiler at its first use, which takes longer than a policy.
_CONTEXT.set_forkserver_preload(["torch", "torch.distributed", "torch._dynamo", "torch._dynamo.callback", "evenstep"])


@dataclass
class SimulatedLoad:
    """A simulated load over the seconds since the start of the run."""

    random: random.Random
    until_s: float = 0.0
    #: Start times of regimes, and the number of busy threads in them.
    regimes: list[tuple[float, int]] = field(default_factory=list)

    def threads(self, at_s: float) -> int:
        """Returns the number of busy threads next to this rank."""
        while self.until_s <= at_s:
            threads = self.random.randint(1, THREADS_MAX) if self.random.random() < 0.5 else 0
            self.regimes.append((self.until_s, threads))
            length_s = self.random.expovariate(1 / REGIME_S)
            self.until_s += min(max(length_s, REGIME_MIN_S), REGIME_MAX_S)
        return next(threads for begin_s, threads in reversed(self.regimes) if begin_s <= at_s)


@dataclass
class Pace:
    """Slows this rank down: each sample takes ``unit_s``, times the number of busy threads plus one."""

    unit_s: float
    sway: SimulatedLoad
    origin: float

    def hold(self, begun: float, samples: int) -> None:
        """Waits until the simulated work for ``samples`` samples started at ``begun`` is done."""
        now, left_s = begun, samples * self.unit_s
        while left_s > 0:
            # Advances at the speed of the current regime, for at most a millisecond.
            slower = 1 + self.sway.threads(now - self.origin)
            part_s = min(left_s * slower, 1e-3)
            now, left_s = now + part_s, left_s - part_s / slower
        time.sleep(max(0.0, now - time.perf_counter()))


def samples_of(count: int) -> torch.utils.data.TensorDataset:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(count, 16, generator=generator)
    return torch.utils.data.TensorDataset(x, torch.sin(x[:, :3]))


def batches(job: evenstep.Job, policy: str, data: Any, model: torch.nn.Module, global_batch: int) -> Iterator[Any]:
    """Yields each iteration as an iterable of batches, for any policy."""
    if policy == "hedged":
        yield from job.steps(data, global_batch=global_batch, model=model)
    else:
        for batch in job.loader(data, global_batch=global_batch):
            yield [batch]


def work(rank: int, policy: str, environ: dict[str, str], told: Any, options: argparse.Namespace) -> None:
    """Runs one rank."""
    os.environ.update({**environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "EVENSTEP_WORKER": f"node/{rank}"})
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    job = evenstep.init() if policy != "even" else evenstep.init(plan=even(options))
    net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 3))
    model = job.wrap(DistributedDataParallel(net))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = samples_of(options.global_batch * 10_000)
    dist.barrier()
    origin = time.perf_counter()
    pace = Pace(options.unit_ms / 1e3, SimulatedLoad(random.Random(1000 * options.seed + rank)), origin)
    done = tails = own = 0
    begun, computed_s = origin, 0.0
    for iteration, step in enumerate(batches(job, policy, data, model, options.global_batch)):
        if iteration == options.warm_up:
            begun, computed_s, own, tails = time.perf_counter(), 0.0, 0, 0
        optimizer.zero_grad()
        for x, y in step:
            arrived = time.perf_counter()
            loss = torch.nn.functional.mse_loss(model(x), y)
            # DDP waits for other ranks in the backward pass, so plain steps hold their pace before it.
            pace.hold(arrived, len(x))
            computed_s += time.perf_counter() - arrived
            own += len(x)
            loss.backward()
        optimizer.step()
        tails += policy == "hedged" and step.plan.tail is not None
        done = iteration + 1 - options.warm_up
        # All ranks stop after the same iteration.
        late = torch.tensor([time.perf_counter() - origin >= options.seconds])
        dist.all_reduce(late, dist.ReduceOp.MAX)
        if late.item():
            break
    took_s = time.perf_counter() - begun
    speeds = torch.tensor([own / computed_s if computed_s else 0.0])
    dist.all_reduce(speeds)
    if rank == 0:
        told.put((done * options.global_batch / took_s, speeds.item(), done, tails))
    job.close()
    dist.barrier()
    dist.destroy_process_group()


def even(options: argparse.Namespace) -> list[int]:
    share, rest = divmod(options.global_batch, options.ranks)
    return [share + (rank < rest) for rank in range(options.ranks)]


@contextmanager
def serving(binary: Path) -> Iterator[str]:
    """Starts a predictor on a free port and yields its address."""
    with tempfile.TemporaryDirectory() as folder:
        store = f"--store=sqlite://{folder}/evenstep.db"
        command = [str(binary), "serve", "--listen=127.0.0.1:0", "--log=error", store]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            try:
                yield process.stdout.readline().split()[-1]
            finally:
                process.kill()


def measured(policy: str, server: str, options: argparse.Namespace) -> tuple[float, float, int, int]:
    """Returns samples per second, the sum of the speeds, the number of iterations, and the number with a tail."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environ = {
        "WORLD_SIZE": str(options.ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "EVENSTEP_SERVER": server,
        "EVENSTEP_JOB": policy,
    }
    told = _CONTEXT.SimpleQueue()
    ranks = [
        _CONTEXT.Process(target=work, args=(rank, policy, environ, told, options)) for rank in range(options.ranks)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    if any(process.exitcode for process in ranks):
        sys.exit(f"{policy}: ranks ended with {[process.exitcode for process in ranks]}")
    result: tuple[float, float, int, int] = told.get()
    return result


def main() -> None:
    """Runs each policy and prints one line per policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--predictor", type=Path, default=Path(__file__).parents[2] / "target/release/evenstep-predictor"
    )
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--global-batch", type=int, default=192)
    parser.add_argument("--unit-ms", type=float, default=2.0, help="time per sample without load, in ms")
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of each policy, in seconds")
    parser.add_argument("--warm-up", type=int, default=15, help="number of first iterations that are not counted")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policies", default=",".join(POLICIES))
    options = parser.parse_args()
    if not options.predictor.is_file():
        sys.exit(f"{options.predictor}: no such file; cargo build --release, or pass --predictor")
    rates = {}
    with serving(options.predictor) as server:
        for policy in options.policies.split(","):
            rates[policy], ideal, iterations, tails = measured(policy, server, options)
            print(
                f"{policy:9} {rates[policy]:6.0f} samples/s, {rates[policy] / ideal:6.1%} of ideal, "
                f"{iterations} iterations, {tails} with a tail"
            )
    if "hedged" in rates and "forecast" in rates:
        print(f"hedged over forecast: {rates['hedged'] / rates['forecast']:.3f}")


if __name__ == "__main__":
    main()
