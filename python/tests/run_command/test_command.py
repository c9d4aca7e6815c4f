"""`evenstep run` with the real torchrun, and the module that Python loads at its start."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from programs import ROOT, clean_environment

SCRIPT = Path(__file__).parent / "stock_script.py"
PACKAGE = ROOT / "python" / "src"


def evenstep_run(*arguments: str, path: Sequence[Path] = (), expects: int = 0) -> str:
    """Runs the command, and returns what it prints."""
    paths = os.pathsep.join(map(str, [*path, PACKAGE]))
    environ = {**clean_environment(), "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "evenstep", "run", *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == expects, done.stderr
    return done.stdout + done.stderr


def one_process(batches: Sequence[Sequence[int]]) -> list[Any]:
    """Trains the script's model on whole global batches."""
    torch.manual_seed(0)
    x = torch.randn(60, 6, dtype=torch.float64)
    y = x[:, :1] * x[:, 1:2]
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for indices in batches:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(x[indices]), y[indices]).backward()
        optimizer.step()
    return [at.detach() for at in net.parameters()]


def test_an_unchanged_script_equals_one_process_with_uneven_batches(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    told = evenstep_run("--plan", "3,1", "--", *torchrun, str(SCRIPT), str(tmp_path))
    assert "balancing from iteration 6 on" in told

    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert (first["sizes"], second["sizes"]) == ([4] * 6 + [6, 3] + [6] * 7 + [3], [4] * 6 + [2, 1] + [2] * 7 + [1])

    # The samples of iteration i are the batches i of the stock samplers.
    batches = []
    for epoch in range(2):
        generator = torch.Generator().manual_seed(5 + epoch)
        order = torch.randperm(60, generator=generator).tolist()
        batches += [order[at : at + 8] for at in range(0, 60, 8)]
    for found, wanted in zip(first["parameters"], one_process(batches), strict=True):
        torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), wanted, rtol=0, atol=1e-12)


def test_another_sitecustomize_is_run_and_a_process_without_torch_is_untouched(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.found = len(sys.meta_path)\n")
    code = (
        "import sys; import sitecustomize; assert sitecustomize.__file__.startswith(sys.argv[1]); "
        "print(len(sys.meta_path) - sys.found, [name for name in sys.modules if 'evenstep' in name or name == 'torch'])"
    )
    told = evenstep_run("--watch", "--", sys.executable, "-c", code, str(tmp_path), path=[tmp_path])
    assert told == "1 []\n"


def test_errors_name_the_value() -> None:
    assert "the command is missing" in evenstep_run("--plan", "1,2", expects=1)
    assert "cannot start no-such-program" in evenstep_run("--", "no-such-program", expects=127)
    assert "Permission denied" in evenstep_run("--", str(SCRIPT), expects=126)
    assert "'2,0': must be whole numbers above 0" in evenstep_run("--plan", "2,0", "--", "true", expects=2)
