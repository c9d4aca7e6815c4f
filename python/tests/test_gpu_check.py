"""`scripts/gpu-check` on CPUs: each check that needs no GPU runs, and none stops the others."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from gpu_check import test_checks
from gpu_check.context import Context
from gpu_check.machine import Machine
from programs import ROOT
from ranks import run_script

CHECKS = [name.removeprefix("test_") for name in vars(test_checks) if name.startswith("test_")]
#: The checks that CPUs cannot run; the trainer is only built with libtorch.
NEED_GPU = {"identity", "agent"}
MAY_BE_MISSING = {"trainer"}
#: The checks whose ranks torchrun restarts.
RESTARTED = {"memory", "killed"}

#: Longer than any check on a busy machine, in seconds.
DEADLINE_S = 600

#: A name of nvidia-smi.
UUID = "GPU-00000000-0000-0000-0000-000000000000"


def gpu_check(folder: Path, *options: str, **variables: str) -> tuple[int, dict[str, Any], str]:
    """Returns the status, the results by check, and the output."""
    command = [str(ROOT / "scripts" / "gpu-check"), *options]
    environ = {**os.environ, "PYTHON": sys.executable, "TMPDIR": str(folder), **variables}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    path = folder / "gpu-check.json"
    told = json.loads(path.read_text())["checks"] if path.exists() else []
    return done.returncode, {check["name"]: check for check in told}, done.stdout + done.stderr


def test_without_a_gpu_nothing_runs(tmp_path: Path) -> None:
    status, checks, said = gpu_check(tmp_path)
    if json.loads((tmp_path / "gpu-check.json").read_text())["machine"]["gpus"]:
        pytest.skip("this machine has a GPU: run scripts/gpu-check itself")
    assert status == pytest.ExitCode.NO_TESTS_COLLECTED, said
    assert list(checks) == CHECKS
    assert {check["state"] for check in checks.values()} == {"not applicable"}
    assert all(check["said"] for check in checks.values())


def wheel_of(folder: Path, *programs: Path) -> Path:
    """Returns a wheel with the package, which leaves a mark when it is imported, and with programs."""
    wheel = folder / "evenstep-1.0-cp310-abi3-manylinux_2_28_x86_64.whl"
    package = ROOT / "python" / "src" / "evenstep"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in [*package.rglob("*.py"), *package.glob("*.so")]:
            mark = f"\nopen({str(folder / 'imported')!r}, 'w').close()\n" if path == package / "__init__.py" else ""
            archive.writestr(str(path.relative_to(package.parent)), path.read_bytes() + mark.encode())
        for path in programs:
            script = f'#!/bin/sh\n: > "{folder}/{path.name}"\nexec "{path}" "$@"\n'
            archive.writestr(f"evenstep-1.0.data/scripts/{path.name}", script)
    return wheel


def test_checks_of_a_wheel_run_under_torchrun(predictor_binary: Path, agent_binary: Path, tmp_path: Path) -> None:
    wheel = wheel_of(tmp_path, predictor_binary, agent_binary)
    options = (f"--wheel={wheel}", "--device=cpu", "-k", " or ".join(RESTARTED), f"--deadline-s={DEADLINE_S}")
    status, checks, said = gpu_check(tmp_path, *options)
    assert set(checks) == RESTARTED, said
    for check in checks.values():
        assert check["state"] == "passed", check["said"]
        assert check["numbers"]["restarts"] == 1
    assert status == 0, said
    assert all((tmp_path / mark).exists() for mark in ("imported", predictor_binary.name, agent_binary.name))


def test_a_wheel_without_programs_is_an_error(tmp_path: Path) -> None:
    status, _, said = gpu_check(tmp_path, f"--wheel={wheel_of(tmp_path)}")
    assert status == pytest.ExitCode.USAGE_ERROR
    assert "is no wheel with programs" in said


class Forked(Context):
    """Ranks of a process that has loaded torch. torchrun would load it three times for each check."""

    def run_ranks(self, check: str, *, restarts: int = 0) -> list[Any]:
        assert not restarts
        script, environ = ROOT / "python" / "gpu_check" / "ranks.py", {**os.environ, **self.rank_environ()}
        run_script(script, check, output=self.folder / "said", environ=environ, patience_s=DEADLINE_S)
        return self.results()


@pytest.mark.parametrize("name", [name for name in CHECKS if name not in NEED_GPU | RESTARTED])
@pytest.mark.usefixtures("home")
def test_a_check_passes_on_cpus(name: str, tmp_path: Path) -> None:
    told: dict[str, Any] = {}
    try:
        vars(test_checks)[f"test_{name}"](Forked(Machine(), "cpu", tmp_path, told.__setitem__))
    except pytest.skip.Exception:
        assert name in MAY_BE_MISSING
        raise
    assert told["said"]


#: Checks that cannot have an outcome, between two that have one.
BROKEN = """
import os, subprocess, sys, time
import pytest

pytestmark = pytest.mark.gpu

@pytest.mark.gpu(deadline_s=5)
def test_hangs():
    sleep = [sys.executable, "-c", "import time; time.sleep(3600)"]
    subprocess.Popen(sleep, start_new_session=True)
    subprocess.run(sleep)

def test_crashes():
    print("Error: of the driver", file=sys.stderr, flush=True)
    os.abort()

def test_fails(context):
    context.tell("one GPU", gpus=1)
    raise ValueError("unknown GPU")

def test_passes(context):
    context.tell("two GPUs")

def test_needs_more():
    pytest.skip("one GPU")
"""


def test_a_broken_check_stops_no_other(tmp_path: Path) -> None:
    path = tmp_path / "test_broken.py"
    path.write_text(BROKEN)
    options = (str(path), "--device=cpu", f"--deadline-s={DEADLINE_S}", "-k", "test_broken")
    status, checks, said = gpu_check(tmp_path, *options)
    assert {name: (check["state"], check["said"]) for name, check in checks.items()} == {
        "hangs": ("failed", "no result within 5 s"),
        "crashes": ("failed", "ended with status -6: Error: of the driver"),
        "fails": ("failed", "one GPU; ValueError: unknown GPU"),
        "passes": ("passed", "two GPUs"),
        "needs_more": ("not applicable", "one GPU"),
    }, said
    assert checks["fails"]["numbers"] == {"gpus": 1}
    assert status == pytest.ExitCode.TESTS_FAILED
    left = [path for path in Path("/proc").glob("[0-9]*") if str(tmp_path) in _environ(path)]
    assert not left, "it has processes"


def _environ(process: Path) -> str:
    try:
        return (process / "environ").read_text(errors="replace")
    except OSError:
        return ""


#: An nvidia-smi whose GPU has the values of the fake driver.
SMI = f"""#!/bin/sh
case $* in
*temperature*) echo '{UUID}, CELSIUS, 300.00, 1410, 1593' ;;
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
    told: dict[str, Any] = {}
    context = Context(Machine(listed=[UUID]), "cuda", tmp_path, told.__setitem__)
    smi = tmp_path / "nvidia-smi"
    smi.touch(0o755)
    smi.write_text(SMI.replace("CELSIUS", "60"))
    test_checks.test_agent(context)
    assert told["said"] == "4 readings of 1 GPUs compared"
    smi.write_text(SMI.replace("CELSIUS", "90"))
    with pytest.raises(AssertionError, match="nvidia-smi has 90"):
        test_checks.test_agent(context)
