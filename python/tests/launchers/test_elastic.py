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
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import records
from programs import PATIENCE_S, ROOT, clean_environment, fetch_json

ELASTIC = ROOT / "python" / "examples" / "elastic.py"
PACED = Path(__file__).parent / "paced.py"

#: Number of times that processes or launchers are killed.
KILLS = 10

#: Time limit for the next checkpoint: torchrun notices a dead node after 15 s, and processes load torch.
CHECKPOINT_S = 3 * PATIENCE_S


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
            *(f"--rdzv-conf=is_host={int(node == 0)},last_call_timeout=2", "--local-addr=127.0.0.1"),
            *(str(PACED), str(ELASTIC), str(self.folder)),
        ]
        # As on a separate node.
        environ = {**self.environ, "SLURMD_NODENAME": f"node-{node}"}
        with (self.folder / "output").open("ab") as output:
            self.running[node] = subprocess.Popen(
                command, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

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


def until_checkpoint(nodes: Nodes, iteration: int) -> int:
    """Waits for a checkpoint after this iteration and returns its iteration; the last one if the run has ended."""
    deadline = time.monotonic() + CHECKPOINT_S
    while (newest := max(records.losses(nodes.said()), default=0)) <= iteration:
        assert time.monotonic() < deadline, f"no checkpoint after iteration {iteration}: {nodes.said()}"
        assert nodes.running[0].poll() is None, nodes.said()
        time.sleep(0.05)
    return newest


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
        "EVENSTEP_HOME": str(tmp_path / "home"),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    started = Nodes(environ, tmp_path / "checkpoints", port)
    try:
        yield started
    finally:
        started.end()


def test_killed_processes_and_launchers_come_back(nodes: Nodes, predictor: str, tmp_path: Path) -> None:
    nodes.environ["EVENSTEP_SERVER"] = predictor
    nodes.start(0)
    nodes.start(1)
    draw, newest = random.Random(7), 0  # noqa: S311  # Not for secrets.
    for number in range(KILLS):
        newest = until_checkpoint(nodes, newest)
        # Every second time the launcher dies too, as if its node died. A new one comes at once.
        launcher = number % 2 == 1
        node = 1 if launcher else draw.choice([0, 1])
        nodes.kill(node, launcher=launcher)
        if launcher:
            nodes.start(node)
    assert nodes.running[0].wait(3 * CHECKPOINT_S) == 0, nodes.said()
    said, computed = nodes.said(), records.read(tmp_path / "records")
    records.check_samples(computed)
    [identity] = {record.job for record in computed}
    assert fetch_json(f"{predictor}/v1/jobs/{identity}")["next_iteration"] >= records.ITERATIONS
    assert {record.ranks for record in computed} >= {2}
    assert len({record.group for record in computed}) > KILLS / 2
    assert re.search(r"iteration 190: loss", said)

    # An undisturbed run has the same losses.
    alone = Nodes({**nodes.environ, "EVENSTEP_SERVER": "off", "PACES": '{"default": 0}'}, tmp_path / "home", nodes.port)
    alone.folder.mkdir(exist_ok=True)
    alone.environ["RECORDS"] = str(alone.folder)
    alone.start(0)
    try:
        assert alone.running[0].wait(CHECKPOINT_S) == 0, alone.said()
    finally:
        alone.end()
    records.check_losses(said, alone.said())
