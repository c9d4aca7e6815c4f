"""Burst-parallel training whose plan is made on the ranks that run it."""

import json
import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import evenstep
from evenstep.burst_parallel import auto
from evenstep.burst_parallel.auto import fitted
from ranks import run_ranks

GLOBAL_BATCH = 12


def net_of(*middle: nn.Module, kind: type[nn.Sequential] = nn.Sequential) -> nn.Sequential:
    torch.manual_seed(0)
    return kind(nn.Linear(6, 8), *(middle or [nn.Tanh()]), nn.Linear(8, 5)).double()


class Reordered(nn.Sequential):
    """Calls its second module first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self[2](self[0](self[1](x)))
        return made

    def _get_name(self) -> str:
        return "Sequential"


def planned(path: Path | None = None, net: nn.Module | None = None, **changed: Any) -> Any:
    sample = torch.ones(1, 6, dtype=torch.float64)
    arguments: dict[str, Any] = {"sample_input": sample, "global_batch": GLOBAL_BATCH, "path": path, **changed}
    return evenstep.burst(net or net_of(), "auto", **arguments)


def trained(model: Any) -> float:
    """Returns the difference to one process after some steps."""
    reference = net_of()
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.2) for each in (model, reference)]
    for seed in range(3):
        torch.manual_seed(seed)
        x, y = torch.randn(GLOBAL_BATCH, 6).double(), torch.randint(0, 5, (GLOBAL_BATCH,))
        for optimizer in optimizers:
            optimizer.zero_grad()
        functional.cross_entropy(model(x[model.rows]), model.targets(y[model.rows])).backward()
        functional.cross_entropy(reference(x), y).backward()
        for optimizer in optimizers:
            optimizer.step()
    whole = reference.state_dict()
    return max((float((value - whole[name]).abs().max()) for name, value in model.state_dict().items()), default=0.0)


def resumed(_rank: int, folder: Path) -> dict[str, Any]:
    path = folder / "plan.json"
    result: dict[str, Any] = {}
    numbers: list[Any] = []
    real = auto._profile

    def counted(model: Any, samples: Any, sizes: Any) -> Any:
        numbers.append(sizes)
        return real(model, samples, sizes)

    auto._profile = counted
    model = planned(path)
    result["far"] = trained(model)
    result["sizes"], first = [*numbers], path.read_text()
    shares = [block.shares for block in model._blocks]
    again = planned(path)
    result["reused"] = len(numbers) == len(result["sizes"]) and [block.shares for block in again._blocks] == shares
    # All ranks have read it.
    dist.barrier()
    planned(path, amplification=1.5)
    result["planned again"] = len(numbers) > len(result["sizes"]) and path.read_text() != first
    last = nn.Softplus(2.0)
    for net in (net_of(nn.Softplus()), net_of(last), net_of(last, kind=Reordered)):
        before = len(numbers)
        dist.barrier()
        planned(path, net, amplification=1.5)
        result["planned again"] &= len(numbers) > before
    # Batch norm needs two samples.
    result["norm"] = planned(net=net_of(nn.BatchNorm1d(8)), global_batch=2)._blocks[0].shares
    return result


def test_a_plan_is_made_once_and_used_again(predictor_binary: Path, tmp_path: Path) -> None:
    path = f"{predictor_binary.parent}{os.pathsep}{os.environ['PATH']}"
    first, second, third = run_ranks(3, resumed, tmp_path, environ={"PATH": path})
    for result in (first, second, third):
        assert result["far"] <= 1e-12
        assert result["reused"]
        assert result["planned again"]
        assert result["norm"] == (2, 0, 0)
    # Only the ranks that a layer would have measure.
    assert [each["sizes"] for each in (first, second, third)] == [[[12], [6], [4]], [[], [6], [4]], [[], [], [4]]]
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert (plan["gpus"], plan["global_batch"], plan["amplification"]) == (3, GLOBAL_BATCH, 1.5)
    assert [layer["name"] for layer in plan["layers"]] == ["1 Softplus", "0 Linear", "2 Linear"]


class Branching(nn.Module):
    """No chain."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)  # type: ignore[no-any-return]


def refused(rank: int, folder: Path) -> list[str]:
    said = []

    def expect(act: Callable[[], Any]) -> None:
        with pytest.raises((evenstep.EvenstepError, AttributeError)) as caught:
            act()
        said.append(f"{type(caught.value).__name__}: {caught.value}")

    wrong = folder / "wrong.json"
    wrong.write_text("[]")
    expect(lambda: planned(sample_input=None))
    expect(lambda: planned(global_batch=0 if rank else GLOBAL_BATCH))
    expect(lambda: planned(global_batch=GLOBAL_BATCH + rank))
    expect(lambda: planned(amplification=0.5))
    expect(lambda: planned(amplification=float("nan")))
    expect(lambda: planned(amplification="2"))
    expect(lambda: planned(global_batch=True))
    expect(lambda: planned(folder / "absent" / "plan.json"))
    expect(lambda: evenstep.burst(net_of() if rank else None, "auto", sample_input=torch.ones(1, 6), global_batch=2))  # type: ignore[arg-type]
    expect(lambda: planned(net=Branching().double()))
    expect(lambda: planned(wrong))
    expect(lambda: evenstep.burst(net_of(), {}, path=wrong))
    expect(lambda: planned() if rank else evenstep.burst(net_of(), "absent.json"))
    return said


def test_what_cannot_be_planned_is_refused_on_all_ranks(predictor_binary: Path, tmp_path: Path) -> None:
    path = f"{predictor_binary.parent}{os.pathsep}{os.environ['PATH']}"
    for *said, named in zip(
        *run_ranks(2, refused, tmp_path, environ={"PATH": path}),
        (
            "SettingError: plan='auto': sample_input must be a tensor",
            "SettingError: plan='auto': global_batch=0 must be a whole number of at least 1",
            "DivergedError: .* different global_batch: it must be the same, not 12 and 13",
            "SettingError: plan='auto': .*--amplification.*must be 1 or more",
            "SettingError: plan='auto': amplification=nan must be a finite number",
            "SettingError: plan='auto': amplification='2' must be a finite number",
            "SettingError: plan='auto': global_batch=True must be a whole number",
            "SettingError: path .*absent/plan.json: its folder must exist and be writable",
            "(AttributeError|UnsupportedError: rank 0: AttributeError)",
            "UnsupportedError: Branching is not a chain of layers",
            "SettingError: path .*wrong.json: must be a plan of evenstep.burst, or absent",
            "SettingError: path is only for plan='auto'",
            "SettingError: plan absent.json: .*No such file",
        ),
        strict=True,
    ):
        for each in said:
            assert re.match(named, each, re.DOTALL), each


def test_the_network_is_fitted_with_relative_errors() -> None:
    chance = random.Random(0)  # noqa: S311
    for _ in range(100):
        bandwidth, latency_s = 10 ** chance.uniform(6, 11), 10 ** chance.uniform(-6, -2)
        points = [(size, count, size / bandwidth + count * latency_s) for size, count in ((0, 1), (1e4, 2), (1e8, 6))]
        assert fitted(points) == pytest.approx((bandwidth, latency_s), rel=1e-4)
    # Larger messages were faster.
    assert fitted([(1e3, 1.0, 0.004), (1e6, 1.0, 0.002)]) == pytest.approx((1e12, 0.0024))
    # No time is left for the latency.
    assert fitted([(1e3, 1.0, 0.0001), (1e6, 1.0, 1.0)]) == pytest.approx(((1e14 + 1e12) / 1.1e7, 0.0))
    assert fitted([(0.0, 1.0, 0.5)]) == pytest.approx((1e12, 0.5))
    assert fitted([]) == (1e12, 0.0)
