"""`evenstep verify` on models whose gradients have large rounding errors, or functional dropout."""

from pathlib import Path

import pytest

from evenstep.verify.compare import Difference, tolerance
from evenstep.verify.recording.task import Observations, Recorded
from test_verify import LOSS, advice, script, verified

#: Convolutions of images in float32: another order of additions changes gradients by 1e-5 to 1e-4.
CONVOLUTIONS = (
    ("dtype=torch.float64)", "dtype=torch.float32)"),
    (
        "net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)).double()",
        (
            "torch.manual_seed(0)\n"
            "net = torch.nn.Sequential(torch.nn.Unflatten(1, (1, 2, 4)), torch.nn.Upsample(scale_factor=(12, 6)),\n"
            "    torch.nn.Conv2d(1, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3, padding=1),\n"
            "    torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),\n"
            "    torch.nn.Flatten(), torch.nn.Linear(32, 3))"
        ),
    ),
)

#: Attention drops values with a rate that is not a module.
ATTENTION = (
    ("dtype=torch.float64)", "dtype=torch.float32)"),
    (
        "net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)).double()",
        (
            "net = torch.nn.Sequential(torch.nn.Unflatten(1, (4, 2)), torch.nn.Linear(2, 8),\n"
            "    torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True),\n"
            "    torch.nn.LSTM(8, 8, 2, dropout=0.2, batch_first=True), type('First', (torch.nn.Module,), {\n"
            "        'forward': lambda self, outputs: outputs[0].flatten(1)})(), torch.nn.Linear(32, 3))"
        ),
    ),
)


def test_rounding_errors_of_a_right_script_are_not_differences(tmp_path: Path) -> None:
    verdict = verified(script(tmp_path, *CONVOLUTIONS), steps=2)
    assert verdict.difference is not None
    assert verdict.tolerance is not None
    assert verdict.result == "agree", (verdict.difference, verdict.tolerance)
    assert verdict.difference < verdict.tolerance <= 3e-3


def test_a_weight_that_is_wrong_by_a_few_percent_is_more_than_rounding(tmp_path: Path) -> None:
    wrong = (LOSS, f"({LOSS} * (1 + 0.03 * dist.get_rank()))")
    assert verified(script(tmp_path, *CONVOLUTIONS, wrong), steps=2).result == "differ"


def test_functional_dropout_is_named_and_plain_switches_it_off(tmp_path: Path) -> None:
    dropping = script(tmp_path, *ATTENTION)
    verdict = verified(dropping, steps=2)
    assert verdict.result == "unknown"
    assert "self_attn" in advice(verdict, "repeatable")
    assert verified(dropping, steps=2, plain=True).result == "agree"


@pytest.mark.parametrize(
    ("dtype", "repeated", "allowed"),
    [
        ("torch.float32", 0.0, 1e-5),
        ("torch.float32", 5e-5, 5e-4),
        ("torch.float32", 5e-3, 1e-5),
        ("torch.float64", 1e-15, 1e-12),
        ("torch.float64", 1e-11, 1e-10),
        ("torch.bfloat16", 5e-2, 1e-1),
    ],
)
def test_the_tolerance_follows_the_rounding_errors_but_not_random_numbers(
    dtype: str, repeated: float, allowed: float
) -> None:
    recorded = Recorded(Observations(types={dtype}))
    assert tolerance(recorded, [Difference(0, "weight", repeated)])[1] == pytest.approx(allowed)
    assert tolerance(recorded, [])[1] == tolerance(recorded, [Difference(0, "weight", 0.0)])[1]
