"""Processes of a run: begun as torchrun would, from one that has loaded PyTorch already.

They are forked: loading PyTorch takes longer than a few steps of most scripts. So the process that forks must not have
threads: the store that ranks meet at is in a process of its own.
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
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch's stubs leave it out.

from evenstep.observer import Observer
from evenstep.verify.record import Recorder, reseed
from evenstep.verify.target import Target
from evenstep.verify.task import Task

#: Lines of a failed process's output that are shown.
TAIL_LINES = 30

#: How long a process that took too long has to say where its threads stand, in seconds.
_LAST_WORDS_S = 5.0

#: What is set for each process, or taken away: of the outside only what torchrun would leave.
_OURS = ("EVENSTEP_SERVER", "EVENSTEP_JOB", "EVENSTEP_WORKER", "EVENSTEP_AGENT", "TORCHELASTIC_RUN_ID")

_CONTEXT = multiprocessing.get_context("fork")


class RunFailedError(Exception):
    """A process did not do what it was to do: why, and the end of its output."""

    def __init__(self, why: str, tail: str) -> None:
        """Of one process."""
        super().__init__(why)
        self.why = why
        self.tail = tail


def launch(tasks: Sequence[Task], target: Target, *, device: str, timeout_s: float) -> None:
    """Runs a script in as many processes as there are tasks, until all have recorded what they were to.

    Raises:
        RunFailedError: one ended otherwise, or they took too long.
    """
    tasks[0].folder.mkdir()
    with _store() as port:
        ranks = [_begun(task, target, _environ(task, port, device)) for task in tasks]
        try:
            _await(ranks, timeout_s)
        finally:
            for rank in ranks:
                rank.end()


def gpus() -> int:
    """GPUs of this machine, counted by a process of its own: processes cannot be forked from one that uses them."""
    ours, theirs = _CONTEXT.Pipe()
    counter = _CONTEXT.Process(target=lambda: theirs.send(torch.cuda.device_count()))
    counter.start()
    theirs.close()
    try:
        count: int = ours.recv()
    except EOFError:
        count = 0
    counter.join()
    return count


class _Rank:
    """A process, as the one that began it sees it."""

    def __init__(self, task: Task, process: Any, pipe: Connection) -> None:
        self.task = task
        self.process = process
        self.pipe = pipe

    def is_done(self) -> bool:
        """Whether it said so; called once it said something or ended."""
        try:
            return bool(self.pipe.poll() and self.pipe.recv_bytes())
        except (EOFError, OSError):
            return False

    def failure(self) -> RunFailedError:
        self.process.join()
        code, task = self.process.exitcode, self.task
        ended = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
        return RunFailedError(f"{_name(task)} {ended}", tail(_log(task)))

    def last_words(self) -> str:
        """Ends it, in such a way that it says where its threads stand."""
        os.kill(self.process.pid, signal.SIGABRT)
        self.process.join(_LAST_WORDS_S)
        return f"{_name(self.task)}:\n{tail(_log(self.task))}"

    def end(self) -> None:
        """Ends it, and all that it began."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _begun(task: Task, target: Target, environ: Mapping[str, str]) -> _Rank:
    ours, theirs = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=_work, args=(theirs, task, target, environ))
    process.start()
    theirs.close()
    return _Rank(task, process, ours)


def _await(ranks: Sequence[_Rank], timeout_s: float) -> None:
    """Waits for all to be done; the first that fails is heard, for the others then fail because of it."""
    deadline = time.monotonic() + timeout_s
    missing = list(ranks)
    while missing:
        waiting: list[Any] = [thing for rank in missing for thing in (rank.pipe, rank.process.sentinel)]
        ready = wait(waiting, max(0.0, deadline - time.monotonic()))
        if not ready:
            why = f"{', '.join(_name(rank.task) for rank in missing)}: not done in {timeout_s:g} s"
            raise RunFailedError(why, "\n".join([rank.last_words() for rank in missing]))
        for rank in [rank for rank in missing if rank.pipe in ready or rank.process.sentinel in ready]:
            if not rank.is_done():
                raise rank.failure()
            missing.remove(rank)


@contextmanager
def _store() -> Iterator[int]:
    """Where ranks meet, in a process of its own; gives its port."""
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
    """Until we are ended, or nobody is there any more who could."""
    with contextlib.suppress(EOFError, OSError):
        pipe.recv_bytes()
    os._exit(0)


def _work(pipe: Connection, task: Task, target: Target, environ: Mapping[str, str]) -> None:
    """One rank: runs the script under a recorder."""
    os.setsid()
    with _log(task).open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    faulthandler.enable(2)
    for name in _OURS:
        os.environ.pop(name, None)
    os.environ.update(environ)
    if "OMP_NUM_THREADS" not in os.environ:
        # As torchrun has it where there are several processes; what is computed should not depend on it.
        torch.set_num_threads(1)
    # A fork has its parent's random numbers: processes that set no seed would seem to have agreed on one.
    reseed(None)
    # TF32 is less precise than what is to be compared.
    torch.backends.cudnn.allow_tf32 = False

    def finished() -> None:
        _flush()
        # Nobody leaves before all have recorded: others may still wait for what we have sent.
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
    except BaseException:  # noqa: BLE001  # whatever it is, it is shown.
        traceback.print_exc()
        _flush()
        os._exit(1)
    recorder.finish()


def _environ(task: Task, port: int, device: str) -> dict[str, str]:
    world_size, rank = str(task.world_size), str(task.rank)
    environ = {
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
    }
    return environ if device == "cuda" else {**environ, "CUDA_VISIBLE_DEVICES": ""}


def tail(log: Path) -> str:
    """The end of a process's output."""
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
