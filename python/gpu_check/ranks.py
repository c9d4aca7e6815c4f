"""The programs of the ranks: torchrun starts this module with the name of a check, and the check gets the results.

Each is a small training, as in a script of a user; most compare it with the same in one process, in float64.
"""

import copy
import json
import os
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # missing in torch's type stubs.
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import evenstep
from evenstep.samples.order import Order

SAMPLES, GLOBAL_BATCH, FEATURES = 256, 32, 16


@dataclass(frozen=True)
class Seat:
    """The place of a rank."""

    rank: int
    ranks: int
    device: torch.device
    folder: Path

    def steps(self, steps: int) -> int:
        """Returns the number of steps of a measurement. CPUs only try the check itself, with a third of them."""
        return steps if self.device.type == "cuda" else steps // 3


def finish(device: torch.device) -> float:
    """Waits until the device has done its work, and returns the time."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def uneven(ranks: int, batch: int = GLOBAL_BATCH) -> list[int]:
    """Returns shares of which the first is one, and the last gets most."""
    middle = [batch // (2 * ranks)] * max(ranks - 2, 0)
    return [1, *middle, batch - 1 - sum(middle)]


def dataset() -> TensorDataset:
    """Returns the same samples everywhere."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(SAMPLES, FEATURES, generator=generator, dtype=torch.float64)
    return TensorDataset(x, torch.sin(x @ torch.randn(FEATURES, 3, generator=generator, dtype=torch.float64)))


class Net(torch.nn.Module):
    """A network in a separate class, because the compiler skips the classes of PyTorch."""

    def __init__(self) -> None:
        """Creates the same parameters everywhere."""
        super().__init__()
        torch.manual_seed(3)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(FEATURES, 32), torch.nn.Tanh(), torch.nn.Linear(32, 32), torch.nn.Tanh(),
            torch.nn.Linear(32, 3),
        ).double()  # fmt: skip

    def forward(self, x: torch.Tensor) -> Any:
        """Returns the prediction for each sample."""
        return self.layers(x)


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Returns the optimizer."""
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def loss_of(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Returns the mean loss over a batch."""
    return torch.nn.functional.mse_loss(model(x.to(device)), y.to(device))


def trained(device: torch.device, model: torch.nn.Module, batches: Iterable[Any]) -> None:
    """Trains with all batches."""
    optimizer = sgd(model)
    for x, y in batches:
        optimizer.zero_grad()
        loss_of(model, x, y, device).backward()
        optimizer.step()


def difference(net: torch.nn.Module, seat: Seat, job: Any, epochs: int = 1) -> float:
    """Ends a job; returns the largest difference of a model's parameters to a training in one process."""
    data, alone, order = dataset(), Net().to(seat.device), Order(SAMPLES, GLOBAL_BATCH)
    permutations, begins = map(order.permutation, range(epochs)), range(0, SAMPLES, GLOBAL_BATCH)
    trained(seat.device, alone, (data[all_[at : at + GLOBAL_BATCH]] for all_ in permutations for at in begins))
    worst = float((_flat(net) - _flat(alone)).abs().max())
    job.close()
    return worst


def _flat(model: torch.nn.Module) -> torch.Tensor:
    """Returns all parameters of a model, whole."""
    whole = [getattr(parameter.detach(), "full_tensor", parameter.detach)() for parameter in model.parameters()]
    return torch.cat([parameter.flatten() for parameter in whole]).cpu()


class Work(torch.nn.Module):
    """A network whose passes take a given time on its device, in proportion to the samples."""

    def __init__(self, device: torch.device, s_per_sample: float) -> None:
        """Measures how many matrix products the device makes in this time."""
        super().__init__()
        self.layer = torch.nn.Linear(FEATURES, 1).to(device)
        size = 2048 if device.type == "cuda" else 96
        # No buffer, which DDP would send to all ranks before each pass.
        self._matrix = torch.randn(size, size, device=device)
        self._multiply(50)
        rounds, begun = 0, finish(device)
        while (ended := finish(device)) - begun < 0.5:
            self._multiply(20)
            rounds += 20
        self.per_sample = max(1, round(s_per_sample * rounds / (ended - begun)))

    def forward(self, x: torch.Tensor) -> Any:
        """Returns the prediction for each sample."""
        self._multiply(self.per_sample * len(x))
        return self.layer(x)

    def _multiply(self, times: int) -> None:
        with torch.no_grad():
            for _ in range(times):
                torch.mm(self._matrix, self._matrix)


def worked(seat: Seat, job: Any, work: Work, *, batch: int, steps: int) -> float:
    """Trains some steps; returns the seconds per step of their second half."""
    x = torch.randn(8192, FEATURES)
    loader = job.loader(TensorDataset(x, x[:, :1]), global_batch=batch)
    batches, model = chain.from_iterable(repeat(loader)), job.wrap(DistributedDataParallel(work))
    trained(seat.device, model, islice(batches, steps // 2))
    begun = finish(seat.device)
    trained(seat.device, model, islice(batches, steps - steps // 2))
    return (finish(seat.device) - begun) / (steps - steps // 2)


def resumable(seat: Seat, net: torch.nn.Module, before_step: Callable[[int], None] = lambda _: None) -> dict[str, Any]:
    """Trains two epochs, with a checkpoint after each iteration, and resumes from it after a restart.

    Args:
        seat: this rank.
        net: the network.
        before_step: called with the iteration before each step.

    Returns:
        the number of restarts, the last shares, and the largest difference to one process.
    """
    path = seat.folder / "checkpoint.pt"
    job: Any = evenstep.init(job_options={"min_gain": 1.0})
    loader = job.loader(dataset(), global_batch=GLOBAL_BATCH)
    net = net.to(seat.device)
    model = job.wrap(DistributedDataParallel(net))
    optimizer = sgd(model)
    if path.exists():
        state = torch.load(path, map_location=seat.device, weights_only=True)
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        job.load_state_dict(state["job"])
    shares: list[int] = []
    while job._run.binding.trained.epoch < 2:
        for x, y in loader:
            before_step(loader.latest.iteration)
            with job.on_oom():
                optimizer.zero_grad()
                loss_of(model, x, y, seat.device).backward()
                optimizer.step()
            shares = list(job._run.plans(loader.latest.iteration).batches)
            if seat.rank == 0:
                told = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "job": job.state_dict()}
                torch.save(told, path.with_suffix(".new"))
                path.with_suffix(".new").replace(path)
            # No rank begins an iteration whose checkpoint is missing.
            dist.barrier()
    restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
    return {"restarts": int(restarts), "shares": shares, "difference": difference(net, seat, job, epochs=2)}


def ddp(seat: Seat) -> dict[str, float]:
    """Trains with DDP and uneven batches; returns the largest differences by name."""
    return {
        "uneven": _ddp(seat),
        "accumulated": _ddp(seat, accumulate=2),
        "token means": _ddp(seat, loss="tokens"),
        "running statistics": _statistics(seat),
    }


def _ddp(seat: Seat, *, accumulate: int = 1, loss: Any = "mean") -> float:
    job = evenstep.init(plan=uneven(seat.ranks) if accumulate == 1 else _even_counts(seat))
    loader = job.loader(dataset(), accumulate=accumulate)
    model = job.wrap(DistributedDataParallel(Net().to(seat.device)), loss=loss)
    optimizer = sgd(model)
    for x, y in loader:
        if loss == "tokens":
            job.count(len(x))
        scale = len(x) if loss == "tokens" else 1 / accumulate
        if loader.is_last:
            (scale * loss_of(model, x, y, seat.device)).backward()
            optimizer.step()
            optimizer.zero_grad()
        else:
            with model.no_sync():
                (scale * loss_of(model, x, y, seat.device)).backward()
    return difference(model, seat, job)


def _even_counts(seat: Seat) -> list[int]:
    return [2 * share for share in uneven(seat.ranks, GLOBAL_BATCH // 2)]


def _statistics(seat: Seat) -> float:
    """Returns the largest difference of batch norm's statistics between ranks; 1 if they are not numbers."""
    torch.manual_seed(3)
    norm = torch.nn.BatchNorm1d(8)
    net = torch.nn.Sequential(torch.nn.Linear(FEATURES, 8), norm, torch.nn.Linear(8, 3)).double()
    job = evenstep.init(plan=_even_counts(seat))
    loader = job.loader(dataset())
    trained(seat.device, job.wrap(DistributedDataParallel(net.to(seat.device))), loader)
    mean = torch.as_tensor(norm.running_mean).cpu()
    everyone: list[Any] = [None] * seat.ranks
    dist.all_gather_object(everyone, mean.tolist())
    job.close()
    worst = max(float((torch.tensor(other, dtype=torch.float64) - mean).abs().max()) for other in everyone)
    return worst if mean.isfinite().all() and mean.abs().max() > 0 else 1.0


def compiled(seat: Seat) -> dict[str, float]:
    """Trains compiled models; returns the largest differences by name."""
    return {"inside": _compiled(seat, is_inside=True), "outside": _compiled(seat, is_inside=False)}


def _compiled(seat: Seat, *, is_inside: bool) -> float:
    # On CPUs without a compiler for C++.
    options: dict[str, Any] = {"backend": "inductor" if seat.device.type == "cuda" else "eager", "dynamic": True}
    torch._dynamo.reset()
    job: Any = evenstep.init(plan=uneven(seat.ranks))
    loader = job.loader(dataset())
    net: Any = Net().to(seat.device)
    if is_inside:
        model = job.wrap(DistributedDataParallel(torch.compile(net, **options)))
    else:
        model = job.wrap(torch.compile(DistributedDataParallel(net), **options))
    trained(seat.device, model, loader)
    return difference(net, seat, job)


def fsdp(seat: Seat) -> float:
    """Trains a sharded model; returns the largest difference."""
    job = evenstep.init(plan=uneven(seat.ranks))
    loader = job.loader(dataset())
    net = Net().to(seat.device)
    mesh = init_device_mesh(seat.device.type, (seat.ranks,))
    for layer in net.layers:
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    model = job.wrap(net)
    trained(seat.device, model, loader)
    return difference(model, seat, job)


def hedged(seat: Seat) -> tuple[float, int]:
    """Trains with hedged steps; returns the largest difference, and the number of claimed samples."""
    job: Any = evenstep.init(plan=uneven(seat.ranks))
    model = job.wrap(DistributedDataParallel(Net().to(seat.device)))
    optimizer = sgd(model)
    claimed = 0
    for step in job.steps(dataset(), tail=0.5):
        optimizer.zero_grad()
        samples = 0
        for x, y in step:
            loss_of(model, x, y, seat.device).backward()
            samples += len(x)
        optimizer.step()
        claimed += max(samples - step.step.local_batch, 0)
    return difference(model, seat, job), claimed


def drivers(seat: Seat) -> dict[str, Any]:
    """Trains with the predictor and the agent that training starts; returns the job and the forecasters' records."""
    job: Any = evenstep.init()
    worked(seat, job, Work(seat.device, 0.05 * seat.ranks / 32), batch=32, steps=seat.steps(60))
    told: dict[str, Any] = {"job": job._run.job, "forecast": None}
    if seat.rank == 0:
        server, name = job._life.place.current_server(), job._run.job.replace("/", "%2F")
        with urllib.request.urlopen(f"{server}/v1/jobs/{name}/forecast", timeout=10) as answer:
            told["forecast"] = json.loads(answer.read())
    job.close()
    return told


def overhead(seat: Seat) -> dict[str, Any]:
    """Trains with plain DDP and with evenstep, in blocks of 50 steps of 20 ms.

    Returns:
        the seconds per step of each block by name, and the mean number of iterations between exchanges.
    """
    batch, block_steps, blocks = 32, 50, seat.steps(8)
    x = torch.randn(8192, FEATURES)
    data = TensorDataset(x, x[:, :1])
    work = Work(seat.device, 0.02 * seat.ranks / batch)
    job: Any = evenstep.init(job_options={"min_gain": 1.0})
    ours_loader = job.loader(data, global_batch=batch)
    plain_loader = DataLoader(data, batch_size=batch // seat.ranks, shuffle=True, drop_last=True)
    arms = {
        "plain": (DistributedDataParallel(work), chain.from_iterable(repeat(plain_loader))),
        "evenstep": (job.wrap(DistributedDataParallel(copy.deepcopy(work))), chain.from_iterable(repeat(ours_loader))),
    }
    times: dict[str, list[float]] = {name: [] for name in arms}
    exchanges: list[int] = []
    for block in range(blocks + 1):
        for name, (model, batches) in arms.items():
            begun = finish(seat.device)
            for _ in range(block_steps):
                inputs, targets = next(batches)
                model.zero_grad()
                loss_of(model, inputs, targets, seat.device).backward()
            # The first block has the exchanges of the warm-up.
            if block:
                times[name].append((finish(seat.device) - begun) / block_steps)
        # Only rank 0 decides when ranks exchange.
        exchanges.append(job._run.exchange._lead.budget._exchanges if seat.rank == 0 else 0)
    job.close()
    return {**times, "interval": blocks * block_steps / max(exchanges[-1] - exchanges[0], 1)}


def slowed(seat: Seat) -> dict[str, Any]:
    """Trains while rank 0's GPU does other work; returns the samples per second of all ranks under both policies."""
    factor = 3 if seat.device.type == "cpu" and seat.rank == 0 else 1
    work = Work(seat.device, factor * 0.04 * seat.ranks / 64)
    with _competing(seat):
        even, _ = _throughput(seat, work, {"server": "off"})
        planned, shares = _throughput(seat, work, {})
    return {"even": even, "planned": planned, "shares": shares}


def _throughput(seat: Seat, work: Work, options: dict[str, Any]) -> tuple[float, list[int]]:
    """Returns the samples per second over the second half of the steps, and the last shares."""
    job: Any = evenstep.init(**options)
    seconds_per_step = worked(seat, job, work, batch=64, steps=seat.steps(120))
    shares = list(job._run.plans(job._run.binding.trained.iteration).batches)
    job.close()
    return 64 / seconds_per_step, shares


@contextmanager
def _competing(seat: Seat) -> Iterator[None]:
    """Lets rank 0 compete for its GPU, on a second stream.

    Processes that share a GPU get equal parts of its time, so another process would also slow the other ranks of a GPU.
    """
    ended = threading.Event()
    thread = threading.Thread(target=_burn, args=(seat, ended), daemon=True)
    if seat.device.type == "cuda" and seat.rank == 0:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if thread.ident:
            thread.join()


def _burn(seat: Seat, ended: threading.Event) -> None:
    torch.cuda.set_device(seat.device)
    stream = torch.cuda.Stream(seat.device)
    with torch.cuda.stream(stream):
        matrix = torch.randn(2048, 2048, device=seat.device)
        while not ended.is_set():
            for _ in range(10):
                torch.mm(matrix, matrix)
            stream.synchronize()


#: Memory of one sample of rank 1, in bytes, and of its process.
_SAMPLE_BYTES, _PROCESS_BYTES = 128 << 20, 256 << 20


class Limited(Net):
    """A network that needs memory for each sample."""

    def __init__(self, seat: Seat) -> None:
        """Limits the memory of rank 1 to a little less than an even share needs."""
        super().__init__()
        self.seat, self.samples_max = seat, GLOBAL_BATCH // seat.ranks - 1
        if seat.rank == 1 and seat.device.type == "cuda":
            whole = torch.cuda.get_device_properties(seat.device).total_memory
            limit = (self.samples_max + 0.5) * _SAMPLE_BYTES + _PROCESS_BYTES
            torch.cuda.set_per_process_memory_fraction(min(1.0, limit / whole), seat.device)

    def forward(self, x: torch.Tensor) -> Any:
        """Allocates memory for the samples."""
        if self.seat.rank == 1 and torch.is_grad_enabled():
            if self.seat.device.type == "cuda":
                needed = len(x) * _SAMPLE_BYTES + _PROCESS_BYTES - (32 << 20)
                torch.empty(needed, dtype=torch.uint8, device=x.device)
            elif len(x) > self.samples_max:
                raise torch.OutOfMemoryError(f"imposed: {len(x)} samples")
        return super().forward(x)


def memory(seat: Seat) -> dict[str, Any]:
    """Trains with a limit of memory."""
    return {"even": GLOBAL_BATCH // seat.ranks, **resumable(seat, Limited(seat))}


def killed(seat: Seat) -> dict[str, Any]:
    """Trains until the end; the first attempt kills rank 1 in the second epoch."""

    def dies(iteration: int) -> None:
        if seat.rank == 1 and iteration == 11 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)

    return resumable(seat, Net(), dies)


_PROGRAMS = {one.__name__: one for one in (ddp, hedged, compiled, fsdp, drivers, overhead, slowed, memory, killed)}


def main() -> None:
    """Runs a rank, and writes its result."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu")
    if os.environ["GPU_CHECK_DEVICE"] == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    # After a restart, torchrun's store still has the addresses of the previous ranks. A rank that reads one hangs.
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = PrefixStore(f"attempt-{os.environ['TORCHELASTIC_RESTART_COUNT']}", TCPStore(*address, is_master=False))
    dist.init_process_group(os.environ["GPU_CHECK_BACKEND"], store=store, rank=rank, world_size=ranks)
    folder = Path(os.environ["GPU_CHECK_FOLDER"])
    result = _PROGRAMS[sys.argv[1]](Seat(rank, ranks, device, folder))
    (folder / f"rank-{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
