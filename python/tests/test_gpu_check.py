"""`scripts/gpu-check` on CPUs: each check that needs no GPU runs, and none stops the others."""

import importlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from gpu_check import place, runner
from gpu_check.__main__ import NOTHING_RAN
from gpu_check.checks import NAMES, agent
from gpu_check.context import Context, RankError
from gpu_check.machine import Machine
from programs import ROOT
from ranks import run_script

#: The checks that CPUs cannot run; the trainer is only built with libtorch.
NEED_GPU = {"identity", "agent"}
MAY_BE_MISSING = {"trainer"}

#: Width of the first column of the table.
STATE_WIDTH = 15

#: Longer than any check on a busy machine, in seconds.
DEADLINE_S = 600

#: Checks that cannot have an outcome: modules of a folder next to this test.
BROKEN = {
    "hangs": "import subprocess, sys, time\n"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'], start_new_session=True)\n"
    "open('begun', 'w').close()\n"
    "time.sleep(3600)\n",
    "crashes": "import os, sys\nprint('Error: of the driver', file=sys.stderr)\nos.abort()\n",
    "fails": "def check(context):\n    raise ValueError('unknown GPU')\n",
}


def gpu_check(folder: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / "scripts" / "gpu-check"), *options]
    environ = {**os.environ, "PYTHON": sys.executable, **variables}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)


def test_a_dry_run_lists_every_check(tmp_path: Path) -> None:
    done = gpu_check(tmp_path, "--dry-run", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    _, _, *lines = done.stdout.splitlines()
    listed = {line[STATE_WIDTH:].split()[0]: line for line in lines}
    assert list(listed) == list(NAMES)
    for name, line in listed.items():
        assert line.startswith("not applicable" if name in NEED_GPU else "would run") or name in MAY_BE_MISSING, line
    assert not list(tmp_path.iterdir()), "it wrote nothing"


def test_without_a_gpu_nothing_runs(tmp_path: Path) -> None:
    done = gpu_check(tmp_path)
    told = json.loads((tmp_path / "gpu-check.json").read_text())
    if told["machine"]["gpus"]:
        pytest.skip("this machine has a GPU: run scripts/gpu-check itself")
    assert done.returncode == NOTHING_RAN
    assert [check["name"] for check in told["checks"]] == list(NAMES)
    assert {check["state"] for check in told["checks"]} == {"not applicable"}
    assert all(check["said"] for check in told["checks"])


def test_a_check_runs_under_torchrun(predictor_binary: Path, agent_binary: Path, tmp_path: Path) -> None:
    programs = {"EVENSTEP_PREDICTOR": str(predictor_binary), "EVENSTEP_AGENT": str(agent_binary)}
    options = ("--device", "cpu", "--only", "killed", f"--deadline-s={DEADLINE_S}")
    done = gpu_check(tmp_path, *options, **programs)
    told = json.loads((tmp_path / "gpu-check.json").read_text())
    (check,) = told["checks"]
    assert (told["device"], check["name"]) == ("cpu", "killed")
    assert check["state"] == "passed", check["said"]
    assert done.returncode == 0


class Forked(Context):
    """Ranks of a process that has loaded torch. torchrun would load it three times for each check."""

    def run_ranks(self, check: str, *, restarts: int = 0, arguments: Sequence[str] = ()) -> list[Any]:
        script = ROOT / "python" / "gpu_check" / "rank.py"
        (self.folder / "run").mkdir()
        for attempt in range(restarts + 1):
            # torchrun's folder for logs, where restarts find the id of the job.
            error_file = self.folder / "run" / f"attempt_{attempt}" / "0" / "error.json"
            torchrun = {"TORCHELASTIC_RESTART_COUNT": str(attempt), "TORCHELASTIC_ERROR_FILE": str(error_file)}
            environ = {**self.rank_environ(), **torchrun}
            try:
                run_script(
                    script,
                    check,
                    *arguments,
                    output=self.folder / f"attempt-{attempt}",
                    environ=environ,
                    patience_s=DEADLINE_S,
                )
            except AssertionError as error:
                if attempt == restarts:
                    raise RankError(str(error)) from error
            else:
                break
        return [json.loads((self.folder / f"rank-{rank}.json").read_text()) for rank in range(self.ranks)]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in {*NEED_GPU, "killed"}])
@pytest.mark.usefixtures("home")
def test_a_check_passes_on_cpus(name: str, tmp_path: Path) -> None:
    check = importlib.import_module(f"gpu_check.checks.{name}")
    context = Forked(Machine(torch=version("torch")), "cpu", tmp_path)
    if why := check.prevented(context):
        assert name in MAY_BE_MISSING, why
        pytest.skip(f"{name}: {why}")
    outcome = check.check(context)
    assert outcome.state == "passed", outcome.said


@pytest.mark.parametrize(
    ("name", "deadline_s", "said"),
    [
        ("hangs", 5.0, "no result within 5 s"),
        ("crashes", DEADLINE_S, "the check ended with status -6: Error: of the driver"),
        ("fails", DEADLINE_S, "ValueError: unknown GPU"),
    ],
)
def test_a_broken_check_is_an_outcome(name: str, deadline_s: float, said: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text(BROKEN[name])
    context = Context(Machine(), "cpu", tmp_path / "files")
    outcome = runner.run(name, context, place.Place((tmp_path,), ()), deadline_s)
    assert (outcome.state, outcome.said) == ("failed", said)
    left = [path for path in Path("/proc").iterdir() if path.name.isdigit() and str(tmp_path) in _environ(path)]
    assert not left, "it has processes"


def _environ(process: Path) -> str:
    try:
        return (process / "environ").read_text(errors="replace")
    except OSError:
        return ""


def test_a_wheel_is_unpacked_with_its_programs(tmp_path: Path) -> None:
    wheel = tmp_path / "evenstep-1.0-cp310-abi3-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("evenstep/__init__.py", "")
        archive.writestr("evenstep-1.0.data/scripts/evenstep-agent", "#!/bin/sh\necho agent\n")
    found = place.of_wheel(wheel, tmp_path / "wheel")
    environ = found.environ(tmp_path)
    said = subprocess.run(["evenstep-agent"], env=environ, capture_output=True, text=True, check=True).stdout
    assert said == "agent\n"
    assert environ["PYTHONPATH"].split(os.pathsep)[0] == str(tmp_path / "wheel")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("evenstep/__init__.py", "")
    with pytest.raises(ValueError, match="is no wheel with programs"):
        place.of_wheel(wheel, tmp_path / "other")


#: An nvidia-smi whose GPU has the values of the fake driver.
SMI = """#!/bin/sh
case $* in
*temperature*) echo 'GPU-00000000-0000-0000-0000-000000000000, {celsius}, 300.00, 1410, 1593' ;;
*) exit 9 ;;
esac
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="the fake driver needs a C compiler")
def test_the_agents_readings_are_compared(agent_binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the fake driver of the agent's tests."""
    source = ROOT / "agent" / "tests" / "integration" / "support" / "nvml.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "libnvidia-ml.so.1", source], check=True)
    (tmp_path / "script").write_text("gpus 0\n")
    (tmp_path / "evenstep-agent").symlink_to(agent_binary)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("FAKE_NVML_SCRIPT", str(tmp_path / "script"))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    smi = tmp_path / "nvidia-smi"
    for celsius, state, said in ((60, "passed", "4 readings of 1 GPUs agree"), (90, "failed", "nvidia-smi has 90.0")):
        smi.write_text(SMI.format(celsius=celsius))
        smi.chmod(0o755)
        folder = tmp_path / state
        folder.mkdir()
        outcome = agent.check(Context(Machine(), "cuda", folder))
        assert outcome.state == state, outcome
        assert said in outcome.said
