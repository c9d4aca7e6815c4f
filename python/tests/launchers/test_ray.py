"""The example for Ray Train, on a real cluster of two nodes on this machine."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import records
from programs import ROOT, clean_environment, fetch_json, serving

FOLDER = Path(__file__).parent

#: Time limit of the whole run, in seconds. The script has one for each of its waits.
RAY_S = 1500.0

#: Number of epochs of `ray_elastic.py`.
EPOCHS = 20


@pytest.fixture
def python() -> str:
    """The Python with Ray, which scripts/python ray installs."""
    path = os.environ.get("EVENSTEP_TESTS_RAY_PYTHON") or str(ROOT / "python" / ".venv-ray" / "bin" / "python")
    if not Path(path).exists():
        pytest.skip("Ray is not installed: run scripts/python ray")
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("Ray's cluster needs a network namespace: run as root, with unshare (Debian: util-linux)")
    return path


def run(python: str, folder: Path, environ: dict[str, str]) -> str:
    """Returns the output of the run; nothing of the cluster is left afterwards."""
    # Without other interfaces, Ray listens on loopback addresses only. All its processes end with the first one of the
    # namespace for process ids.
    inner = 'ip link set lo up && exec "$@"'
    command = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", inner, "-"]
    output = folder / "output"
    with output.open("ab") as file:
        process = subprocess.Popen(
            [*command, python, str(FOLDER / "ray_elastic.py"), str(folder)],
            env={**clean_environment(), **environ},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
        try:
            process.wait(RAY_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    said = output.read_text()
    assert process.returncode == 0, said
    return said


def undisturbed(environ: dict[str, str], folder: Path) -> str:
    """Returns the output of the same training by one process of torchrun, every 20th loss of it."""
    alone = folder / "alone"
    alone.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", str(FOLDER / "paced.py")]
    told = subprocess.run(
        [*command, str(ROOT / "python" / "examples" / "elastic.py"), str(alone), str(EPOCHS)],
        env={
            **clean_environment(),
            **environ,
            "EVENSTEP_SERVER": "off",
            "PACES": '{"default": 0}',
            "RECORDS": str(alone),
        },
        capture_output=True,
        text=True,
        timeout=RAY_S,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    lines = (re.match(r"iteration (\d+):", line) for line in told.stdout.splitlines())
    return "\n".join(line.string for line in lines if line and int(line[1]) % 20 == 0)


def test_workers_come_and_go(python: str, predictor_binary: Path, agent_binary: Path, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "evenstep-predictor").symlink_to(predictor_binary)
    (programs / "evenstep-agent").symlink_to(agent_binary)
    source = ROOT / "python"
    environ = {
        "PATH": os.pathsep.join([str(programs), str(Path(python).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(source / "src"), str(source / "examples")]),
        # Paths of sockets must be short.
        "RAY_TMPDIR": "/tmp",  # noqa: S108
        "EVENSTEP_HOME": str(tmp_path / "home"),
        "EVENSTEP_OVERHEAD": "1000",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TRAIN_V2_ENABLED": "1",
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "120",
        # Otherwise workers get little of a busy machine.
        "RAY_worker_niceness": "0",
    }
    said = run(python, tmp_path, environ)
    gains = [float(gain) for gain in re.findall(r"batches \d+, \d+, step time [\d.e-]+ s, gain ([\d.]+)x", said)]
    assert max(gains) > 1.2, said
    losses = records.losses(said)
    records.check_losses(said, undisturbed(environ, tmp_path))
    # The predictor of the run has ended with its network. If one worker trained alone for long, without a predictor, a
    # second job follows.
    [store] = (tmp_path / "home").rglob("evenstep.db")
    with serving(predictor_binary, store.parent) as url:
        jobs = [job["job_id"] for job in fetch_json(f"{url}/v1/jobs")["jobs"]]
        told = [fetch_json(f"{url}/v1/jobs/{job}")["next_iteration"] for job in jobs]
    assert len(jobs) <= 2
    assert all(job.startswith("example-") for job in jobs)
    assert max(told) >= max(losses)
