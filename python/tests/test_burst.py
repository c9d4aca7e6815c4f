"""Burst-parallel training of PyTorch models: it equals one process for any plan."""

import copy
import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import evenstep
from bursts import GLOBAL_BATCH, Branches, Chain, Encoder, planned, random_plan
from evenstep.burst_parallel.routes import Route, first_layout, moved
from evenstep.errors import DivergedError
from programs import PATIENCE_S, clean_environment
from ranks import run_ranks

TOLERANCE = 1e-12
STEPS = 3


def made(kind: Any, seed: int = 0) -> Any:
    """Returns a model with double precision."""
    torch.manual_seed(seed)
    return kind().double()


def batch(kind: Any, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(100 + seed)
    x = kind.inputs(GLOBAL_BATCH)
    return (x.double() if x.is_floating_point() else x), torch.randint(0, 5, (GLOBAL_BATCH,))


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=0.01)


def difference(model: nn.Module, reference: nn.Module) -> float:
    """Returns the largest difference of the state that this rank has."""
    state, whole = model.state_dict(), reference.state_dict()
    assert dist.get_rank() or [*state] == [*whole]
    return max((float((value - whole[name]).abs().max()) for name, value in state.items()), default=0.0)


def train_ranks(
    model: Any, kind: Any, optimizer: torch.optim.Optimizer, steps: range, *, clip: float | None = None, loss: str = "mean"
) -> list[float]:
    """Trains with accumulation over two batches and a penalty on parameters, and returns the losses."""
    losses = []
    for at in steps:
        optimizer.zero_grad()
        total = 0.0
        for micro in range(2):
            x, y = batch(kind, 2 * at + micro)
            part = functional.cross_entropy(model(x[model.rows]), model.targets(y[model.rows]), reduction=loss)
            penalty = sum(each.square().sum() for each in model.parameters() if each.requires_grad and not each.is_meta)
            ((part + 0.01 * penalty) / 2).backward()
            total += float(model.reduce(part)) / 2
        losses.append(total)
        if clip:
            model.clip_grad_norm_(clip)
        optimizer.step()
    return losses


def train_alone(model: nn.Module, kind: Any, optimizer: torch.optim.Optimizer, steps: range, clip: float | None = None) -> list[float]:
    losses = []
    for at in steps:
        optimizer.zero_grad()
        total = 0.0
        for micro in range(2):
            x, y = batch(kind, 2 * at + micro)
            part = functional.cross_entropy(model(x), y)
            penalty = sum(each.square().sum() for each in model.parameters() if each.requires_grad)
            ((part + 0.01 * penalty) / 2).backward()
            total += float(part.detach()) / 2
        losses.append(total)
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return losses


def equal_one_process(_rank: int, ranks: int) -> list[str]:
    """Trains two models by random plans, and returns what differs from one process."""
    wrong = []
    for seed in range(4):
        for kind in (Branches, Encoder):
            net, reference = made(kind), made(kind)
            plan = random_plan(10 * ranks + seed, kind.layers, ranks)
            for each in (net, reference):
                if seed == 1:
                    next(each.children()).requires_grad_(False)
                if seed == 2:
                    each.head.requires_grad_(False)
            clip, loss = (0.05 if seed % 2 else None), ("sum" if seed == 3 else "mean")
            model = evenstep.burst(net, plan, loss=loss)
            optimizer = optimizer_of(model)
            losses = train_ranks(model, kind, optimizer, range(STEPS), clip=clip, loss=loss)
            expected = train_alone(reference, kind, optimizer_of(reference), range(STEPS), clip)
            far = max(difference(model, reference), *(abs(a - b) for a, b in zip(losses, expected, strict=True)))
            held = {name for name, value in net.named_parameters() if not value.is_meta}
            used = {
                f"{name}." for layer in plan["layers"] if _share(layer, plan) for name in [layer["name"].split(" ")[0]]
            }
            extra = [name for name in held if dist.get_rank() and not f"{name}.".startswith((*used, "scale"))]
            if far > TOLERANCE or extra:
                wrong.append(f"{kind.__name__} {plan}: {far} {extra}")
    return wrong


def _share(layer: dict[str, Any], plan: dict[str, Any]) -> int:
    at = plan["gpu_order"].index(dist.get_rank())
    share: int = layer["samples"][at] if at < len(layer["samples"]) else 0
    return share


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
def test_random_plans_equal_one_process(ranks: int) -> None:
    for wrong in run_ranks(ranks, equal_one_process, ranks):
        assert not wrong, "\n".join(wrong)
