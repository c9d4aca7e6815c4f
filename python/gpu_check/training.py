"""A small training in float64, as a script of a user, and the same in one process."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import evenstep
from evenstep.order import Order
from gpu_check.sizes import FEATURES, GLOBAL_BATCH, SAMPLES, TOLERANCE


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

    def finish(self) -> float:
        """Waits until the device has done its work, and returns the time."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
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


def one_process(device: torch.device, epochs: int = 1) -> torch.Tensor:
    """Returns the parameters after a training with whole batches and plain PyTorch."""
    data, model, order = dataset(), Net().to(device), Order(SAMPLES, GLOBAL_BATCH)
    optimizer = sgd(model)
    for epoch in range(epochs):
        permutation = order.permutation(epoch)
        for begin in range(0, SAMPLES, GLOBAL_BATCH):
            x, y = data[permutation[begin : begin + GLOBAL_BATCH]]
            optimizer.zero_grad()
            loss_of(model, x, y, device).backward()
            optimizer.step()
    return flat(model)


def flat(model: torch.nn.Module) -> torch.Tensor:
    """Returns all parameters of a model, whole."""
    whole = [getattr(parameter.detach(), "full_tensor", parameter.detach)() for parameter in model.parameters()]
    return torch.cat([parameter.flatten() for parameter in whole]).cpu()


def difference(model: torch.nn.Module, seat: Seat, epochs: int = 1) -> float:
    """Returns the largest difference of a model's parameters to the parameters of one process."""
    trained = flat(model)
    return float((trained - one_process(seat.device, epochs)).abs().max())


def endless(loader: Any) -> Iterator[Any]:
    """Yields the batches of epoch after epoch."""
    while True:
        yield from loader


class Work(torch.nn.Module):
    """A network whose passes take a given time on its device, in proportion to the samples."""

    def __init__(self, device: torch.device, s_per_sample: float) -> None:
        """Measures how many matrix products the device makes in this time."""
        super().__init__()
        self.layer = torch.nn.Linear(FEATURES, 1).to(device)
        self.size = 2048 if device.type == "cuda" else 96
        # No buffer, which DDP would send to all ranks before each pass.
        self._matrix = torch.randn(self.size, self.size, device=device)
        self._device = device
        self._multiply(50)
        rounds, begun = 0, self._finish()
        while (ended := self._finish()) - begun < 0.5:
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

    def _finish(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


def quietly_closed(job: Any) -> None:
    """Closes a job whose result is known already."""
    with suppress(Exception):
        job.close()


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
    while job._run.progress.epoch < 2:
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
    worst = difference(net, seat, epochs=2)
    job.close()
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    return {"restarts": restarts, "shares": shares, "difference": worst, "difference_is_large": worst > TOLERANCE}
