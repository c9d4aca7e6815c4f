"""Elastic jobs of real processes, and the comparison of what they trained with one process."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from elastic_worker import BATCH, SAMPLES, Data, flat, parts
from evenstep.samples.order import Order

HERE = Path(__file__).parent
LIMIT_S = 60.0


class Forks:
    """A process that forks workers."""

    def __init__(self) -> None:
        sources = str(Path(__file__).parents[2] / "src")
        environ = {**os.environ, "PYTHONPATH": sources, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        self.process = subprocess.Popen(
            [sys.executable, HERE / "elastic_worker.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={name: value for name, value in environ.items() if name not in ("WORLD_SIZE", "RANK")},
        )

    def ask(self, **what: Any) -> int:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(LIMIT_S)


@dataclass
class Run:
    """One job."""

    forks: Forks | None
    folder: Path
    script: dict[str, Any]
    pids: list[int] = field(default_factory=list)

    def start(self, **script: Any) -> int:
        """Starts a worker."""
        environ = {**self.script["environ"], "RANK": str(len(self.pids))}
        told = {**self.script, **script, "environ": environ}
        assert self.forks
        self.pids.append(self.forks.ask(folder=str(self.folder), script=told))
        return self.pids[-1]

    def lines(self, pid: int) -> list[dict[str, Any]]:
        path = self.folder / f"{pid}.log"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def until(self, what: str, at: int, pid: int | None = None) -> None:
        """Waits until a worker, or any, computes or completes an iteration."""
        deadline = time.monotonic() + LIMIT_S
        while not any(line.get(what, -1) >= at for one in self.pids if pid in (None, one) for line in self.lines(one)):
            assert time.monotonic() < deadline, self.told()
            time.sleep(0.01)

    def until_told(self, what: str, pid: int) -> None:
        """Waits until a worker logs a text."""
        deadline = time.monotonic() + LIMIT_S
        path = self.folder / f"{pid}.text"
        while not path.exists() or what not in path.read_text():
            assert time.monotonic() < deadline, self.told()
            time.sleep(0.01)

    def end(self) -> list[int]:
        """Returns the exit codes of all workers."""
        deadline = time.monotonic() + LIMIT_S
        while any(_lives(pid) for pid in self.pids):
            if time.monotonic() > deadline:
                for pid in filter(_lives, self.pids):
                    os.kill(pid, signal.SIGUSR2)
                time.sleep(1)
                raise AssertionError(self.told())
            time.sleep(0.02)
        assert self.forks
        return [self.forks.ask(wait=pid) for pid in self.pids]

    def told(self) -> str:
        """Returns what all workers have logged."""
        return "\n".join(
            f"{path.name}:\n{path.read_text()[-3000:]}"
            for path in sorted(self.folder.iterdir())
            if path.suffix in (".text", ".errors")
        )

    def check(self) -> int:
        """Checks samples and parameters; returns the number of iterations."""
        ids: dict[tuple[int, int], list[int]] = defaultdict(list)
        done: dict[int, int] = {}
        ends: list[dict[str, Any]] = []
        for pid in self.pids:
            for line in self.lines(pid):
                if "computes" in line:
                    ids[line["computes"], line["generation"]] += line["ids"]
                elif "completes" in line:
                    at = line["completes"]
                    done[at] = max(done.get(at, 0), line["generation"])
                elif "parameters" in line:
                    ends.append(line)
        last: int = max(end["iteration"] for end in ends)
        assert sorted(done) == list(range(last)), self.told()
        expected, order = one_process(last), Order(SAMPLES, BATCH)
        for at in range(last):
            wanted = order.permutation(at // order.steps)[at % order.steps * BATCH :][:BATCH].tolist()
            assert sorted(ids[at, done[at]]) == sorted(wanted), (at, self.told())
        for end in ends:
            difference = torch.tensor(end["parameters"]) - torch.tensor(expected[end["iteration"]][0])
            assert difference.abs().max() <= 1e-12, (end["iteration"], float(difference.abs().max()), self.told())
            assert abs(end["rate"] - expected[end["iteration"]][1]) <= 1e-15
        return last


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def one_process(iterations: int) -> list[tuple[list[float], float]]:
    """Returns parameters and learning rate of one process before each iteration, and at the end."""
    net, optimizer, scheduler = parts()
    data, order = Data(), Order(SAMPLES, BATCH)
    found = [(flat(net), scheduler.get_last_lr()[0])]
    for at in range(iterations):
        chosen = order.permutation(at // order.steps)[at % order.steps * BATCH :][:BATCH]
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(data.x[chosen]), data.y[chosen]).backward()
        optimizer.step()
        scheduler.step()
        found.append((flat(net), scheduler.get_last_lr()[0]))
    return found


@contextmanager
def run(
    forks: Forks, folder: Path, workers: int, *, server: str = "off", has_store: bool = True, **script: Any
) -> Iterator[Run]:
    """Begins a job with this number of workers, which the block starts; the first one starts the store without one."""
    environ = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(forks.ask(listener=True) if has_store else _free_port()),
        "WORLD_SIZE": str(workers),
        "EVENSTEP_SERVER": server,
        "EVENSTEP_HOME": str(folder),
    }
    job = Run(forks, folder, {"epochs": 2, "pause_s": 0.005, **script, "environ": environ})
    try:
        yield job
    finally:
        for pid in filter(_lives, job.pids):
            os.kill(pid, signal.SIGKILL)
