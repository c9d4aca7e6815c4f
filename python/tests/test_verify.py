"""`evenstep verify` on small scripts: correct ones, and scripts with one error each."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenstep._native import Plan
from evenstep.errors import SettingError
from evenstep.samples.shares import without_empty
from evenstep.verify import Verdict, device, verify
from evenstep.verify.recording.items import checksum
from evenstep.verify.recording.plans import batches, default_plans, parse_plan
from evenstep.verify.recording.record import difference
from programs import clean_environment
from ranks import run_ranks

#: A correct script, without a seed for its parameters. Its last line runs only if the process is not ended before.
RIGHT = """
import sys, torch, torch.distributed as dist
from pathlib import Path
from torch.nn.parallel import DistributedDataParallel
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset
import evenstep

dist.init_process_group("gloo")
generator = torch.Generator().manual_seed(5)
x = torch.randn(205, 8, generator=generator, dtype=torch.float64)
dataset = TensorDataset(x, torch.sin(x @ torch.randn(8, 3, generator=generator, dtype=torch.float64)))
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)).double()
job = evenstep.init()
loader = job.loader(dataset, global_batch=16)
model = job.wrap(DistributedDataParallel(net))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
Path(sys.argv[1]).write_text("the end")
"""

WRAP = "job.wrap(DistributedDataParallel(net))"
LOSS = "mse_loss(model(x), y)"
LOADER = "job.loader(dataset, global_batch=16)"


def script(folder: Path, *changes: tuple[str, str]) -> Path:
    """Writes the correct script with changes."""
    text = RIGHT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = folder / "train.py"
    path.write_text(text)
    return path


def verified(path: Path, **options: Any) -> Verdict:
    """Returns the verdict from a process that has loaded PyTorch and has no threads."""
    verdict: Verdict = run_ranks(1, _verify, str(path), [str(path.with_name("end"))], options)[0]
    print(verdict.text())
    return verdict


def _verify(_rank: int, path: str, arguments: list[str], options: dict[str, Any]) -> Verdict:
    return verify(path, arguments, **options)


def status(verdict: Verdict, name: str) -> str:
    """Returns the status of a check."""
    return next((check.status for check in verdict.checks if check.name == name), "absent")


def advice(verdict: Verdict, name: str) -> str:
    """Returns the advice of a check."""
    return next(check.advice for check in verdict.checks if check.name == name)


def test_a_right_script_agrees_and_does_not_come_to_its_end(tmp_path: Path) -> None:
    # Seven iterations of the first epoch, and six of the second one: code after the loop does not run.
    verdict = verified(script(tmp_path), steps=13)
    assert verdict.result == "agree"
    assert verdict.exit_status == 0
    assert verdict.tolerance == 1e-12
    assert verdict.difference is not None
    assert 0 < verdict.difference <= 1e-14
    assert "12/3/1" in verdict.checks[0].found
    assert "1/12/3" in verdict.checks[0].found, "no rank stays without samples"
    assert not (tmp_path / "end").exists()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(
            [
                (LOADER, LOADER.replace(")", ", accumulate=2, drop_last=True, num_workers=2)")),
                ("for x, y in loader:", "for at, (x, y) in enumerate(loader):"),
                ("optimizer.zero_grad()", "at % 2 or optimizer.zero_grad()"),
                (f"{LOSS}.backward()", f"({LOSS} / 2).backward()"),
                ("        optimizer.step()", "        at % 2 and optimizer.step()"),
                (WRAP, "job.wrap(DistributedDataParallel(net, gradient_as_bucket_view=True))"),
            ],
            id="accumulation",
        ),
        pytest.param([(WRAP, "DistributedDataParallel(net)"), (LOSS, f"job.scale({LOSS})")], id="scale"),
        pytest.param(
            [
                ("optim.SGD", "optim.AdamW"),
                (", momentum=0.9", ""),
                ("mse_loss\n", "mse_loss\nfrom torch.nn.utils import clip_grad_norm_\n"),
                ("optimizer.step()", "clip_grad_norm_(net.parameters(), 0.01); optimizer.step()"),
            ],
            id="clipping, Adam",
        ),
        pytest.param(
            [
                (LOADER, LOADER.replace("16", "8 * dist.get_world_size()")),
                ("evenstep.init()", "evenstep.init(plan=[8] * dist.get_world_size())"),
            ],
            id="another plan for each number of processes",
        ),
        pytest.param(
            [
                (LOADER, "job.steps(dataset, global_batch=16, model=model, tail=0.3, min_chunk=2)"),
                (WRAP, "DistributedDataParallel(net)"),
                ("for x, y in loader:", "for step in loader:"),
                (f"        {LOSS}.backward()", f"        for x, y in step:\n            {LOSS}.backward()"),
                ("model = DistributedDataParallel(net)\n", ""),
                ("loader = job", "model = DistributedDataParallel(net)\nloader = job"),
            ],
            id="hedged steps",
        ),
        pytest.param(
            [
                (f"{LOSS}.backward()\n        optimizer.step()", "optimizer.step(lambda: closure(x, y))"),
                ("for epoch", "def closure(x, y):\n    mse_loss(model(x), y).backward()\n    return 0.0\nfor epoch"),
            ],
            id="closure",
        ),
    ],
)  # fmt: skip
def test_what_people_do_agrees(tmp_path: Path, changes: list[tuple[str, str]]) -> None:
    verdict = verified(script(tmp_path, *changes))
    assert verdict.result == "agree"
    assert {check.status for check in verdict.checks} == {"ok"}
    samples = next(check.found for check in verdict.checks if check.name == "contents")
    assert int(samples.split()[0]) >= 80, "96 of two epochs, also in worker processes"


@pytest.mark.parametrize(
    ("changes", "check", "hint"),
    [
        pytest.param([(WRAP, 'job.wrap(DistributedDataParallel(net), loss="sum")')], "gradients", "sum", id="no sum"),
        pytest.param([(LOSS, 'mse_loss(model(x), y, reduction="sum")')], "gradients", "sum", id="no mean"),
        pytest.param([(WRAP, "net"), (LOSS, f"job.scale({LOSS})")], "ranks", "Distributed", id="no averaging"),
        pytest.param(
            [(LOADER, "job.loader(torch.utils.data.random_split(dataset, [160, 45])[0], global_batch=16)")],
            "contents", "random_split", id="another split on each rank",
        ),
        pytest.param(
            [("torch.nn.Tanh()", "torch.nn.BatchNorm1d(16).double()"), ("=16", "=32")],
            "gradients", "(1)", id="batch norm",
        ),
        pytest.param(
            [
                ("for x, y in loader:", "before = None\n    for batch in loader:"),
                ("        optimizer.zero", "        (x, y), before = before or batch, batch\n        optimizer.zero"),
            ],
            "gradients", "job.step", id="reading ahead",
        ),
        pytest.param(
            [("evenstep.init()", "None"), (LOADER, "[dataset[:16]] * 9"), (WRAP, "net")], "lines", "init", id="no init"
        ),
        pytest.param([(LOADER, "[dataset[:16]] * 9"), (WRAP, "net")], "lines", "job.loader", id="no loader"),
    ],
)  # fmt: skip
def test_a_wrong_script_differs_and_is_told_why(
    tmp_path: Path, changes: list[tuple[str, str]], check: str, hint: str
) -> None:
    verdict = verified(script(tmp_path, *changes), steps=3)
    assert verdict.result == "differ"
    assert verdict.exit_status == 1
    assert status(verdict, check) == "failed"
    assert hint in advice(verdict, check)


def test_what_is_random_is_not_blamed_and_plain_leaves_it_out(tmp_path: Path) -> None:
    seeded = script(
        tmp_path,
        ("torch.nn.Tanh()", "torch.nn.Dropout(0.3), torch.nn.BatchNorm1d(16).double()"),
        ("net =", "torch.manual_seed(7)\nnet ="),
        ("=16", "=32"),
    )
    verdict = verified(seeded, steps=2)
    assert verdict.result == "unknown"
    assert verdict.exit_status == 2
    assert status(verdict, "gradients") == "warning"
    assert "(1)" in advice(verdict, "repeatable")
    assert verified(seeded, steps=2, plain=True).result == "agree"


def test_random_augmentation_is_told_from_a_split(tmp_path: Path) -> None:
    noisy = (
        "class Noisy(TensorDataset):\n"
        "    def __getitem__(self, index):\n"
        "        return self.tensors[0][index] + torch.rand(8), self.tensors[1][index]\n"
        "dataset = Noisy"
    )
    verdict = verified(script(tmp_path, ("dataset = TensorDataset", noisy)), steps=2)
    assert verdict.result == "unknown"
    assert status(verdict, "contents") == "warning"


def test_a_rate_that_depends_on_the_number_of_processes_is_seen(tmp_path: Path) -> None:
    verdict = verified(script(tmp_path, ("lr=0.05", "lr=0.05 * dist.get_world_size()")), steps=2)
    assert verdict.result == "agree"
    assert status(verdict, "updates") == "warning"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param([(LOSS, "(1 / 0)")], "ZeroDivisionError", id="an error"),
        pytest.param([(WRAP, "DistributedDataParallel(net)")], "neither job.wrap nor job.scale", id="no wrap"),
        pytest.param([(LOSS, f"job.scale({LOSS})")], "job.wrap and job.scale both weight", id="weighted twice"),
        pytest.param([("for epoch", "raise SystemExit('no such data')\nfor epoch")], "no such data", id="an exit"),
    ],
)  # fmt: skip
def test_a_script_that_fails_is_quoted(tmp_path: Path, changes: list[tuple[str, str]], said: str) -> None:
    verdict = verified(script(tmp_path, *changes))
    assert verdict.result == "failed"
    assert verdict.exit_status == 2
    assert said in verdict.output


def test_a_script_that_never_steps_cannot_be_compared(tmp_path: Path) -> None:
    verdict = verified(script(tmp_path, ("        optimizer.step()", "")))
    assert verdict.result == "failed"
    assert status(verdict, "optimizer") == "failed"
    assert (tmp_path / "end").exists(), "nothing ended it"


def test_a_script_that_waits_for_ever_says_where(tmp_path: Path) -> None:
    waits = "if dist.get_rank() == 1:\n    import threading\n    threading.Event().wait()\nfor epoch"
    verdict = verified(script(tmp_path, ("for epoch", waits)), timeout_s=15.0)
    assert verdict.result == "failed"
    assert "train.py" in verdict.output
    assert "threading" in verdict.output, "the waiting rank, not only the ranks that wait for it"


def test_the_command_takes_a_script_with_its_arguments(tmp_path: Path) -> None:
    path = script(tmp_path, (WRAP, "job.wrap(DistributedDataParallel(net), loss=sys.argv[2])"))
    environ = {**clean_environment(), "PYTHONPATH": ":".join(sys.path), "EVENSTEP_SERVER": "http://127.0.0.1:1"}
    command = [
        sys.executable,
        "-m",
        "evenstep",
        "verify",
        "--json",
        "--plan=3,1",
        "--steps=2",
        str(path),
        "end",
        "--sum",
    ]
    path.write_text(path.read_text().replace("loss=sys.argv[2]", "loss=sys.argv[2].strip('-')"))
    ended = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    print(ended.stdout, ended.stderr)
    assert ended.returncode == 1
    told = json.loads(ended.stdout)
    assert told["result"] == "differ"
    assert told["worst"][0]["difference"] > 0.1
    assert "12/4" in told["checks"][0]["found"]


def test_a_function_is_verified(tmp_path: Path) -> None:
    path = script(tmp_path)
    lines = path.read_text().splitlines()
    (tmp_path / "training.py").write_text("def main():\n" + "".join(f"    {line}\n" for line in lines))
    verdict: Verdict = run_ranks(1, _verify_in, str(tmp_path), "training:main")[0]
    assert verdict.result == "agree", verdict.text()


def _verify_in(_rank: int, folder: str, name: str) -> Verdict:
    import os  # noqa: PLC0415  # Needed in this process only.

    os.chdir(folder)
    sys.modules.pop("training", None)
    return verify(name, ["end"], ranks=2, steps=2)


def test_settings_that_break_a_rule_are_refused(tmp_path: Path) -> None:
    path = script(tmp_path)
    for options in (
        {"ranks": 1},
        {"steps": 0},
        {"plans": [[1, 2]], "ranks": 3},
        {"plans": [[0, 0]]},
        {"device": "tpu"},
        {"micro_batch": 0},
    ):
        with pytest.raises(SettingError):
            verify(path, **options)
    with pytest.raises(SettingError, match=r"nowhere\.py"):
        verify(tmp_path / "nowhere.py")
    for text in ("", "1,a", "-1,2", "0,0"):
        with pytest.raises(SettingError):
            parse_plan(text)


@pytest.mark.parametrize(
    ("build", "gpus", "said"),
    [
        (None, 0, "was built without CUDA"),
        ("12.8", 0, "finds no GPU (CUDA_VISIBLE_DEVICES: 9)"),
        ("12.8", 1, "use --device cpu"),
        ("12.8", 2, "3 ranks need one GPU each, but there are 2: use --ranks 2"),
        ("12.8", 3, ""),
    ],
)
def test_missing_gpus_are_named(monkeypatch: pytest.MonkeyPatch, build: str | None, gpus: int, said: str) -> None:
    monkeypatch.setattr(torch.version, "cuda", build)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "9")
    monkeypatch.setattr(device, "_gpus", lambda: gpus)
    problem = device.check_device("cuda", 3)
    assert said in problem if said else not problem


@given(st.integers(2, 9), st.integers(1, 200), st.integers(1, 4))
def test_default_plans_are_uneven_and_change(world_size: int, quanta: int, accumulate: int) -> None:
    plans = default_plans(world_size)
    size = quanta * accumulate
    for iteration in range(2 * len(plans)):
        planned = batches(plans, iteration, size, accumulate)
        assert sum(planned) == size
        assert all(batch % accumulate == 0 for batch in planned)
    if quanta >= 8 * world_size:
        all_planned = [batches(plans, iteration, size, accumulate) for iteration in range(len(plans))]
        assert any(0 in planned for planned in all_planned)
        assert all(len(set(planned)) > 1 for planned in all_planned)
        assert len({tuple(planned) for planned in all_planned}) >= 4
        # With means, ranks without samples get some.
        filled = [without_empty(Plan.of(planned), None, accumulate, ()).batches for planned in all_planned]
        assert all(one != other for one, other in pairwise([*filled, filled[0]]))


def test_checksums_are_of_what_is_seen() -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    assert checksum(whole[:, 1]) == checksum(whole[:, 1].clone())
    assert checksum(whole[0]) != checksum(whole[1])
    assert checksum({"x": whole[0], "y": [1, None]}) == checksum({"x": whole[0].clone(), "y": [1, None]})
    assert checksum({"x": 1}) != checksum({"y": 1})
    assert checksum(lambda: 0) == checksum(lambda: 1), "objects that cannot be compared"
    assert checksum(torch.tensor(3).bfloat16()) != checksum(torch.tensor(4).bfloat16())


def test_differences_are_relative_to_the_largest_entry() -> None:
    one = torch.tensor([1.0, -4.0])
    assert difference(one, one) == 0.0
    assert difference(one + torch.tensor([0.0, 1.0]), one) == 0.25
    assert difference(one + 1, one, floor=8.0) == 0.125
    assert difference(one, torch.zeros(2)) == float("inf")
    assert difference(one, torch.zeros(3)) == float("inf")
    assert difference(one * torch.nan, one) == float("inf")
    assert difference(one * torch.nan, one * torch.inf) == 0.0, "it overflows in both"
