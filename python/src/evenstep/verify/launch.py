"""Processes of a run, started like torchrun's, from a process that has already loaded PyTorch.

They are forked, because loading PyTorch takes longer than a few steps of most scripts. The forking process must not
have threads, so the rendezvous store runs in a separate process.
"""

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # missing in torch's type stubs.

from evenstep.run.observer import Observer
from evenstep.verify import device as devices
from evenstep.verify.recording.record import Recorder, reseed
from evenstep.verify.recording.task import Task
from evenstep.verify.target import Target

#: Number of output lines of a failed process that are shown.
TAIL_LINES = 30

#: Maximum time that a process has to print the stacks of its threads after a timeout, in seconds.
_STACK_DUMP_S = 5.0

#: Variables that are set or removed for each process; all others are inherited, as with torchrun.
_OURS = ("EVENSTEP_SERVER", "EVENSTEP_JOB", "EVENSTEP_WORKER", "EVENSTEP_AGENT", "TORCHELASTIC_RUN_ID")

_CONTEXT = multiprocessing.get_context("fork")


class RunFailedError(Exception):
    """A process did not finish its task; has the reason and the end of its output."""

    def __init__(self, why: str, tail: str) -> None:
        """Creates the error of one process."""
        super().__init__(why)
        self.why = why
        self.tail = tail


def launch(tasks: Sequence[Task], target: Target, *, device: str, timeout_s: float) -> None:
    """Runs a script in one process per task, until all have written their records.

    Raises:
        RunFailedError: a process ended early, or the time limit was exceeded.
    """
    tasks[0].folder.mkdir()
    with _store() as port:
        ranks = [_begun(task, target, _environ(task, port, device), device) for task in tasks]
        try:
            _await(ranks, timeout_s)
        finally:
            for rank in ranks:
                rank.end()


class _Rank:
    """The parent's view of a process."""

    def __init__(self, task: Task, process: Any, pipe: Connection) -> None:
        self.task = task
        self.process = process
        self.pipe = pipe

    def is_done(self) -> bool:
        """Returns whether it reported success; call it when it sent a message or ended."""
        try:
            return bool(self.pipe.poll() and self.pipe.recv_bytes())
        except (EOFError, OSError):
            return False

    def failure(self) -> RunFailedError:
        self.process.join()
        code, task = self.process.exitcode, self.task
        ended = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
        return RunFailedError(f"{_name(task)} {ended}", tail(_log(task)))

    def dump_stacks(self) -> str:
        """Ends the process so that it prints the stacks of its threads, and returns its output."""
        os.kill(self.process.pid, signal.SIGABRT)
        self.process.join(_STACK_DUMP_S)
        return f"{_name(self.task)}:\n{tail(_log(self.task))}"

    def end(self) -> None:
        """Ends the process and all its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _begun(task: Task, target: Target, environ: Mapping[str, str], device: str) -> _Rank:
    ours, theirs = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=_work, args=(theirs, task, target, environ, device))
    process.start()
    theirs.close()
    return _Rank(task, process, ours)


def _await(ranks: Sequence[_Rank], timeout_s: float) -> None:
    """Waits for all processes; the first failure is reported, because the others then fail as a consequence."""
    deadline = time.monotonic() + timeout_s
    missing = list(ranks)
    while missing:
        waiting: list[Any] = [thing for rank in missing for thing in (rank.pipe, rank.process.sentinel)]
        ready = wait(waiting, max(0.0, deadline - time.monotonic()))
        if not ready:
            why = f"{', '.join(_name(rank.task) for rank in missing)}: not finished within {timeout_s:g} s"
            raise RunFailedError(why, "\n".join([rank.dump_stacks() for rank in missing]))
        for rank in [rank for rank in missing if rank.pipe in ready or rank.process.sentinel in ready]:
            if not rank.is_done():
                raise rank.failure()
            missing.remove(rank)


@contextmanager
def _store() -> Iterator[int]:
    """Runs the rendezvous store in a separate process and yields its port."""
    ours, theirs = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=_keep_store, args=(theirs,))
    process.start()
    theirs.close()
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()
        ours.close()


def _keep_store(pipe: Connection) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipe.send(store.port)
    _wait_for_end(pipe)


def _wait_for_end(pipe: Connection) -> None:
    """Waits until the parent ends this process or exits."""
    with contextlib.suppress(EOFError, OSError):
        pipe.recv_bytes()
    os._exit(0)


def _work(pipe: Connection, task: Task, target: Target, environ: Mapping[str, str], device: str) -> None:
    """Runs the script on one rank with a recorder."""
    os.setsid()
    with _log(task).open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    faulthandler.enable(2)
    for name in _OURS:
        os.environ.pop(name, None)
    os.environ.update(environ)
    # One thread unless the user sets another number, as torchrun does; the results should not depend on it. This also
    # replaces the thread pool of the forking process. Otherwise several threads of autograd do so at once and abort.
    torch.set_num_threads(torch.get_num_threads() if "OMP_NUM_THREADS" in os.environ else 1)
    # A forked process inherits random state: processes without a seed would seem to share one.
    reseed(None)
    devices.make_repeatable(device)

    def finished() -> None:
        _flush()
        # No process ends before all have written their records: others may still wait for its data.
        pipe.send_bytes(b"done")
        _wait_for_end(pipe)

    recorder = Recorder(task, finished)
    Observer.current = recorder
    try:
        target.run()
    except SystemExit as end:
        if end.code not in (None, 0):
            sys.stderr.write("" if isinstance(end.code, int) else f"{end.code}\n")
            _flush()
            os._exit(end.code if isinstance(end.code, int) else 1)
    except BaseException:  # noqa: BLE001  # any error is shown.
        traceback.print_exc()
        _flush()
        os._exit(1)
    recorder.finish()


def _environ(task: Task, port: int, device: str) -> dict[str, str]:
    world_size, rank = str(task.world_size), str(task.rank)
    return {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "GROUP_RANK": "0",
        "ROLE_RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": world_size,
        "ROLE_WORLD_SIZE": world_size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "EVENSTEP_WORKER": f"{socket.gethostname()}/{rank}",
        "EVENSTEP_AGENT": "",
        **devices.environ(device),
    }


def tail(log: Path) -> str:
    """Returns the end of a process's output."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(lines[-TAIL_LINES:])


def _log(task: Task) -> Path:
    return task.folder / f"rank-{task.rank}.log"


def _name(task: Task) -> str:
    return f"rank {task.rank} of {task.world_size}" if task.world_size > 1 else "the one process"


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
