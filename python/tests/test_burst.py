"""Burst-parallel training of PyTorch models: it equals one process for any plan."""

import copy
import json
import random
import re
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import BatchSampler, DataLoader, TensorDataset

import evenstep
from bursts import GLOBAL_BATCH, Branches, Chain, Conditional, Encoder, planned, random_plan
from evenstep.burst_parallel import cut
from evenstep.burst_parallel.plan import Plan, read_plan
from evenstep.burst_parallel.routes import Route, first_layout, moved
from programs import PATIENCE_S, clean_environment
from ranks import run_ranks

TOLERANCE = 1e-12
STEPS = 2


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


def penalty_of(model: nn.Module) -> Any:
    """Returns the part of a loss that concerns parameters, but not unused ones: they get no gradient."""
    trained = (each for name, each in model.named_parameters() if "unused" not in name and each.requires_grad)
    return sum(each.square().sum() for each in trained if not each.is_meta)


def train_ranks(
    model: Any,
    kind: Any,
    optimizer: torch.optim.Optimizer,
    steps: range,
    *,
    clip: float | None = None,
    loss: str = "mean",
) -> list[float]:
    """Trains with accumulation over two batches and a penalty on parameters, and returns the losses."""
    losses = []
    for at in steps:
        optimizer.zero_grad()
        total = 0.0
        for micro in range(2):
            x, y = batch(kind, 2 * at + micro)
            part = functional.cross_entropy(model(x[model.rows]), model.targets(y[model.rows]), reduction=loss)
            penalty = penalty_of(model)
            ((part + 0.01 * penalty) / 2).backward()
            total += float(model.reduce(part)) / 2
        losses.append(total)
        if clip:
            model.clip_grad_norm_(clip)
        optimizer.step()
    return losses


def train_alone(
    model: nn.Module, kind: Any, optimizer: torch.optim.Optimizer, steps: range, clip: float | None = None
) -> list[float]:
    losses = []
    for at in steps:
        optimizer.zero_grad()
        total = 0.0
        for micro in range(2):
            x, y = batch(kind, 2 * at + micro)
            part = functional.cross_entropy(model(x), y)
            penalty = penalty_of(model)
            ((part + 0.01 * penalty) / 2).backward()
            total += float(part.detach()) / 2
        losses.append(total)
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return losses


def equal_one_process(_rank: int, ranks: int) -> list[str]:
    """Trains models by random plans, and returns what differs from one process."""
    wrong = []
    for seed in range(4):
        for kind in (Branches, Encoder, Conditional):
            net, reference = made(kind), made(kind)
            plan = random_plan(10 * ranks + seed, kind.layers, ranks)
            for each in (net, reference):
                if seed == 1:
                    next(each.children()).requires_grad_(False)
                if seed == 2:
                    [*each.children()][-1].requires_grad_(False)
            # Every layer is a separate block if only one tensor passes.
            cut.SUM_BYTES = 1 if seed % 2 else 25 << 20
            clip, loss = (0.05 if seed % 2 else None), ("sum" if seed == 3 else "mean")
            model = evenstep.burst(net, plan, loss="sum" if loss == "sum" else "mean")
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


def separately(net: nn.Module, plan: Plan, x: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """Returns the outputs of one process that normalizes the samples of each rank separately, and their numbers."""
    layout, output, order = first_layout(plan.layers[0].shares), x, [*range(GLOBAL_BATCH)]
    for layer in plan.layers:
        layout = moved(layout, layer.shares)
        after = [sample for own in layout for sample in own]
        output, order = output[[order.index(sample) for sample in after]], after
        module = net.get_submodule(layer.name.split(" ")[0])
        parts = []
        for at, part in enumerate(part for part in output.split(layer.shares) if len(part)):
            # All ranks have the statistics of the first one with samples.
            before = [buffer.clone() for buffer in module.buffers()]
            parts.append(module(part))
            for buffer, value in zip(module.buffers() if at else (), before, strict=False):
                buffer.data.copy_(value)
        output = torch.cat(parts)
    return output, order


def normalize(_rank: int) -> list[float]:
    """Trains and evaluates a model with batch norm, and returns the differences."""
    far = []
    for seed in range(3):
        net, reference = made(Chain), made(Chain)
        # Batch norm needs two samples. Rank 0 has none of some layers.
        plan = random_plan(seed, Chain.layers, 3, unit=2)
        model = evenstep.burst(net, plan)
        optimizers = optimizer_of(model), optimizer_of(reference)
        for at in range(STEPS):
            x, y = batch(Chain, at)
            output = model(x[model.rows])
            expected, order = separately(reference, read_plan(plan, 3), x)
            for optimizer, loss in zip(
                optimizers,
                (
                    functional.cross_entropy(output, model.targets(y[model.rows])),
                    functional.cross_entropy(expected, y[order]),
                ),
                strict=True,
            ):
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        far.append(difference(model, reference))
        model.eval()
        reference.eval()
        with torch.no_grad():
            numbers = model.targets(torch.arange(GLOBAL_BATCH)[model.rows])
            far.append(float((model(x[model.rows]) - reference(x)[numbers]).abs().sum()))
    return far


def test_batch_norm_normalizes_over_the_samples_of_a_rank() -> None:
    for far in run_ranks(3, normalize):
        assert max(far) <= TOLERANCE


def resume(rank: int, path: str) -> float:
    """Trains by three plans, each from the checkpoint of the one before, and returns the difference to one process."""
    reference = made(Branches)
    train_alone(reference, Branches, optimizer_of(reference), range(6))
    for part in range(3):
        net = made(Branches, seed=part)
        model = evenstep.burst(net, random_plan(part, Branches.layers, 3))
        optimizer = optimizer_of(model)
        if part:
            state = torch.load(path)
            # As a model without evenstep.
            made(Branches).load_state_dict(state["model"])
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        train_ranks(model, Branches, optimizer, range(2 * part, 2 * part + 2))
        if not rank:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        dist.barrier()
    return difference(model, reference)


def test_a_checkpoint_continues_by_another_plan(tmp_path: Path) -> None:
    assert max(run_ranks(3, resume, str(tmp_path / "state.pt"))) <= TOLERANCE


class Dropped(nn.Module):
    """Its own forward pass depends on its mode."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.second(functional.dropout(self.first(x), 0.9, training=self.training))
        return made


def modes(_rank: int) -> list[float]:
    """Returns what differs if a model that reads its mode is evaluated, and under autocast."""
    net, reference = made(Dropped), made(Dropped)
    model = evenstep.burst(net, random_plan(4, (("first",), ("second",)), 3)).eval()
    reference.eval()
    x, _ = batch(Chain, 0)
    order = model.targets(torch.arange(GLOBAL_BATCH)[model.rows])

    def difference_of_outputs() -> float:
        output, expected = model(x[model.rows]), reference(x)[order]
        return float((output - expected).detach().abs().sum()) / max(len(order), 1)

    far = [difference_of_outputs()]
    # With dropout, outputs differ.
    model.train()
    far.append(difference_of_outputs() if len(order) else float(len(model(x[model.rows])) + 1))
    model.eval().float()
    reference.float()
    x = x.float()
    with torch.autocast("cpu", torch.bfloat16):
        far.append(difference_of_outputs())
    return far


def test_a_model_is_traced_in_the_mode_that_it_has() -> None:
    for same, dropped, cast in run_ranks(3, modes):
        assert same <= TOLERANCE
        assert dropped > 0.1
        assert cast < 0.05


class Reentrant(nn.Module):
    """Its backward pass adds to the gradients of its parameters alone."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = checkpoint(self.inner, x.clone().requires_grad_(), use_reentrant=True)
        return made


def refuse(rank: int) -> list[str]:
    """Returns the errors of ranks that differ, and of wrong calls."""
    said = []

    def net() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 5)).double()

    def plan(first: list[int], second: list[int]) -> dict[str, Any]:
        shares = iter([first, second])
        return planned((("0 Linear",), ("1",)), lambda: next(shares), 2)

    def expect(act: Callable[[], Any]) -> None:
        with pytest.raises(evenstep.EvenstepError) as caught:
            act()
        said.append(f"{type(caught.value).__name__}: {caught.value}")

    usual = plan([6, 6], [12])
    expect(lambda: evenstep.burst(net(), usual if rank else plan([6, 6], [0, 12])))
    expect(lambda: evenstep.burst(net(), usual, loss="mean" if rank else "sum"))
    expect(lambda: evenstep.burst(nn.Sequential(nn.Linear(6, 7 + rank), nn.Linear(7 + rank, 5)), usual))
    expect(lambda: evenstep.burst(net(), usual if rank else "absent.json"))
    model = evenstep.burst(net(), usual)
    x = torch.ones(6, 6, dtype=torch.float64)
    expect(lambda: model(x[:5]))
    expect(lambda: model.targets(x[:5]))
    expect(lambda: model(x).sum().backward())
    expect(lambda: model(x.float()))
    expect(lambda: evenstep.burst(net(), usual)(x.repeat(1, 1 + rank)))

    def train(
        act: Callable[[Any, int], Any],
        step: Callable[[torch.optim.Optimizer, int], Any],
        kind: Callable[[Any], nn.Module] = nn.Sequential,
    ) -> None:
        layers = net()
        layers[0] = kind(layers[0])
        # All its parameters are replaced on rank 1.
        older = torch.optim.SGD(layers[1].parameters(), lr=0.1)
        model = evenstep.burst(layers, {**usual, "layers": [{"name": "0", "samples": [6, 6]}, usual["layers"][1]]})
        optimizer = torch.optim.SGD(layers[0].parameters(), lr=0.1)
        for at in range(3):
            x, y = batch(Chain, at)
            functional.cross_entropy(model(x[model.rows]), model.targets(y[model.rows])).backward()
            act(model, at)
            older.step()
            step(optimizer, at)

    def usual_step(optimizer: torch.optim.Optimizer, _at: int) -> None:
        optimizer.step()

    def clip(model: nn.Module, at: int) -> None:
        # Rank 1 has one of the two layers.
        nn.utils.clip_grad_norm_(model.parameters(), 0.1 if at == last else 1e9)

    last = 0
    expect(lambda: train(clip, usual_step))
    last = 2
    expect(lambda: train(clip, usual_step))
    expect(lambda: train(lambda model, _: rank and next(model.parameters()).data.zero_(), usual_step))
    # Gradients that do not pass by evenstep.
    expect(lambda: train(lambda *_: None, usual_step, Reentrant))
    # As a scaler that finds an infinite gradient on one rank.
    expect(lambda: train(lambda *_: None, lambda optimizer, _: rank and optimizer.step()))
    return said


def test_ranks_that_differ_and_wrong_calls_are_refused() -> None:
    first, second = run_ranks(2, refuse)
    for at, named in enumerate(
        (
            "DivergedError: .* ranks 0 and 1 have a different plan",
            "DivergedError: .* different loss",
            "DivergedError: .* different model",
            r"SettingError: plan absent.json: .*No such file.* evenstep plan --json",
            "SettingError: rank [01] got 5 samples, planned are 6 of 12",
            "SettingError: rank [01] got 5 samples",
            "UnsupportedError: .* model.targets was not called",
            "UnsupportedError: the samples are .*float32.* others were .*float64",
            r"DivergedError: .* different shape and type of samples: .* not Shape\(row=\(6,\)",
            "DivergedError: ranks 0, 1 have different gradients of layers '0' .* in number 1: clip with",
            "DivergedError: .* different gradients .* in number 5",
            "DivergedError: ranks 0, 1 have different parameters .* the same checkpoint",
            "DivergedError: ranks 0, 1 have different gradients of layers '0' .* use_reentrant=False",
            r"DivergedError: .* optimizer steps, other calls\]: \[\[2, 1, 1, 1\], \[1, 1, 2, 1\]\]",
        )
    ):
        for said in (first[at], second[at]):
            assert re.match(named, said), said


def test_a_rank_keeps_its_first_samples_and_moves_no_more_than_the_difference() -> None:
    chance = random.Random(1)  # noqa: S311
    for _ in range(200):
        ranks = chance.randint(1, 6)
        shares = [random_plan(chance.randrange(10**6), (("x",),), ranks)["layers"][0]["samples"] for _ in range(4)]
        layouts = [first_layout([*shares[0], *[0] * (ranks - len(shares[0]))])]
        for few in shares[1:]:
            layouts.append(moved(layouts[-1], [*few, *[0] * (ranks - len(few))]))
        for at, (before, after) in enumerate((*pairwise(layouts), (layouts[0], layouts[-1]))):
            routes = [Route.between(before, after, rank) for rank in range(ranks)]
            sent = [
                [own[row] for row in (route.picked or range(route.kept, len(own)))]
                for route, own in zip(routes, before, strict=True)
            ]
            for rank, (route, own, new) in enumerate(zip(routes, before, after, strict=True)):
                assert sorted(sample for part in after for sample in part) == [*range(GLOBAL_BATCH)]
                came = [
                    sample
                    for of in range(ranks)
                    for sample in sent[of][sum(routes[of].sent[:rank]) : sum(routes[of].sent[: rank + 1])]
                ]
                assert [len(own) - route.kept, len(came)] == [sum(route.sent), sum(route.received)]
                assert own[: route.kept] + tuple(came[row] for row in (route.placed or range(len(came)))) == new
                if at < 3:
                    assert (route.kept, route.picked, route.placed) == (min(len(own), len(new)), None, None)


def test_a_plan_of_the_planner_runs(predictor_binary: Path, tmp_path: Path) -> None:
    """Profile, plan and training in one way."""
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 5))
    evenstep.profile(net, torch.ones(1, 6), [2, 6, 12], warm_up=0, repeats=1).save(tmp_path / "profile.json")
    words = ["--speeds=1,2", "--global-batch=12", "--bandwidth=1e12", "--latency-us=0.001", "--json"]
    command = [str(predictor_binary), "plan", f"--profile={tmp_path / 'profile.json'}", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_S, env=clean_environment()
    )
    assert done.returncode == 0, done.stderr
    path = tmp_path / "plan.json"
    path.write_text(done.stdout)
    plan = json.loads(done.stdout)
    assert plan["gpu_order"] == [1, 0]
    assert [layer.name for layer in read_plan(path, 2).layers] == [layer["name"] for layer in plan["layers"]]
    assert max(run_ranks(2, run_planned, str(path))) <= TOLERANCE


def run_planned(_rank: int, path: str) -> float:
    """Trains as the documentation shows."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 5)).double()
    dataset = TensorDataset(torch.randn(30, 6).double(), torch.randint(0, 5, (30,)))
    reference = copy.deepcopy(net)
    model = evenstep.burst(net, path)
    optimizer, alone = optimizer_of(model), optimizer_of(reference)
    for epoch in range(2):
        order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(epoch)).tolist()
        batches = [*BatchSampler(order, batch_size=GLOBAL_BATCH, drop_last=True)]
        for x, y in DataLoader(dataset, batch_sampler=[batch[model.rows] or batch[:1] for batch in batches]):
            optimizer.zero_grad()
            functional.cross_entropy(model(x), model.targets(y)).backward()
            model.clip_grad_norm_(0.05)
            optimizer.step()
        for x, y in DataLoader(dataset, batch_sampler=batches):
            alone.zero_grad()
            functional.cross_entropy(reference(x), y).backward()
            nn.utils.clip_grad_norm_(reference.parameters(), 0.05)
            alone.step()
    # On rank 0 the model itself can be evaluated.
    if not dist.get_rank():
        assert float((net(x) - reference(x)).detach().abs().max()) <= TOLERANCE
    return difference(model, reference)
