"""torchrun with an elastic number of nodes: processes and whole launchers are killed, and the run stays one job."""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import records
from programs import PATIENCE_S, ROOT, clean_environment, fetch_json

ELASTIC = ROOT / "python" / "examples" / "elastic.py"
PACED = Path(__file__).parent / "paced.py"

#: Number of times that processes or launchers are killed. The run is too short for more than 17.
KILLS = min(int(os.environ.get("EVENSTEP_TESTS_KILLS", "5")), 17)

#: Time limit for the next checkpoint: torchrun notices a dead node after 15 s, and processes load torch.
CHECKPOINT_S = 5 * PATIENCE_S


@dataclass
class Nodes:
    """Launchers of one run, each with one process; the first one has the rendezvous and is never killed."""

    environ: dict[str, str]
    folder: Path
    port: int
    running: dict[int, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def start(self, node: int) -> None:
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes=1:4", "--nproc-per-node=1", "--max-restarts=50"),
            *("--rdzv-id=elastic", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}"),
            *(
                f"--rdzv-conf=is_host={int(node == 0)},last_call_timeout=2,keep_alive_interval=1",
                f"--local-addr=127.0.0.{9 - node}",
            ),
            *(str(PACED), str(ELASTIC), str(self.folder)),
        ]
        # As on a separate node.
        environ = {**self.environ, "SLURMD_NODENAME": f"node-{node}"}
        with (self.folder / "output").open("ab") as output:
            self.running[node] = subprocess.Popen(
                command, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    def allow(self, iteration: int) -> None:
        records.allow(Path(self.environ["ALLOWED"]), iteration)

    def kill(self, node: int, *, launcher: bool) -> None:
        """Kills the process of a node, or its launcher and the process."""
        own = self.running[node]
        for pid in _children(own.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if launcher:
            own.kill()
            own.wait(PATIENCE_S)

    def said(self) -> str:
        return (self.folder / "output").read_text()

    def end(self) -> None:
        for own in self.running.values():
            for pid in [*_children(own.pid), own.pid]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            own.wait(PATIENCE_S)


def _children(parent: int) -> list[int]:
    """Returns the processes that a launcher has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(path.parent.name))
    return found


def until(is_done: Callable[[], bool], nodes: Nodes) -> None:
    deadline = time.monotonic() + CHECKPOINT_S
    while not is_done():
        assert time.monotonic() < deadline, nodes.said()
        time.sleep(0.05)


def until_checkpoint(nodes: Nodes, iteration: int) -> None:
    """Waits for the checkpoint of this iteration, before which the next one waits."""
    until(lambda: iteration in records.losses(nodes.said()) or nodes.running[0].poll() is not None, nodes)
    assert nodes.running[0].poll() is None, nodes.said()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    for folder in ("records", "checkpoints"):
        (tmp_path / folder).mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environ = {
        **clean_environment(),
        "PYTHONPATH": str(ROOT / "python" / "src"),
        "PACES": json.dumps({"node-0": 2e-4, "node-1": 6e-4, "default": 2e-4}),
        "RECORDS": str(tmp_path / "records"),
        # Nothing here depends on the speed of the machine.
        "ALLOWED": str(tmp_path / "allowed"),
        "EVENSTEP_HOME": str(tmp_path / "home"),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        # Otherwise restarted processes read the addresses of dead ones.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    started = Nodes(environ, tmp_path / "checkpoints", port)
    try:
        yield started
    finally:
        started.end()


def test_killed_processes_and_launchers_come_back(nodes: Nodes, predictor: str, tmp_path: Path) -> None:
    nodes.environ["EVENSTEP_SERVER"] = predictor
    nodes.allow(10)
    nodes.start(1)
    nodes.start(0)
    until_checkpoint(nodes, 10)
    # torchrun does not count the restart for a node that joins. It orders nodes by address, so rank 0 moves to it.
    replaced = [pid for node in (0, 1) for pid in _children(nodes.running[node].pid)]
    nodes.start(2)
    until(lambda: not any(Path(f"/proc/{pid}/environ").exists() for pid in replaced), nodes)
    nodes.allow(20)
    until_checkpoint(nodes, 20)
    nodes.kill(2, launcher=True)
    draw = random.Random(7)  # noqa: S311  # Not for secrets.
    for number in range(1, KILLS):
        # Every second time the launcher dies too, as if its node died. A new one comes at once.
        launcher = number % 2 == 1
        node = 1 if launcher else draw.choice([0, 1])
        nodes.allow(20 + 10 * number)
        until_checkpoint(nodes, 20 + 10 * number)
        nodes.kill(node, launcher=launcher)
        if launcher:
            nodes.start(node)
    nodes.allow(records.ITERATIONS)
    until(lambda: nodes.running[0].poll() is not None, nodes)
    assert nodes.running[0].returncode == 0, nodes.said()
    said, computed = nodes.said(), records.read(tmp_path / "records")
    records.check_samples(computed)
    [identity] = {record.job for record in computed}
    # After a node has left for good, the predictor plans nothing until its lease has expired.
    assert fetch_json(f"{predictor}/v1/jobs/{identity}")["next_iteration"] >= 20
    assert {record.ranks for record in computed} >= {2, 3}
    assert len({record.group for record in computed}) > KILLS / 2
    assert re.search(r"iteration 190: loss", said)

    # An undisturbed run has the same losses.
    alone = Nodes({**nodes.environ, "EVENSTEP_SERVER": "off", "PACES": '{"default": 0}'}, tmp_path / "home", nodes.port)
    alone.folder.mkdir(exist_ok=True)
    alone.environ["RECORDS"] = str(alone.folder)
    del alone.environ["ALLOWED"]
    alone.start(0)
    try:
        assert alone.running[0].wait(CHECKPOINT_S) == 0, alone.said()
    finally:
        alone.end()
    records.check_losses(said, alone.said())
