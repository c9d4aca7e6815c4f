"""User scripts with hedged steps, for ranks."""

import os
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import evenstep
from evenstep._native import Plan
from training import EPOCHS, PLANS, Samples, Trained, loss_of, network, parameters, sgd


@dataclass
class Hedged(Trained):
    """The result of a training with hedged steps."""

    #: Number of iterations with a tail, and of samples that this rank claimed from them.
    tails: int = 0
    claimed: int = 0


def run_epochs(
    job: evenstep.Job,
    model: torch.nn.Module,
    *,
    epochs: int = EPOCHS,
    unit_s: float = 0.0,
    sway: int = 0,
    **options: Any,
) -> Hedged:
    """The training loop. Each sample takes ``unit_s`` more, times 1 to ``1 + sway``, depending on rank and time."""
    optimizer, trained = sgd(model), Hedged([])
    for _ in range(epochs):
        for step in job.steps(model=model, **{"dataset": Samples(), **options}):
            optimizer.zero_grad()
            base = len(trained.seen) + step.step.local_batch
            for x, y, index in step:
                loss_of(model, x, y).backward()
                trained.seen += index.tolist()
                time.sleep(unit_s * len(index) * (1 + busy(step.step.iteration, job._run.rank, sway)))
            optimizer.step()
            trained.tails += step.plan.tail is not None
            trained.claimed += len(trained.seen) - base
    trained.parameters = parameters(model)
    return trained


def busy(iteration: int, rank: int, most: int) -> int:
    """Returns the number of busy threads next to a rank, 0 to ``most``; it changes every few iterations."""
    mixed = ((iteration + 3 * rank) // 4 * 2654435761 + rank * 40503) >> 7
    return mixed % (most + 1)


def train(_rank: int, plan: str | None, options: dict[str, Any]) -> Hedged:
    """The script of a user."""
    job = evenstep.init(plan=PLANS[plan] if plan else None)
    return run_epochs(job, job.wrap(DistributedDataParallel(network())), **options)


def train_wrapped_late(_rank: int) -> Hedged:
    """Creates the steps before the model, once for all epochs."""
    job = evenstep.init(plan=[6, 5, 5])
    steps = job.steps(Samples(), tail=0.5)
    model = DistributedDataParallel(network())
    optimizer, trained = sgd(model), Hedged([])
    job.wrap(model)
    for _ in range(EPOCHS):
        for step in steps:
            for x, y, index in step:
                # Neither is harmful: gradients are moved out after each pass.
                optimizer.zero_grad(set_to_none=len(index) % 2 == 0)
                loss_of(model, x, y).backward()
                trained.seen += index.tolist()
            optimizer.step()
    trained.parameters = parameters(model)
    return trained


def train_on_sums(_rank: int) -> Hedged:
    """The loss is the sum over samples; a pass has at most three of them."""
    job = evenstep.init(plan=[12, 3, 1])
    model = job.wrap(DistributedDataParallel(network()), loss="sum")
    optimizer, trained = sgd(model), Hedged([])
    for _ in range(EPOCHS):
        for step in job.steps(Samples(), tail=0.3, micro_batch=3):
            for x, y, index in step:
                (len(index) * loss_of(model, x, y)).backward()
                trained.seen += index.tolist()
            optimizer.step()
    trained.parameters = parameters(model)
    return trained


def train_with_an_inner_hook(_rank: int) -> str:
    """Passes an inner hook, which would never run because DDP does not reduce in hedged steps."""
    job = evenstep.init()
    job.wrap(DistributedDataParallel(network()), inner=fp16_compress_hook)
    try:
        next(iter(job.steps(Samples(), global_batch=16)))
    except evenstep.UnsupportedError as error:
        return str(error)
    return "done"


def train_paced(rank: int, paces: list[float]) -> Hedged:
    job = evenstep.init(plan=[6, 5, 5])
    return run_epochs(job, DistributedDataParallel(network()), tail=0.6, unit_s=paces[rank])


def train_resumed(_rank: int, stop_at: int) -> Hedged:
    """A run that stops in the middle of an epoch, and another one that resumes from its checkpoint."""
    job, data = evenstep.init(plan=[6, 5, 5]), Samples()
    model = DistributedDataParallel(network())
    optimizer, trained = sgd(model), Hedged([])
    state: dict[str, Any] = {}
    while trained.tails < EPOCHS * 13:
        for step in job.steps(data, tail=0.4, model=model):
            optimizer.zero_grad()
            for x, y, index in step:
                loss_of(model, x, y).backward()
                trained.seen += index.tolist()
            optimizer.step()
            trained.tails += 1
            state = job.state_dict()
            if trained.tails == stop_at:
                break
        if trained.tails == stop_at:
            job = evenstep.init(plan=[6, 5, 5])
            job.load_state_dict(state)
    trained.parameters = parameters(model)
    return trained


def train_with_predictor(rank: int, server: str, job_id: str, samples: int, global_batch: int) -> Hedged:
    os.environ["EVENSTEP_WORKER"] = f"node/{rank}"
    job = evenstep.init(server=server, job=job_id)
    model = job.wrap(DistributedDataParallel(network()))
    options: dict[str, Any] = {"dataset": Samples(samples), "global_batch": global_batch, "unit_s": 5e-4, "sway": 3}
    trained = run_epochs(job, model, epochs=1, **options)
    job.close()
    return trained


class Complex(torch.nn.Module):
    """A model without real parameters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.weight = torch.nn.Parameter(torch.randn(8, 3, dtype=torch.complex128))

    def forward(self, x: torch.Tensor) -> Any:
        return (x.to(torch.complex128) @ self.weight).abs()


def train_complex(_rank: int) -> list[list[float]]:
    """Returns the first gradient."""
    model = DistributedDataParallel(Complex())
    for step in evenstep.init(plan=[12, 4]).steps(Samples(), tail=0.5, model=model, shuffle=False):
        for x, y, _ in step:
            loss_of(model, x, y).backward()
        break
    gradient = model.module.weight.grad
    return [torch.view_as_real(gradient).flatten().tolist()]


def train_until_one_fails(rank: int) -> str:
    """Returns the outcome of each rank when one fails in the middle of an iteration, with claimed samples."""
    job = evenstep.init(plan=[6, 5, 5])
    model = DistributedDataParallel(network())
    try:
        for step in job.steps(Samples(), tail=0.5, model=model):
            for x, y, _ in step:
                fails = rank == 1 and step.step.iteration == 3
                loss_of(model, x, y[:, :2] if fails else y).backward()
    except RuntimeError as error:
        if rank == 1:
            return "failed"
        return type(error).__name__
    return "done"


def train_with_different_plans(rank: int) -> str:
    """From the sixth iteration on one rank has another plan: samples are missing, and all ranks must raise an error."""
    job = evenstep.init(plan=[6, 5, 5])
    model = DistributedDataParallel(network())
    iterations = 0
    steps = job.steps(Samples(), global_batch=16, model=model)
    # Ranks agree on given plans, so this simulates a defect.
    job._run.plans = lambda iteration: Plan.of([8, 5, 3] if rank == 2 and iteration > 4 else [6, 5, 5])
    try:
        for step in steps:
            for x, y, _ in step:
                loss_of(model, x, y).backward()
            iterations += 1
    except evenstep.DivergedError as error:
        return f"{iterations}: {error}"
    return "done"


def batch_norm(_rank: int) -> tuple[list[list[float]], list[list[float]]]:
    """Returns the parameters and running statistics of a model, which must be the same on all ranks."""
    job = evenstep.init()
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3)).double()
    model = DistributedDataParallel(net)
    optimizer = sgd(model)
    for step in job.steps(Samples(192), global_batch=24, model=model, tail=0.4, min_chunk=4):
        optimizer.zero_grad()
        for x, y, _ in step:
            loss_of(model, x, y).backward()
        optimizer.step()
    assert model.require_backward_grad_sync
    return parameters(model), [buffer.double().tolist() for buffer in net[1].buffers() if buffer.ndim]
