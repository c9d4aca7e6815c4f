"""Runs each check in its own process, with a deadline: a crash or hang of one never stops the others."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from gpu_check.context import Context, last_lines
from gpu_check.machine import Machine
from gpu_check.outcome import Outcome, failed
from gpu_check.place import Place

#: Variable that marks the processes of a check: torchrun and the programs start their own sessions.
MARK = "GPU_CHECK_RUN"

#: Maximum time to wait for the end of killed processes, in seconds.
_END_S = 10.0


def machine(place: Place, folder: Path, deadline_s: float) -> Machine:
    """Returns the facts about this machine, found by another process."""
    code, said, errors = _run([sys.executable, "-m", "gpu_check.machine"], place, folder, deadline_s)
    try:
        return Machine(**json.loads(said))
    except (ValueError, TypeError):
        why = f"no result within {deadline_s:g} s" if code is None else last_lines(errors) or f"status {code}"
        return Machine(problem=f"PyTorch cannot use a GPU: {why}")


def run(module: str, context: Context, place: Place, deadline_s: float) -> Outcome:
    """Runs the check of a module."""
    folder = context.folder
    folder.mkdir(parents=True)
    result = folder / "outcome.json"
    (folder / "task.json").write_text(json.dumps({"machine": asdict(context.machine), "device": context.device}))
    code, _, errors = _run([sys.executable, "-m", "gpu_check.one", module, str(folder)], place, folder, deadline_s)
    if code is None:
        return failed(f"no result within {deadline_s:g} s")
    try:
        return Outcome(**json.loads(result.read_text()))
    except (OSError, ValueError, TypeError):
        return failed(f"the check ended with status {code}: {last_lines(errors) or 'no output'}")


def _run(command: list[str], place: Place, folder: Path, deadline_s: float) -> tuple[int | None, str, str]:
    """Returns the status, output and errors of a process; the status is None after the deadline."""
    mark = secrets.token_hex(8)
    environ = {**place.environ(folder / "home"), MARK: mark}
    output, errors = folder / "stdout.txt", folder / "stderr.txt"
    # Files, because a process that was left behind would keep a pipe open.
    with output.open("w") as out, errors.open("w") as err:
        process = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder)
        try:
            code: int | None = process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _kill(mark)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
    return code, output.read_text(errors="replace"), errors.read_text(errors="replace")


def _kill(mark: str) -> None:
    """Kills all processes with a mark until none is left. A process in the kernel of a hung driver may not end."""
    until = time.monotonic() + _END_S
    while (left := _marked(mark)) and time.monotonic() < until:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _marked(mark: str) -> list[int]:
    """Returns the running processes with a mark."""
    wanted = f"{MARK}={mark}".encode()
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and wanted in _environ(path)]


def _environ(process: Path) -> list[bytes]:
    try:
        return (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return []
