"""Plans and models that burst-parallel training refuses, before anything runs."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import evenstep
from bursts import GLOBAL_BATCH, Branches, Encoder, random_plan
from evenstep.burst_parallel.cut import Piece, cut, opened_modules
from evenstep.burst_parallel.plan import read_plan
from evenstep.errors import SettingError, UnsupportedError

USUAL: dict[str, Any] = {
    "global_batch": 8,
    "gpus": 2,
    "gpu_order": [1, 0],
    "iteration_us": 3.5,
    "layers": [{"name": "0 Linear", "samples": [5, 3], "gpus": 2}, {"name": "1", "samples": [8], "gpus": 1}],
}


def test_gpu_i_of_a_plan_is_rank_i(tmp_path: Path) -> None:
    plan = read_plan(USUAL, 2)
    assert [(layer.name, layer.shares) for layer in plan.layers] == [("0 Linear", (3, 5)), ("1", (0, 8))]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(USUAL))
    assert read_plan(path, 2) == read_plan(str(path), 2) == plan


@pytest.mark.parametrize(
    ("keys", "value", "named"),
    [
        (["gpus"], 3, "gpus 3 must be the number of ranks, 2"),
        (["gpus"], None, "gpus None"),
        (["global_batch"], 0, "global_batch 0 must be"),
        (["global_batch"], True, "global_batch True"),
        (["global_batch"], "8", "global_batch '8'"),
        (["layers"], [], r"layers is \[\]"),
        (["layers"], {}, "layers is {}"),
        (["gpu_order"], [0, 0], r"gpu_order \[0, 0\] must contain each of 0 to 1 once"),
        (["gpu_order"], [0, "1"], "gpu_order"),
        (["layers", 0], 5, "name None of a layer"),
        (["layers", 0, "name"], "", "name '' of a layer"),
        (["layers", 0, "name"], "1", "layer '1' occurs 2 times"),
        (["layers", 0, "samples"], None, "samples of layer '0 Linear' are None: .* A profile has none"),
        (["layers", 0, "samples"], [9, -1], r"are \[9, -1\]: must be a list of whole numbers"),
        (["layers", 0, "samples"], [5.0, 3], "must be a list of whole numbers"),
        (["layers", 0, "samples"], [5, 2], r"\[5, 2\] of layer '0 Linear' sum to 7: must be the global batch, 8"),
        (["layers", 0, "samples"], [5, 2, 1], "samples for 3 GPUs, the plan has 2 GPUs"),
    ],
)
def test_plans_that_break_a_rule_are_refused(keys: list[Any], value: Any, named: str) -> None:
    plan = copy.deepcopy(USUAL)
    at: Any = plan
    for key in keys[:-1]:
        at = at[key]
    at[keys[-1]] = value
    with pytest.raises(SettingError, match=named):
        read_plan(plan, 2)


def test_files_that_are_no_plan_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    for text, named in (
        (None, "No such file"),
        ("", "Expecting value"),
        ("[]", "must be a JSON object"),
        ("[" * 99_999, "plan.json: "),
        ("\x80", "plan.json: "),
    ):
        if text is not None:
            path.write_bytes(text.encode("latin-1"))
        with pytest.raises(SettingError, match=named):
            read_plan(path, 2)
    with path.open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(SettingError, match="67108865 bytes, the maximum is 67108864"):
        read_plan(path, 2)


def pieces(net: nn.Module, *names: str, different: bool = True) -> list[Piece]:
    """Cuts a model, by a plan whose layers have different samples or all the same."""
    layers = [{"name": name, "samples": [8 - at % 2, at % 2] if different else [8]} for at, name in enumerate(names)]
    plan = read_plan({"global_batch": 8, "gpus": 2, "layers": layers}, 2)
    return cut(net, plan, opened_modules(net, plan))


class Functional(nn.Module):
    """Its forward pass is a function."""

    def __init__(self, forward: Any, **modules: nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)
        self.function = forward

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def linear() -> nn.Linear:
    return nn.Linear(4, 4)


def mode_changed(net: Any, x: torch.Tensor) -> Any:
    with torch.no_grad():
        x = net.a(x)
    return net.b(x)


def cast(net: Any, x: torch.Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return net.b(net.a(x))


def function_of(forward: Any) -> Functional:
    return Functional(forward, a=linear(), b=linear(), relu=nn.ReLU())


TIED = nn.Sequential(linear(), linear())
TIED[1].weight = TIED[0].weight
MASKED = Functional(lambda net, x: net.encoder(x, torch.ones(3, 3)), encoder=Encoder().encoder)
LAST_FIRST = nn.Sequential(nn.TransformerEncoderLayer(4, 2), linear())
SYNC = nn.Sequential(linear(), nn.SyncBatchNorm(4))
ENCODER = ("embedding", "encoder.layers.0", "encoder.layers.2", "recurrent", "head")


@pytest.mark.parametrize(
    ("net", "names", "named"),
    [
        (nn.Sequential(linear(), linear()), ("0", "2"), "layer '2' is unknown: Sequential has no module of this name"),
        (nn.Sequential(linear(), linear()), ("0", "1 Conv2d"), "'1 Conv2d' is unknown: Sequential has Linear there"),
        (nn.Sequential(linear(), linear()), ("Sequential",), "'Sequential' is unknown"),
        (nn.Sequential(linear(), linear()), ("1", "0"), "Sequential calls 0 before layer '1'"),
        (nn.Sequential(linear(), linear()), ("0",), "call 1 of 1 Linear, which has parameters, is no layer"),
        (nn.Sequential(linear(), linear()), ("0", "1", "1 #2"), "layer '1 #2' is not called by Sequential"),
        (nn.Sequential(nn.Sequential(linear()), linear()), ("0", "0.0", "1"), "calls 0.0 before layer '0'"),
        (Encoder(), ENCODER, r"call 1 of encoder.layers.1 TransformerEncoderLayer, which has parameters"),
        (MASKED, ("encoder.layers.0",), "encoder TransformerEncoder cannot be cut: its layers get masks"),
        (LAST_FIRST, ("0", "1"), "'?0'? does not have samples first: .* batch_first=True"),
        (SYNC, ("0", "1"), "1 is SyncBatchNorm"),
        (TIED, ("0", "1"), "weight is shared by the blocks of layers '0' and '1'"),
        (function_of(lambda net, x: net.a(net.b(net.a(x)))), ("a", "b"), "call 2 of a Linear"),
        (function_of(lambda net, x: x + net.b(net.a(x))), ("a", "b"), "layer 'a' and .* not x, a"),
        (function_of(lambda net, x: (y := net.a(x)) + net.b(net.relu(y))), ("a", "relu", "b"), "not a, relu"),
        (function_of(lambda net, x: net.b(x) if net.a(x).sum() else x), ("a", "b"), "Functional cannot be cut"),
        (function_of(lambda net, x: (net.a(x), net.b(x))), ("a", "b"), "must have one input tensor and one output"),
        (function_of(lambda net, x: (net.a(x), net.b(x))[1]), ("a", "b"), "layer 'a' and the next layer .* not x"),
        (function_of(mode_changed), ("a", "b"), "changes the mode of autograd or autocast"),
        (function_of(cast), ("a", "b"), "changes the mode of autograd or autocast"),
    ],
)
def test_models_that_cannot_be_cut_are_refused_by_name(net: nn.Module, names: tuple[str, ...], named: str) -> None:
    with pytest.raises(UnsupportedError, match=named):
        pieces(net, *names)


def test_branches_are_cut_if_they_have_the_same_samples() -> None:
    net = function_of(lambda net, x: (y := net.a(x)) + net.b(net.relu(y)))
    (piece,) = pieces(net, "a", "relu", "b", different=False)
    x = torch.ones(2, 4)
    assert torch.equal(piece.module(x), net(x))
    # A residual connection around one layer is no branch between layers.
    first, second = pieces(function_of(lambda net, x: (y := net.relu(net.a(x))) + net.b(y)), "a", "b")
    assert (first.first, first.last, second.first) == ("a", "a", "b")


def test_a_block_with_many_parameters_is_cut_again(monkeypatch: pytest.MonkeyPatch) -> None:
    residual = function_of(lambda net, x: (y := net.a(x)) + net.b(net.relu(y)))
    chain = nn.Sequential(linear(), nn.ReLU(), linear(), linear())
    layer_bytes = 4 * (16 + 4)

    def starts(net: nn.Module, *names: str) -> list[str]:
        return [piece.first for piece in pieces(net, *names, different=False)]

    assert starts(chain, "0", "1", "2", "3") == ["0"]
    for size, expected in (
        (1, ["0", "2", "3"]),
        (layer_bytes, ["0", "2", "3"]),
        (layer_bytes + 1, ["0", "2"]),
        (3 * layer_bytes + 1, ["0"]),
    ):
        monkeypatch.setattr("evenstep.burst_parallel.cut.SUM_BYTES", size)
        assert starts(chain, "0", "1", "2", "3") == expected
    monkeypatch.setattr("evenstep.burst_parallel.cut.SUM_BYTES", 1)
    # Before b two tensors pass. Tied layers have the same parameter.
    assert starts(residual, "a", "relu", "b") == ["a", "relu"]
    assert starts(TIED, "0", "1") == ["0"]


@pytest.mark.parametrize("kind", [Branches, Encoder])
def test_blocks_in_sequence_are_the_model(kind: Any) -> None:
    net = kind()
    plan = read_plan(random_plan(0, kind.layers, 4), 4)
    x = kind.inputs(GLOBAL_BATCH)
    expected = net(x)
    for piece in cut(net, plan, opened_modules(net, plan)):
        x = piece.module(x)
    assert torch.equal(x, expected)


def test_a_module_that_is_called_twice_has_numbers() -> None:
    relu = nn.ReLU()
    net = nn.Sequential(nn.Linear(4, 4), relu, nn.Linear(4, 4), relu)
    profile = evenstep.profile(net, torch.ones(1, 4), [2], warm_up=0, repeats=1)
    cuts = pieces(net, *(layer.name for layer in profile.layers))
    assert [piece.first for piece in cuts] == ["0 Linear", "1 ReLU #1", "2 Linear", "1 ReLU #2"]


def test_one_rank_needs_no_process_group() -> None:
    net = nn.Sequential(linear(), nn.Dropout(), linear())
    with pytest.raises(SettingError, match="loss='max': must be"):
        evenstep.burst(net, USUAL, loss="max")  # type: ignore[arg-type]
    plan = {"gpus": 1, "global_batch": 2, "layers": [{"name": "0", "samples": [2]}, {"name": "2", "samples": [2]}]}
    model = evenstep.burst(net, plan)
    assert [*model.state_dict()] == [*net.state_dict()]
    with pytest.raises(SettingError, match="rank 0 got 3 samples, planned are 2 of 2"):
        model(torch.ones(3, 4))
    swapped = evenstep.burst(nn.Sequential(linear(), nn.Flatten(0, 1), linear()), plan)
    with pytest.raises(UnsupportedError, match=re.escape("layer '2' returned (10, 4) for 2 samples")):
        swapped(torch.ones(2, 5, 4))
