"""A Slurm cluster of two nodes on this machine, on loopback addresses only.

It needs root and Debian's packages munge, slurmctld, slurmd and slurm-client.
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from programs import PATIENCE_S

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "setpriv")

#: Time limit of a job, from its submission to its end, in seconds.
JOB_S = 240.0

#: The configuration of the cluster.
CONFIGURATION = Path(__file__).parent / "slurm.conf.in"


class Cluster:
    """Submits jobs to a running cluster."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._environ = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        for name in [name for name in self._environ if name.startswith(("EVENSTEP_", "TORCHELASTIC_"))]:
            del self._environ[name]

    def run(self, *command: str, **environ: str) -> str:
        """Returns the output of one of Slurm's commands."""
        told = subprocess.run(
            command, env={**self._environ, **environ}, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert told.returncode == 0, f"{command}: {told.stdout}{told.stderr}"
        return told.stdout

    def submit(self, *arguments: str, environ: Mapping[str, str] | None = None) -> "Submitted":
        """Submits a batch script; further variables are for the job."""
        output = self.folder / "log" / f"job-{secrets.token_hex(4)}.out"
        told = self.run("sbatch", "--parsable", f"--output={output}", *arguments, **(environ or {}))
        return Submitted(self, told.split(";")[0].strip(), output)


class Submitted:
    """A job of the cluster."""

    def __init__(self, cluster: Cluster, number: str, output: Path) -> None:
        self.cluster, self.number, self.output = cluster, number, output

    def said(self) -> str:
        return self.output.read_text() if self.output.exists() else ""

    def state(self) -> str:
        """Returns the states of all parts of the job, without repetitions."""
        told = self.cluster.run("scontrol", "--oneliner", "show", "job", self.number)
        return " ".join(sorted({word.partition("=")[2] for word in told.split() if word.startswith("JobState=")}))

    def wait(self, limit_s: float = JOB_S) -> str:
        """Waits for the end of the job and returns its output."""
        deadline = time.monotonic() + limit_s
        while (state := self.state()) != "COMPLETED":
            running = {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "PREEMPTED", "REQUEUED", "COMPLETED"}
            assert set(state.split()) <= running, f"{state}: {self.said()}"
            assert time.monotonic() < deadline, f"{state} after {limit_s} s: {self.said()}"
            time.sleep(0.2)
        return self.said()


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Runs a cluster; skips the test by name if that is impossible here. Nothing of it is left afterwards."""
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    if missing:
        packages = "munge slurmctld slurmd slurm-client"
        pytest.skip(f"Slurm is not installed: no {', '.join(missing)} (Debian: apt-get install {packages})")
    if os.geteuid() != 0:
        pytest.skip("Slurm's daemons start tasks for users: this needs root")
    with TemporaryDirectory(prefix="evenstep-slurm-") as name:
        folder = Path(name)
        # MUNGE requires that all users can reach its socket.
        folder.chmod(0o755)
        with _running(folder) as running:
            yield running


@contextmanager
def _running(folder: Path) -> Iterator[Cluster]:
    for part in ("munge", "state", "n1", "n2", "log"):
        (folder / part).mkdir()
    controller, n1, n2 = _free_ports(3)
    values = {
        "host": socket.gethostname().split(".")[0],
        "folder": folder,
        "controller": controller,
        "n1": n1,
        "n2": n2,
    }
    (folder / "slurm.conf").write_text(CONFIGURATION.read_text().format(**values))
    munge = folder / "munge"
    (munge / "key").write_bytes(secrets.token_bytes(128))
    (munge / "key").chmod(0o600)
    names = {"socket": "munge.socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    running = Cluster(folder)
    with ExitStack() as stack:
        daemons: list[subprocess.Popen[bytes]] = []

        def start(*command: str) -> None:
            daemons.append(stack.enter_context(_daemon(folder, *command)))

        start("munged", "-F", *(f"--{name}={munge / file}" for name, file in names.items()))
        _until((munge / "munge.socket").exists, daemons, folder)
        start("slurmctld", "-D", "-c")
        for node in ("n1", "n2"):
            start("slurmd", "-D", "-N", node)
        stack.callback(_end_jobs, running)
        _until(lambda: _idle_nodes(running) == "2", daemons, folder)
        yield running


def _idle_nodes(running: Cluster) -> str:
    try:
        return running.run("sinfo", "-h", "-p", "train", "-t", "idle", "-o", "%D").strip()
    except AssertionError:
        # The controller does not respond yet.
        return ""


def _end_jobs(running: Cluster) -> None:
    """Ends all jobs, and their processes, which the daemons would leave."""
    try:
        running.run("scancel", "--user=root")
        deadline = time.monotonic() + PATIENCE_S
        while running.run("squeue", "-h").strip() and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        for pid in processes(f"SLURM_CONF={running.folder / 'slurm.conf'}"):
            os.kill(pid, signal.SIGKILL)


def processes(variable: str) -> list[int]:
    """Returns the processes with this variable in their environment, except for this one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        pid = int(path.parent.name)
        with suppress(OSError):
            if pid != os.getpid() and variable.encode() in path.read_bytes().split(b"\0"):
                found.append(pid)
    return found


@contextmanager
def _daemon(folder: Path, name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    # It also ends if this process is killed.
    command = ["setpriv", "--pdeathsig", "TERM", name, *arguments]
    environ = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    with (folder / "log" / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(PATIENCE_S)


def _free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _until(is_done: Callable[[], bool], daemons: Sequence[subprocess.Popen[bytes]], folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_done():
        if time.monotonic() > deadline or any(daemon.poll() is not None for daemon in daemons):
            logs = "".join(path.read_text(errors="replace")[-2000:] for path in (folder / "log").glob("*.log"))
            raise AssertionError(f"the cluster did not start: {logs}")
        time.sleep(0.05)
