"""Ranks and agents in different containers: separate process ids, networks and file systems (Linux namespaces)."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evenstep.errors import SettingError
from evenstep.measure.drivers import Drivers
from evenstep.settings.settings import Settings
from programs import PATIENCE_S, Program, clean_environment, fetch_json, sampling

#: Separate process ids, network and file systems. Without --mount-proc, /proc would still show the outer process ids.
CONTAINER = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--net"]

READ = """
import json, os, sys
from evenstep.measure.drivers import Drivers
drivers = Drivers(sys.argv[1], timeout_s=30.0)
drivers.read()
x = sum(range(3_000_000))
print(json.dumps({"pid": os.getpid(), "readings": drivers.read(), "source": drivers.source}), flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _has_namespaces() -> None:
    if subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system does not allow new namespaces: they need root and unshare(1)")


def outer_pids(inner: int) -> list[int]:
    """Returns the processes that have the process id `inner` in a PID namespace below this one."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            ids = next(line for line in status.read_text().splitlines() if line.startswith("NSpid:")).split()[1:]
        except (OSError, StopIteration):
            continue
        if len(ids) > 1 and int(ids[-1]) == inner:
            found.append(int(ids[0]))
    return found


def test_a_rank_in_a_container_is_read_by_the_agent_of_its_node(agent_binary: Path, tmp_path: Path) -> None:
    socket = tmp_path / "agent.sock"
    with sampling(agent_binary, tmp_path, "off", f"--socket={socket}") as agent:
        rank = subprocess.Popen(
            [*CONTAINER, sys.executable, "-c", READ, f"unix://{socket}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environment(),
        )
        with rank:
            assert rank.stdout
            told = json.loads(rank.stdout.readline())
            assert told["pid"] == 1, "a process of its own PID namespace"
            assert told["source"] == "agent"
            assert told["readings"]["own_cpu"] > 0.1, "the readings are of the process that computed"
            # Its process id outside of the container.
            watched = fetch_json(f"{agent}/status")["watched_pids"]
            assert len(watched) == 1
            assert watched[0] in outer_pids(1)
            rank.communicate(timeout=PATIENCE_S)
        # Loopback does not reach the agent from there, so the rank reads /proc itself.
        alone = subprocess.run(
            [*CONTAINER, sys.executable, "-c", READ, agent],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, env=clean_environment(),
        )  # fmt: skip
        assert json.loads(alone.stdout)["source"] == "proc"


def test_an_agent_that_cannot_see_the_process_names_the_rule(agent_binary: Path, tmp_path: Path) -> None:
    socket = tmp_path / "agent.sock"
    flags = ["--server=off", "--listen=127.0.0.1:0", "--node=node-a", f"--socket={socket}"]
    program = Program([*CONTAINER, str(agent_binary), *flags])
    try:
        program.line(lambda line: line if line.startswith("{") else None)
        drivers = Drivers(f"unix://{socket}")
        drivers.read()
        assert drivers.source == "proc"
        answer = subprocess.run(
            ["curl", "--silent", "--unix-socket", str(socket), "http://localhost/sample?pid=self"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if answer.returncode == 0:
            assert "hostPID" in json.loads(answer.stdout)["detail"]
    finally:
        program.kill()


def test_an_agent_that_starts_later_is_found(agent_binary: Path, tmp_path: Path) -> None:
    """A killed agent leaves its socket behind; the next one replaces it, and the rank finds that one."""
    now = 0.0
    drivers = Drivers(f"unix://{tmp_path / 'agent.sock'}", timeout_s=PATIENCE_S, clock=lambda: now)
    drivers.read()
    assert drivers.source == "proc"
    for _ in range(2):
        with sampling(agent_binary, tmp_path, "off", f"--socket={tmp_path / 'agent.sock'}"):
            deadline = time.monotonic() + PATIENCE_S
            while drivers.source != "agent" and time.monotonic() < deadline:
                now += 60
                drivers.read()
            assert drivers.source == "agent"
        now += 60
        drivers.read()
        assert drivers.source == "proc"


def test_only_one_agent_has_a_socket(agent_binary: Path, tmp_path: Path) -> None:
    socket = tmp_path / "agent.sock"
    (tmp_path / "file").write_text("kept")
    with sampling(agent_binary, tmp_path, "off", f"--socket={socket}"):
        for path, rule in ((socket, "another process listens there"), (tmp_path / "file", "not a socket")):
            second = subprocess.run(
                [agent_binary, "--server=off", "--listen=127.0.0.1:0", f"--socket={path}"],
                capture_output=True, text=True, check=False, env=clean_environment(),
            )  # fmt: skip
            assert second.returncode == 1
            assert f"--socket {path}: " in second.stderr
            assert rule in second.stderr
    assert (tmp_path / "file").read_text() == "kept"


def test_workers_in_containers_name_their_node() -> None:
    environ = {"EVENSTEP_NODE": "gpu-7", "LOCAL_RANK": "1"}
    assert Settings.read(environ, "job-node-0-0").worker == "gpu-7/job-node-0-0/1"
    assert Settings.read(environ, "gpu-7").worker == "gpu-7/1"
    assert Settings.read({"LOCAL_RANK": "1"}, "gpu-7").worker == "gpu-7/1"


def test_a_socket_needs_an_absolute_path() -> None:
    with pytest.raises(SettingError, match=r"unix:///run/evenstep/agent\.sock"):
        Drivers("unix://agent.sock")
