"""`evenstep verify --micro-batch`: one process that computes the global batch in parts."""

from pathlib import Path
from typing import Any

import pytest
import torch

from evenstep.errors import UnsupportedError
from evenstep.verify.recording.micro import split_passes
from test_fsdp import weights
from test_verify import LOSS, WRAP, advice, script, status, verified
from test_verify_fsdp import SHARD

#: Fails in passes of the one process with more than four samples.
SMALL_MEMORY = (
    "model = job.wrap",
    (
        "def fits(_, inputs):\n"
        "    assert dist.get_world_size() > 1 or len(inputs[0]) <= 4, 'out of memory'\n"
        "net[1].register_forward_pre_hook(fits)\n"
        "model = job.wrap"
    ),
)

CLIPPED = ("optimizer.step()", "torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01); optimizer.step()")


class Net(torch.nn.Module):
    """Returns a named output and a pair; the mask has no batch dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2, dtype=torch.float64)
        self.passes: list[int] = []

    def forward(self, batch: dict[str, torch.Tensor], *, mask: torch.Tensor) -> dict[str, Any]:
        self.passes.append(len(batch["x"]))
        y = self.linear(batch["x"] * mask)
        return {"y": y, "more": (y.sum(1), None)}


def test_micro_batches_have_the_gradient_of_the_whole_batch() -> None:
    torch.manual_seed(0)
    x, mask = torch.randn(11, 3, dtype=torch.float64), torch.tensor([1.0, 0.0, 2.0], dtype=torch.float64)
    net, splits = Net(), []

    def gradient() -> torch.Tensor:
        output = net({"x": x}, mask=mask)
        assert output["more"][1] is None
        # It depends on all samples together.
        net.zero_grad()
        (output["y"].logsumexp(0).sum() + output["more"][0].std()).backward()
        assert net.linear.weight.grad is not None
        return net.linear.weight.grad.clone()

    whole = gradient()
    split_passes(net, 4, lambda: splits.append(1))
    assert (gradient() - whole).abs().max() <= 1e-13
    assert net.passes[:4] == [11, 4, 4, 3]
    assert sorted(net.passes[4:]) == [3, 4, 4], "again in the backward pass"
    assert splits == [1]
    net.eval()
    net({"x": x}, mask=mask)
    assert net.passes[-1] == 11, "evaluations stay whole"


def test_outputs_that_are_not_by_sample_are_refused() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Flatten(0))
    split_passes(net, 2, lambda: None)
    with pytest.raises(UnsupportedError, match=r"Sequential returned a tensor of shape \(4,\) for 2 samples"):
        net(torch.zeros(4, 3))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param([SMALL_MEMORY, CLIPPED], id="clipped"),
        pytest.param([SHARD, (WRAP, "job.wrap(net)"), SMALL_MEMORY], id="sharded", marks=weights),
    ],
)
def test_a_batch_that_does_not_fit_is_verified_in_parts(tmp_path: Path, changes: list[tuple[str, str]]) -> None:
    path = script(tmp_path, *changes)
    verdict = verified(path, steps=2, micro_batch=4)
    assert verdict.result == "agree"
    assert verdict.difference is not None
    assert verdict.difference <= 1e-13
    assert {check.status for check in verdict.checks} == {"ok"}
    assert "out of memory" in verified(path, steps=2).output


def test_a_wrong_gradient_is_found_in_parts(tmp_path: Path) -> None:
    wrong = (LOSS, 'mse_loss(model(x), y, reduction="sum")')
    verdict = verified(script(tmp_path, wrong), steps=2, micro_batch=4)
    assert verdict.result == "differ"
    assert "sum" in advice(verdict, "gradients")


def test_what_cannot_be_judged_in_parts_is_told(tmp_path: Path) -> None:
    mixing = script(tmp_path, ("torch.nn.Tanh()", "torch.nn.BatchNorm1d(16).double()"), ("=16", "=32"))
    verdict = verified(mixing, steps=2, micro_batch=4)
    assert verdict.result == "failed"
    assert "batch norm (1) mixes the samples" in verdict.checks[0].found
    bypassed = script(
        tmp_path, (LOSS, "mse_loss(net[2](net[1](net[0](x))), y)"), (WRAP, "net"), ("optim.SGD", "optim.SGD")
    )
    bypassed.write_text(
        bypassed.read_text()
        .replace("mse_loss(net[2]", "job.scale(mse_loss(net[2]")
        .replace("y).backward", "y)).backward")
    )
    verdict = verified(bypassed, steps=2, micro_batch=4)
    assert status(verdict, "micro-batch") == "warning"
