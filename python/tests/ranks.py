"""Real ranks: processes with a Gloo group, forked from a process that has already loaded torch."""

import atexit
import gc
import multiprocessing
import multiprocessing.util
import os
import pickle
import queue
import runpy
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # missing in torch's type stubs.

#: Time limit of a test's ranks, in seconds.
PATIENCE_S = 180.0

_CONTEXT = multiprocessing.get_context("forkserver")
# DistributedDataParallel loads the compiler at its first use, which takes longer than most tests.
# Test modules, which a rank imports to find its function, import pytest.
_PRELOADED = ["torch", "torch.distributed", "torch._dynamo", "torch._dynamo.callback", "evenstep.job.job", "pytest"]
_CONTEXT.set_forkserver_preload(_PRELOADED)


def preload(*modules: str) -> None:
    """Loads more modules before ranks are started, once for all of them. Call it when a test module is imported."""
    _PRELOADED.extend(modules)
    _CONTEXT.set_forkserver_preload(_PRELOADED)


def run_ranks(
    world_size: int, work: Callable[..., Any], *args: Any, environ: dict[str, str] | None = None
) -> list[Any]:
    """Returns the results of ``work(rank, *args)`` on each rank.

    Raises:
        AssertionError: a rank failed or exceeded the time limit.
    """
    defaults = {
        "EVENSTEP_SERVER": "off",
        # No speeds of earlier tests.
        "EVENSTEP_HOME": os.devnull,
        # Iterations are short here: ranks exchange after each one, regardless of the cost.
        "EVENSTEP_OVERHEAD": "1000",
    }
    return _run(world_size, _grouped, (work, args), {**defaults, **(environ or {})})


def run_script(
    script: Path, *arguments: str, output: Path, environ: dict[str, str], patience_s: float = PATIENCE_S
) -> str:
    """Runs a script on two ranks, and returns what they print.

    torchrun would load torch three times for it. Tests of launchers use the real one.

    Args:
        script: the script, which makes its process group.
        arguments: its arguments.
        output: the file for what it prints.
        environ: further variables. Ranks have no other variables of evenstep or torchrun.
        patience_s: the time limit, in seconds.

    Raises:
        AssertionError: a rank failed or exceeded the time limit.
    """
    output.touch()
    try:
        _run(2, _scripted, (str(script), arguments, str(output)), environ, patience_s)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{output.read_text()}") from None
    return output.read_text()


def _run(
    world_size: int,
    work: Callable[..., Any],
    args: Sequence[Any],
    environ: dict[str, str],
    patience_s: float = PATIENCE_S,
) -> list[Any]:
    """Returns the results of ``work(rank, *args)`` on each rank.

    The test holds the store, as torchrun does, so all ranks are equal.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    said: Any = _CONTEXT.Queue()
    common = {
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "OMP_NUM_THREADS": "1",
        **environ,
    }
    ranks = [
        _CONTEXT.Process(
            target=_rank, args=(said, {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, work, pickle.dumps(args))
        )
        for rank in range(world_size)
    ]
    for rank in ranks:
        rank.start()
    try:
        return _results(said, ranks, patience_s)
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()


def _results(said: Any, ranks: Sequence[Any], patience_s: float) -> list[Any]:
    deadline = time.monotonic() + patience_s
    results: dict[int, Any] = {}
    while len(results) < len(ranks):
        try:
            rank, result, failure = said.get(timeout=0.2)
        except queue.Empty:
            dead = [at for at, rank in enumerate(ranks) if at not in results and rank.exitcode not in (None, 0)]
            assert not dead, f"ranks {dead} ended without a result"
            assert time.monotonic() < deadline, f"only ranks {sorted(results)} finished in {patience_s} s"
            continue
        assert failure is None, f"rank {rank}:\n{failure}"
        results[rank] = pickle.loads(result)  # noqa: S301  # Written by the test.
    return [results[rank] for rank in range(len(ranks))]


def _rank(said: Any, environ: dict[str, str], work: Callable[..., Any], args: bytes) -> None:
    # The garbage collector would write to every object of the process that ranks are forked from, and copy its memory.
    gc.freeze()
    # That process has the variables of the tests.
    for name in [name for name in os.environ if name.startswith(("EVENSTEP_", "TORCHELASTIC_"))]:
        del os.environ[name]
    os.environ.update(environ)
    # The default of scripts before Python 3.14. Here it would be a forkserver for each rank, which loads torch again.
    multiprocessing.set_start_method("fork", force=True)
    torch.set_num_threads(1)
    rank = int(environ["RANK"])
    try:
        # By value: ranks must not share tensors.
        result = work(rank, *pickle.loads(args))  # noqa: S301  # Written by the test.
    except BaseException:  # noqa: BLE001  # the test reports any error.
        said.put((rank, None, traceback.format_exc()))
    else:
        # By value: tensors would be shared with a process that is about to end.
        said.put((rank, pickle.dumps(result), None))
    if dist.is_initialized():
        # No rank ends before all have sent their results.
        dist.destroy_process_group()


def _grouped(rank: int, work: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Runs a function in a process group."""
    if os.environ["WORLD_SIZE"] != "1":
        dist.init_process_group("gloo", timeout=timedelta(seconds=PATIENCE_S))
        # A rank may be connected, work and end before another rank has connected to it.
        dist.barrier()
    return work(rank, *args)


def _scripted(_rank: int, script: str, arguments: Sequence[str], output: str) -> None:
    """Runs a script as the main module of this process."""
    with Path(output).open("a") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    # A test runner may have replaced them.
    sys.stdout, sys.stderr = (open(at, "w", buffering=1, closefd=False) for at in (1, 2))  # noqa: SIM115  # Until the end.
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")
    # As at the end of an interpreter, except for multiprocessing's own function, which has to send the result later.
    ends = multiprocessing.util._exit_function  # type: ignore[attr-defined]  # missing in the type stubs.
    atexit.unregister(ends)
    atexit._run_exitfuncs()
    atexit.register(ends)
