"""The parts of a usual script together: the example's network and validation, AdamW, a schedule, clipping, a resume."""

import ast
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils import data

import evenstep
from evenstep.samples.order import Order
from programs import ROOT
from ranks import run_ranks
from training import PLANS, difference, parameters

SAMPLES, GLOBAL_BATCH, EPOCHS, LENGTH, TOKENS = 205, 16, 2, 8, 12

#: The required accuracy, in float64.
TOLERANCE = 1e-13


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def example() -> dict[str, Any]:
    """Returns the network and the validation of the example."""
    tree = ast.parse((ROOT / "python" / "examples" / "transformer.py").read_text())
    kept: list[Any] = [node for node in tree.body if getattr(node, "name", None) in ("Transformer", "validate")]
    names = {"torch": torch, "data": data, "dist": torch.distributed, "loss_of": loss_of, "Any": Any}
    names.update({"LENGTH": LENGTH, "TOKENS": TOKENS})
    exec(compile(ast.Module(kept, []), "transformer.py", "exec"), names)  # noqa: S102  # Of this repository.
    return names


def sequences(samples: int, seed: int = 1) -> data.TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    return data.TensorDataset(torch.randint(TOKENS, (samples, LENGTH + 1), generator=generator))


class Script:
    """The objects of a script, in float64 and without dropout, whose random numbers differ between shares."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.names = example()
        self.net = self.names["Transformer"]().double()
        for module in self.net.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            elif isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
        # A larger eps than the default: some gradients are 0 but for rounding errors, which AdamW would amplify.
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3, eps=1e-4)
        steps = Order(SAMPLES, GLOBAL_BATCH).steps * EPOCHS
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, max_lr=1e-2, total_steps=steps)

    def step(self, model: nn.Module, batch: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss_of(model, batch).backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
        self.optimizer.step()
        self.scheduler.step()

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name).state_dict() for name in ("net", "optimizer", "scheduler")}


def part(_rank: int, plan: str | list[int], stop: int | None, before: dict[str, Any] | None) -> dict[str, Any]:
    """Trains until an iteration, or to the end; loads the state of an earlier part where scripts do, at the end."""
    script, job = Script(), evenstep.init(plan=PLANS[plan] if isinstance(plan, str) else plan)
    loader = job.loader(sequences(SAMPLES), global_batch=GLOBAL_BATCH, num_workers=2)
    model = job.wrap(DistributedDataParallel(script.net))
    if before:
        for name, state in before["script"].items():
            getattr(script, name).load_state_dict(state)
        job.load_state_dict(before["job"])
    losses: list[float] = []
    for _ in range(job.state_dict()["epoch"], EPOCHS):
        for (batch,) in loader:
            script.step(model, batch)
            if job.state_dict()["iteration"] == stop:
                return {"script": script.state(), "job": job.state_dict(), "losses": losses}
        losses.append(script.names["validate"](script.net, sequences(50, seed=2)))
    return {"losses": losses, "parameters": parameters(script.net)}


def batches(order: Order) -> Iterator[list[torch.Tensor]]:
    """Yields the whole batches of each epoch."""
    [samples] = sequences(SAMPLES).tensors
    for epoch in range(EPOCHS):
        permutation = order.permutation(epoch)
        yield [samples[at] for at in permutation.split(order.global_batch)]


def one_process() -> dict[str, Any]:
    script, losses = Script(), []
    [held_out] = sequences(50, seed=2).tensors
    for epoch in batches(Order(SAMPLES, GLOBAL_BATCH)):
        for batch in epoch:
            script.step(script.net, batch)
        with torch.no_grad():
            losses.append(loss_of(script.net.eval(), held_out).item())
        script.net.train()
    return {"losses": losses, "parameters": parameters(script.net)}


def test_a_usual_script_is_one_process_also_after_a_resume_with_other_ranks() -> None:
    first = run_ranks(3, part, "changing", 20, None)
    assert Counter(repr(rank["job"]) for rank in first) == {repr(first[0]["job"]): 3}
    second = run_ranks(2, part, [5, 11], None, first[0])
    reference = one_process()
    for rank in second:
        assert difference(rank["parameters"], reference["parameters"]) <= TOLERANCE
        losses = [*first[0]["losses"], *rank["losses"]]
        assert losses == pytest.approx(reference["losses"], abs=TOLERANCE)
