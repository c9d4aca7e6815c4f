"""Burst-parallel models that are traced again or deleted."""

import copy
import gc
import weakref
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.optim import optimizer as hooks

import evenstep
from evenstep.burst_parallel import cut
from evenstep.burst_parallel.routes import Exchange
from ranks import PATIENCE_S, run_ranks


class Aside(nn.Sequential):
    """Two tensors pass between its last layers, only in training."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self[0](x)
        made: torch.Tensor = self[2](self[1](x))
        return made + x if self.training else made


def plan_of(*samples: list[int]) -> dict[str, Any]:
    layers = [{"name": str(at), "samples": own} for at, own in enumerate(samples)]
    return {"gpus": 2, "global_batch": 4, "layers": layers}


def far(model: Any, reference: nn.Module) -> float:
    """Returns the difference of outputs, or of gradients in training, to one process."""
    torch.manual_seed(1)
    x, y = torch.randn(4, 6).double(), torch.randn(4, 6).double()
    if not model.training:
        with torch.no_grad():
            return float((model(x[model.rows]) - reference(x)[model.rows]).abs().max())
    model.zero_grad()
    reference.zero_grad()
    functional.mse_loss(model(x[model.rows]), model.targets(y[model.rows])).backward()
    functional.mse_loss(reference(x), y).backward()
    whole = dict(reference.named_parameters())
    return max(float((own.grad - whole[name].grad).abs().max()) for name, own in model.named_parameters())


def traced_again(_rank: int) -> dict[str, float]:
    result = {}
    for kind, size, begin in ((Aside, 1, True), (Aside, 1, False), (nn.Sequential, 400, False)):
        # Four layers of 168 bytes are cut behind the first; as doubles they are cut in the middle.
        cut.SUM_BYTES = size
        torch.manual_seed(0)
        net = kind(*(nn.Linear(6, 6) for _ in range(3 if kind is Aside else 4)))
        reference = copy.deepcopy(net).double()
        model = evenstep.burst(net.train(begin), plan_of(*[[2, 2]] * len(net)))
        model.double()
        for at in range(4):
            mode = begin ^ (at % 2 == 0)
            result[f"{kind.__name__} {begin} {at}"] = far(model.train(mode), reference.train(mode))
    return result


def test_another_trace_may_have_other_blocks() -> None:
    for result in run_ranks(2, traced_again):
        assert max(result.values()) <= 1e-12, result


def deleted(_rank: int) -> list[Any]:
    """Returns what the collector of garbage need not find, and the time limits of groups."""
    gc.disable()
    groups = dist.distributed_c10d._world.pg_map
    before, limits = (len(groups), len(hooks._global_optimizer_pre_hooks)), []
    for _ in range(2):
        model = evenstep.burst(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)), plan_of([2, 2], [4, 0]))
        own = (group for group in (model._replicas.group, *model._groups.values()))
        limits += [
            group._get_backend(torch.device("cpu")).options._timeout
            for group in own
            if isinstance(group, dist.ProcessGroup)
        ]
        model(torch.ones(2, 6))
        replicas = weakref.ref(model._replicas)
        del model
    return [replicas() is None, (len(groups), len(hooks._global_optimizer_pre_hooks)) == before, limits]


def test_a_deleted_model_leaves_nothing_and_groups_have_the_time_limit_of_the_script() -> None:
    for at, (gone, same, limits) in enumerate(run_ranks(2, deleted)):
        assert gone
        assert same
        assert limits == [timedelta(seconds=PATIENCE_S)] * (2 if at else 4)


def test_all_ranks_take_part_in_the_first_exchange_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[torch.Tensor] = []
    monkeypatch.setattr(dist, "all_reduce", calls.append)
    rows = torch.ones(1, 2, device="meta")
    Exchange(0, lambda: None, None)(rows, [1], [1])
    assert not calls
    exchange = Exchange(0, lambda: None, None)
    for _ in range(2):
        exchange(rows, [1, 0], [1, 0])
    assert [value.device.type for value in calls] == ["meta"]
