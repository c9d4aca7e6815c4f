"""An elastic job names each reason for which it cannot begin."""

from typing import Any

import pytest
import torch

import evenstep
from evenstep.elastic import reconfigure
from evenstep.errors import EvenstepError

REASON = reconfigure.supported()
SUPPORTED = pytest.mark.skipif(REASON is not None, reason=str(REASON))


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MASTER_PORT", "29511")


def test_the_version_of_pytorch_decides() -> None:
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    assert (REASON is None) == (version >= (2, 15))
    if REASON:
        with pytest.raises(EvenstepError, match=r"cannot change a running process group.*use PyTorch 2"):
            evenstep.init(elastic=True, epochs=1)


@SUPPORTED
@pytest.mark.parametrize(
    ("variables", "options", "told"),
    [
        ({"TORCHELASTIC_RUN_ID": "none"}, {}, "without torchrun"),
        ({"MASTER_PORT": ""}, {}, "MASTER_PORT=''"),
        ({}, {"epochs": None}, "without epochs"),
        ({}, {"plan": [3, 1]}, r"plan=\[3, 1\]"),
        ({}, {"mesh": torch.nn}, "mesh"),
        ({}, {"min_workers": 4, "max_workers": 3}, "max_workers=3"),
        ({}, {"hang_s": 0.0}, "hang_s=0.0"),
        ({}, {"hang_s": "60"}, "hang_s='60'"),
        ({}, {"elastic": False, "min_workers": 2}, "min_workers=2 without elastic"),
        ({}, {"elastic": False, "hang_s": 9.0}, "hang_s=9.0 without elastic"),
    ],
)
def test_settings(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], options: dict[str, Any], told: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(EvenstepError, match=told):
        evenstep.init(**{"elastic": True, "epochs": 1, **options})


@SUPPORTED
@pytest.mark.parametrize(
    ("layer", "told"),
    [(torch.nn.BatchNorm1d(3), "batch norm"), (torch.nn.Linear(3, 3), "must have the optimizer")],
)
def test_models(layer: torch.nn.Module, told: str) -> None:
    job = evenstep.init(elastic=True, epochs=1)
    state = [torch.optim.SGD(layer.parameters(), lr=0.1)] if "batch" in told else []
    with pytest.raises(EvenstepError, match=told):
        job.wrap(layer, state=state)
