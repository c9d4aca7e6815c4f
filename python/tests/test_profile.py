"""Profiles of models: their layers, the measurements, and plans made from them."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import evenstep
from evenstep.errors import SettingError, UnsupportedError
from evenstep.profiling.profile_layers import chain
from evenstep.profiling.profile_measure import measure
from programs import PATIENCE_S, clean_environment

SAMPLE = torch.ones(2, 3, 8, 8)


class Residual(nn.Module):
    """Not a chain: its input is read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = x + self.inner(x)
        return made


class Network(nn.Module):
    """A chain with a view, a block and in-place layers."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(inplace=True), Residual(), nn.MaxPool2d(4))
        self.classifier = nn.Sequential(nn.Linear(16, 8), nn.Dropout(), nn.ReLU(inplace=True), nn.Linear(8, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.classifier(torch.flatten(self.features(x), 1))
        return made


class Functional(nn.Module):
    """Not a chain: a function computes between its layers."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.first, self.second, self.in_place = nn.Linear(4, 4), nn.Linear(4, 4), in_place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.second(functional.relu(self.first(x), inplace=self.in_place))
        return made


class Behind(nn.Sequential):
    """Not a chain: there is computation after its last layer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = 2 * super().forward(x)  # type: ignore[no-untyped-call]  # defined by torch.
        return made


class TwoInputs(nn.Module):
    """Not a chain: it reads two tensors."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


class Pair(nn.Module):
    """Passes two tensors to a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.sum = nn.Linear(4, 4), TwoInputs()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.sum(self.linear(x), x)
        return made


def test_a_model_is_taken_apart_into_a_chain() -> None:
    profile = evenstep.profile(Network(), SAMPLE, [4, 1, 2, 1], warm_up=0, repeats=2)
    assert [layer.name for layer in profile.layers] == [
        "features.0 Conv2d",
        "features.1 ReLU",
        "features.2 Residual",
        "features.3 MaxPool2d",
        "classifier.0 Linear",
        "classifier.1 Dropout",
        "classifier.2 ReLU",
        "classifier.3 Linear",
    ]
    assert [layer.parameters for layer in profile.layers] == [112, 0, 148, 0, 136, 0, 0, 18]
    assert [layer.outputs for layer in profile.layers] == [256, 256, 256, 16, 8, 8, 8, 2]
    for layer in profile.layers:
        assert list(layer.compute_us) == list(layer.forward_us) == list(layer.activation_bytes) == [1, 2, 4]
        assert all(0 < layer.forward_us[size] < us for size, us in layer.compute_us.items()), layer
    assert (profile.model, profile.device.split()[0]) == ("Network", "cpu")


def test_activations_are_what_is_kept() -> None:
    model = nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 5))
    profile = evenstep.profile(model, torch.ones(1, 10), [1, 8], warm_up=0, repeats=1)
    # A linear layer keeps its input, a tanh its output; parameters are not activations.
    kept = [layer.activation_bytes for layer in profile.layers]
    assert kept == [{1: 40, 8: 320}, {1: 80, 8: 640}, {1: 80, 8: 640}]


def test_values_are_counted_in_four_bytes() -> None:
    model = nn.Sequential(nn.Linear(10, 20, dtype=torch.float64), nn.Linear(20, 5, dtype=torch.float64))
    model[1].bias.requires_grad = False
    profile = evenstep.profile(model, torch.ones(1, 10, dtype=torch.float64), [2], warm_up=0, repeats=1)
    assert [(layer.parameters, layer.outputs) for layer in profile.layers] == [(440, 40), (200, 10)]


def test_gradients_of_a_measured_pass_are_those_of_the_model() -> None:
    torch.manual_seed(0)
    model = Network().eval()
    samples = torch.randn(4, 3, 8, 8)
    seen: dict[nn.Parameter, torch.Tensor] = {}
    hooks = [
        parameter.register_post_accumulate_grad_hook(lambda of: seen.update({of: of.grad.clone()}))
        for parameter in model.parameters()
    ]
    measure(chain(model, samples), samples, warm_up=0, repeats=1)
    for hook in hooks:
        hook.remove()
    model(samples).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(seen[parameter], parameter.grad, msg=name)


def test_a_profile_changes_nothing() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout()).eval()
    model(torch.ones(1, 3)).sum().backward()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = [None if parameter.grad is None else parameter.grad.clone() for parameter in model.parameters()]
    random = torch.random.get_rng_state()
    evenstep.profile(model, torch.ones(1, 3), [2], warm_up=1, repeats=1)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert gradient is not None
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, gradient)
    assert torch.equal(torch.random.get_rng_state(), random)
    assert not model.training


def test_integers_are_read_and_a_layer_without_parameters_may_come_first() -> None:
    tokens = nn.Sequential(nn.Embedding(10, 6), nn.Flatten(), nn.Linear(18, 2))
    profile = evenstep.profile(tokens, torch.ones(1, 3, dtype=torch.int64), [2], warm_up=0, repeats=1)
    assert [layer.outputs for layer in profile.layers] == [18, 18, 2]
    scaled = evenstep.profile(nn.Sequential(nn.ReLU(), nn.Linear(3, 2)), torch.ones(1, 3), [2], warm_up=0, repeats=1)
    assert scaled.layers[0].compute_us == scaled.layers[0].forward_us


def test_what_is_no_chain_is_refused_by_where_it_breaks() -> None:
    def refused(model: nn.Module, named: str, sample: torch.Tensor) -> None:
        with pytest.raises(UnsupportedError, match=named):
            evenstep.profile(model, sample, [2], warm_up=0, repeats=1)

    four = torch.ones(1, 4)
    for in_place in (False, True):
        refused(
            Functional(in_place=in_place),
            ("Functional is not a chain .* second does not read exactly the output of first"),
            four,
        )
    refused(Behind(nn.Linear(4, 4)), "Behind is not a chain .* after 0", four)
    refused(Pair(), "TwoInputs has more than one input or output tensor", four)
    linear = nn.Linear(4, 4)
    refused(nn.Sequential(linear, nn.ReLU(), linear), "0 Linear #1 and 0 Linear #2 share parameters", four)
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    refused(tied, "0 Linear and 1 Linear share parameters", four)
    refused(nn.DataParallel(linear), "DataParallel runs on several", four)


def test_a_layer_without_parameters_may_be_called_twice() -> None:
    relu = nn.ReLU()
    model = nn.Sequential(nn.Linear(4, 4), relu, nn.Linear(4, 4), relu)
    profile = evenstep.profile(model, torch.ones(1, 4), [2], warm_up=0, repeats=1)
    assert [layer.name for layer in profile.layers] == ["0 Linear", "1 ReLU #1", "2 Linear", "1 ReLU #2"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"batches": []}, "batches=\\[\\]: must be 1 to 64"),
        ({"batches": [0, 1]}, "batches=\\[0, 1\\]"),
        ({"batches": range(1, 66)}, "must be 1 to 64"),
        ({"repeats": 0}, "repeats=0"),
        ({"warm_up": -1}, "warm_up=-1"),
        ({"sample_input": torch.tensor(1.0)}, r"shape \(\)"),
        ({"sample_input": torch.ones(0, 4)}, r"shape \(0, 4\)"),
    ],
)
def test_arguments_that_break_a_rule_are_refused(arguments: dict[str, Any], named: str) -> None:
    usual: dict[str, Any] = {"sample_input": torch.ones(1, 4), "batches": [1]}
    with pytest.raises(SettingError, match=named):
        evenstep.profile(nn.Linear(4, 4), **{**usual, **arguments})


def test_a_plan_is_made_of_a_profile(predictor_binary: Path, tmp_path: Path) -> None:
    profile = evenstep.profile(Network(), SAMPLE, [1, 2, 4, 8], warm_up=1, repeats=3)
    path = tmp_path / "profile.json"
    profile.save(path)
    words = [
        "--gpus=4",
        "--global-batch=8",
        "--bandwidth=1e12",
        "--latency-us=0.01",
        "--memory-bytes=10000000",
        "--json",
    ]
    command = [str(predictor_binary), "plan", f"--profile={path}", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_S, env=clean_environment()
    )
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert [layer["name"] for layer in plan["layers"]] == [layer.name for layer in profile.layers]
    assert plan["one_gpu"]["iteration_us"] == pytest.approx(sum(layer.compute_us[8] for layer in profile.layers))
    assert all(sum(layer["samples"]) == 8 for layer in plan["layers"])
    assert plan["memory_bytes"] > 0
