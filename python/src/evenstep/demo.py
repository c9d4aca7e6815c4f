"""`evenstep demo`: unequal workers train with even shares, with a plan by hand, and with the predictor's plans.

Each worker has a GPU. Without enough GPUs, or with ``--pace``, workers are processes on CPUs with imposed speeds.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils import data

import evenstep
from evenstep.errors import SettingError

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001  # It has no public name.

#: Time per sample of a worker with pace 1, in seconds.
IMPOSED_S = 0.001

#: Speeds of the workers if none are given and there are fewer than two GPUs.
PACES = (1.0, 2.0, 2.0, 4.0)

#: Width of the bar of the best throughput, in characters.
_BAR = 40

#: Steps of the measurement of a worker that trains alone.
STEPS_ALONE = 5


def add_arguments(subparsers: "Subparsers") -> None:
    """Adds the `demo` command to a command line."""
    parser = subparsers.add_parser("demo", help="train on unequal workers of this machine and show the gain")
    parser.description = __doc__
    _add_options(parser)
    parser.set_defaults(run=_launch)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pace", type=_pace, nargs="+", help="impose these relative speeds, one for each worker")
    parser.add_argument("--global-batch", type=_count, default=256, help="samples per step; default %(default)s")
    parser.add_argument(
        "--steps", type=_count, default=160, help="steps of each of the three runs; default %(default)s"
    )
    parser.add_argument("--width", type=_count, help="width of the network; default 64, and 4096 on GPUs")


def _count(given: str) -> int:
    if not (given.isdecimal() and 0 < int(given) < 1 << 31):
        raise argparse.ArgumentTypeError(f"{given!r}: must be a whole number from 1 to {(1 << 31) - 1}")
    return int(given)


def _pace(given: str) -> float:
    with suppress(ValueError):
        if 1e-3 <= (pace := float(given)) <= 1e3:
            return pace
    raise argparse.ArgumentTypeError(f"{given!r}: must be a number from 0.001 to 1000")


def _launch(arguments: argparse.Namespace) -> int:
    """Starts torchrun with this module, and returns its exit status."""
    gpus = torch.cuda.device_count()
    paces = arguments.pace or (None if gpus > 1 else list(PACES))
    workers = len(paces) if paces else gpus
    if workers < 2:
        raise SettingError(f"--pace {arguments.pace}: must be at least two, one for each worker")
    if arguments.global_batch < workers:
        raise SettingError(f"--global-batch {arguments.global_batch}: must be at least 1 for each of {workers} workers")
    flags = ["--global-batch", str(arguments.global_batch), "--steps", str(arguments.steps)]
    if arguments.width:
        flags += ["--width", str(arguments.width)]
    if paces:
        flags += ["--pace", *map(str, paces)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    environ = {"OMP_NUM_THREADS": "1", **os.environ}
    # An id belongs to one run, and people start the demo several times.
    environ.pop("EVENSTEP_JOB", None)
    return subprocess.run([*torchrun, "-m", __name__, *flags], env=environ, check=False).returncode  # noqa: S603  # This package.


class Net(torch.nn.Module):
    """A perceptron with an imposed time per sample."""

    def __init__(self, width: int, s_per_sample: float) -> None:
        """Creates a network that takes at least this time for each sample."""
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU(),
            torch.nn.Linear(width, 1),
        )  # fmt: skip
        self.s_per_sample = s_per_sample

    def forward(self, x: torch.Tensor) -> Any:
        """Returns the prediction for each sample."""
        time.sleep(self.s_per_sample * len(x))
        return self.layers(x)


def _step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    x: torch.Tensor,
    y: torch.Tensor,
    job: evenstep.Job | None = None,
) -> None:
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    if job:
        job.record_loss(loss)
    loss.backward()
    optimizer.step()


def _finished(device: torch.device) -> float:
    """Returns the time after the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _speed_alone(net: Net, batch: int, device: torch.device) -> float:
    """Returns the samples per second of this worker without waiting for others."""
    x, y = torch.randn(batch, 64, device=device), torch.randn(batch, 1, device=device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    _step(net, optimizer, x, y)
    begun = _finished(device)
    for _ in range(STEPS_ALONE):
        _step(net, optimizer, x, y)
    return STEPS_ALONE * batch / (_finished(device) - begun)


def _train(job: evenstep.Job, net: Net, loading: dict[str, Any], steps: int, device: torch.device) -> float:
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
            begun = _finished(device)
        _step(model, optimizer, x.to(device), y.to(device), job)
        if dist.get_rank() == 0 and sys.stderr.isatty():
            sys.stderr.write(f"\r{at + 1} of {steps} steps" if at + 1 < steps else "\r\x1b[K")
            sys.stderr.flush()
    samples: int = (steps - steps // 2) * loading["global_batch"]
    throughput = samples / (_finished(device) - begun)
    job.close()
    return throughput


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains as one rank of torchrun."""
    parser = argparse.ArgumentParser()
    _add_options(parser)
    options = parser.parse_args(arguments)

    is_real = options.pace is None
    dist.init_process_group("nccl" if is_real else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if is_real else torch.device("cpu")
    if is_real:
        torch.cuda.set_device(device)
    elif len(options.pace) != ranks:
        parser.error(f"--pace {options.pace}: must be one for each of the {ranks} ranks")

    torch.manual_seed(0)
    x = torch.randn(16_384, 64)
    dataset = data.TensorDataset(x, (x[:, :8] * x[:, 8:16]).sum(1, keepdim=True))
    batch, steps = options.global_batch, options.steps
    loading = {"dataset": dataset, "global_batch": batch, "drop_last": True}
    width = options.width or (4096 if is_real else 64)

    def net() -> Net:
        return Net(width, 0.0 if is_real else IMPOSED_S / options.pace[rank]).to(device)

    def say(what: str) -> None:
        if rank == 0:
            sys.stdout.write(what + "\n")
            sys.stdout.flush()

    say("measuring each worker alone")
    speeds = [torch.zeros(1, dtype=torch.float64, device=device) for _ in range(ranks)]
    own = _speed_alone(net(), batch // ranks, device)
    dist.all_gather(speeds, torch.tensor([own], dtype=torch.float64, device=device))
    alone = [speed.item() for speed in speeds]
    say(f"alone: {', '.join(f'{speed:,.0f}' for speed in alone)} samples/s; {sum(alone):,.0f} together at best")

    even_plan = [batch // ranks] * (ranks - 1) + [batch - batch // ranks * (ranks - 1)]
    plan = [round(batch * speed / sum(alone)) for speed in alone[:-1]]
    plan.append(batch - sum(plan))
    runs = {"even shares": even_plan, "a plan by hand": plan, "the predictor's plans": None}
    rows, even = [], 0.0
    for at, (name, given) in enumerate(runs.items()):
        say(f"run {at + 1} of {len(runs)}, {steps} steps: {name} {given or ''}".rstrip())
        throughput = _train(evenstep.init(plan=given), net(), loading, steps, device)
        even, share = even or throughput, throughput / sum(alone)
        bar = "#" * min(round(_BAR * share), _BAR)
        rows.append(f"{name:<22}{throughput:>11,.0f}{throughput / even:>8.2f}x{share:>9.0%}  {bar}")
    say("\n".join([f"{'':<22}{'samples/s':>11}{'gain':>9}{'of best':>9}", *rows]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
