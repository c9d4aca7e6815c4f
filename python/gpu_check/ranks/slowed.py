"""Trains while rank 0 competes for its GPU."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

import evenstep
from gpu_check.sizes import FEATURES
from gpu_check.training import Seat, Work, endless, sgd

STEPS, STEP_S, BATCH = 120, 0.04, 64

#: A process that keeps a GPU busy with kernels of some milliseconds.
_BUSY = """
import sys, torch
matrix = torch.randn(4096, 4096, device=sys.argv[1])
while True:
    for _ in range(20):
        torch.mm(matrix, matrix)
    torch.cuda.synchronize()
"""


def rank(seat: Seat) -> dict[str, Any]:
    """Returns the samples per second of all ranks under both policies."""
    own_gpu = seat.device.type == "cuda" and _gpus() >= seat.ranks
    by = "imposed work" if seat.device.type == "cpu" else "another process" if own_gpu else "kernels of its own process"
    factor = 3 if seat.device.type == "cpu" and seat.rank == 0 else 1
    work = Work(seat.device, factor * STEP_S * seat.ranks / BATCH)
    with _competing(seat, own_gpu=own_gpu):
        even, _ = _trained(seat, work, {"server": "off"})
        planned, shares = _trained(seat, work, {})
    return {"even": even, "planned": planned, "shares": shares, "by": by}


def _gpus() -> int:
    return torch.cuda.device_count()


def _trained(seat: Seat, work: Work, options: dict[str, Any]) -> tuple[float, list[int]]:
    """Returns the samples per second over the second half of the steps, and the last shares."""
    job: Any = evenstep.init(**options)
    x = torch.randn(8192, FEATURES)
    loader = job.loader(torch.utils.data.TensorDataset(x, x[:, :1]), global_batch=BATCH)
    model = job.wrap(DistributedDataParallel(work))
    optimizer, begun, steps = sgd(model), 0.0, seat.steps(STEPS)
    for at, (inputs, targets) in zip(range(steps), endless(loader), strict=False):
        if at == steps // 2:
            begun = seat.finish()
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs.to(seat.device)), targets.to(seat.device)).backward()
        optimizer.step()
    throughput = BATCH * (steps - steps // 2) / (seat.finish() - begun)
    shares = list(job._run.plans(job._run.progress.iteration).batches)
    job.close()
    return throughput, shares


@contextmanager
def _competing(seat: Seat, *, own_gpu: bool) -> Iterator[None]:
    """Lets rank 0 compete for its GPU: with another process, or, if ranks share the GPU, with its own stream.

    Processes that share a GPU get equal parts of its time. Work on a second stream takes from rank 0's part only.
    """
    if seat.device.type == "cpu" or seat.rank:
        yield
    elif own_gpu:
        process = subprocess.Popen([sys.executable, "-c", _BUSY, str(seat.device)])
        try:
            yield
        finally:
            process.kill()
            process.wait()
    else:
        ended = threading.Event()
        thread = threading.Thread(target=_burn, args=(seat, ended), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
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
