"""`evenstep server status | logs | stop`: the embedded predictor and agent."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from evenstep.start.local.embedded import start_predictor
from evenstep.start.local.error import LocalError
from evenstep.start.local.folder import open_folder
from evenstep.start.local.programs import AGENT, PREDICTOR, STORE, Local, find_program, running

_LOG_LINES = 40


def run(name: str, rest: Sequence[str]) -> int:
    """Runs a command and returns its exit status.

    Raises:
        LocalError: the folder of the programs cannot be used.
    """
    if name not in COMMANDS:
        raise LocalError(f"server {name!r}: must be {', '.join(COMMANDS)}, or options that start a predictor (--help)")
    if rest:
        raise LocalError(f"server {name} {rest[0]!r}: must have no argument")
    return COMMANDS[name]()


def server_url() -> str:
    """Returns the URL of the local predictor, which is started if necessary and runs as long as this process.

    Raises:
        LocalError: it cannot be started.
    """
    local = Local(open_folder())
    local.keep_after_exec()
    return start_predictor(local)


def store() -> str:
    """Returns the store to read: the local predictor's, or without it the one in the current folder.

    Raises:
        LocalError: there are both.
    """
    own, here = open_folder() / STORE, Path(STORE)
    if own.exists() and here.exists():
        raise LocalError(f"{own} and ./{STORE} exist: choose one by --store sqlite://FILE")
    return f"sqlite://{own if own.exists() else here}"


def version_of(program: str) -> str:
    """Returns the name and the version that a program prints, or why it does not."""
    try:
        told = subprocess.run([find_program(program), "--version"], capture_output=True, text=True, check=True)  # noqa: S603  # Our own program.
    except (LocalError, OSError, subprocess.CalledProcessError) as error:
        return f"{program}: {error}"
    return told.stdout.strip()


def _status() -> int:
    folder = open_folder()
    sys.stdout.write(f"folder: {folder}\n")
    for program in (PREDICTOR, AGENT):
        known = running(folder, program)
        state = f"{known.url}, process {known.pid}, version {known.version}" if known else "not running"
        sys.stdout.write(f"{program}: {state}\n")
    return 0


def _stop() -> int:
    local = Local(open_folder())
    for program in (AGENT, PREDICTOR):
        sys.stdout.write(f"{program}: {'stopped' if local.stop(program) else 'not running'}\n")
    return 0


def _logs() -> int:
    folder = open_folder()
    for program in (PREDICTOR, AGENT):
        log = folder / f"{program}.log"
        sys.stdout.write(f"{log}:\n")
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        sys.stdout.writelines(f"{line}\n" for line in lines[-_LOG_LINES:])
    return 0


COMMANDS = {"status": _status, "logs": _logs, "stop": _stop}
"""The commands and their functions."""
