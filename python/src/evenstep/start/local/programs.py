"""Starting, finding and stopping local programs."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO

from evenstep.start.local.error import LocalError, SlowStartError
from evenstep.start.local.folder import open_folder

#: Name of the store in the folder of a local predictor, and by default in the current folder.
STORE = "evenstep.db"

PREDICTOR = "predictor"
AGENT = "agent"

START_S = 7.0
"""Maximum time to wait for the start of a program, in seconds: usually less than 0.1, and 5 for a store in use."""

STOP_S = 20.0
"""Maximum time to wait for the end of a program, in seconds. Usually it only closes its store."""

_POLL_S = 0.005
_LOG_BYTES_MAX = 1 << 20
_TAIL_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Running:
    """A running program."""

    url: str
    pid: int
    version: str


def find_program(name: str) -> Path:
    """Returns the path of ``evenstep-predictor`` or ``evenstep-agent``, which are installed with this package.

    Raises:
        LocalError: it is not installed.
    """
    # Installed with this package, for this interpreter or for the user; then anywhere else.
    user = sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user"))
    folders = [sysconfig.get_path("scripts"), str(Path(sys.executable).parent), user, os.environ.get("PATH", "")]
    if found := shutil.which(name, path=os.pathsep.join(folders)):
        return Path(found)
    raise LocalError(f"{name} is not installed; install it with `pip install evenstep`, or build it with cargo")


def running(folder: Path, program: str) -> Running | None:
    """Returns the running program of a folder; None if it does not run or has not finished its start.

    Raises:
        LocalError: the file cannot be read, or the program is not reachable from here.
    """
    path = folder / f"{program}.json"
    try:
        with path.open("rb") as file:
            if _is_free(file.fileno()):
                return None
            told = json.loads(file.read())
        found = Running(str(told["url"]), int(told["pid"]), str(told["version"]))
        network = told.get("network")
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        # It has not written its file yet.
        return None
    except OSError as error:
        raise LocalError(f"{path}: {error.strerror}") from error
    if network and network != _network():
        raise LocalError(f"{path}: evenstep-{program} runs in another container; set EVENSTEP_HOME to another folder")
    return found


def local_url(program: str) -> str | None:
    """Returns the URL of a local program; None if it does not run or cannot be reached."""
    try:
        known = running(open_folder(), program)
    except LocalError:
        return None
    return known.url if known else None


class Local:
    """This process's use of the programs of a folder; they run at least until :meth:`close`."""

    def __init__(self, folder: Path) -> None:
        """Becomes a user of the folder.

        Raises:
            LocalError: the folder cannot be used.
        """
        self.folder = folder
        #: Started by this process: a process that has ended stays in the system's table until it is polled.
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        #: Ends waiting, when this process no longer needs the programs.
        self.closing = threading.Event()
        self._users: int | None = None
        try:
            users = self._users = os.open(folder / "users", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            # A program that is about to end holds the lock until it has ended.
            self._until(lambda: _try_lock(users, fcntl.LOCK_SH), STOP_S)
        except OSError as error:
            if self._users is not None:
                os.close(self._users)
            raise LocalError(f"{folder}: {error.strerror}") from error

    def start(self, program: str, arguments: Sequence[str], version: str | None = None) -> Running:
        """Returns the running program. It is started if necessary, and replaced if it is older than this package.

        Args:
            program: :data:`PREDICTOR` or :data:`AGENT`.
            arguments: further arguments for a new process.
            version: version of this package, if it is not the installed one.

        Raises:
            SlowStartError: the program is still starting.
            LocalError: the program cannot be started.
        """
        known = running(self.folder, program)
        is_current = known and not _is_older(known.version, version or own_version())
        # A program that this process has started is the newest one that it can find.
        if known and (is_current or program in self._started):
            return known
        path = find_program(f"evenstep-{program}")
        if known:
            self.stop(program)
        log = self.folder / f"{program}.log"
        serve = ["serve"] if program == PREDICTOR else []
        command = [str(path), *serve, "--local", str(self.folder), "--listen", "127.0.0.1:0", *arguments]
        try:
            with _open_log(log) as errors:
                # In a new session: the end of the training's process group must not end it.
                process = subprocess.Popen(  # noqa: S603  # Our own program.
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
                )
        except OSError as error:
            raise LocalError(f"{error.filename or path}: {error.strerror}") from error
        self._started[program] = process
        # Another process may have started one at the same time: then this one ends, and the other one is used.
        self._until(lambda: self._runs(program) is not None or self._failed(program), START_S)
        if found := self._runs(program):
            return found
        if process.poll() is None:
            raise SlowStartError(f"{path.name} did not start within {START_S:g} s; see {log}")
        raise LocalError(f"{path.name} did not start: {_last_line(log)}; see {log}")

    def stop(self, program: str) -> bool:
        """Ends a program, and returns whether it was running.

        Raises:
            LocalError: it did not end.
        """
        known = running(self.folder, program)
        if known is None:
            return False
        if not _is_program(known.pid, program):
            raise LocalError(f"evenstep-{program} runs in another container, as process {known.pid}: stop it there")
        with suppress(ProcessLookupError):
            os.kill(known.pid, signal.SIGTERM)
        if not self._until(lambda: running(self.folder, program) != known, STOP_S):
            raise LocalError(f"evenstep-{program}, process {known.pid}, did not end within {STOP_S:g} s")
        return True

    def close(self) -> None:
        """Is no longer a user of the folder; may be repeated."""
        self.closing.set()
        users, self._users = self._users, None
        if users is not None:
            # Also for processes that were forked meanwhile: they share this lock.
            fcntl.flock(users, fcntl.LOCK_UN)
            os.close(users)

    def keep_after_exec(self) -> None:
        """Stays a user if this process is replaced by another program."""
        if self._users is not None:
            os.set_inheritable(self._users, True)

    def _runs(self, program: str) -> Running | None:
        """Returns the program after its start by this process, or the one that another process started."""
        found, process = running(self.folder, program), self._started[program]
        # For a moment after a process has taken its place, the run file still names the process before it.
        is_previous = found is not None and found.pid != process.pid and process.poll() is None
        return None if is_previous else found

    def _failed(self, program: str) -> bool:
        """Whether the started process has ended, and no other process is starting."""
        if self._started[program].poll() is None:
            return False
        try:
            with (self.folder / f"{program}.json").open("rb") as file:
                return _is_free(file.fileno())
        except OSError:
            return True

    def _until(self, done: Callable[[], bool], limit_s: float) -> bool:
        """Waits for a condition, and returns whether it came true before the limit or the end of this use."""
        deadline = time.monotonic() + limit_s
        while not (is_done := done()) and time.monotonic() < deadline and not self.closing.wait(_POLL_S):
            pass
        return is_done


def _is_free(file: int) -> bool:
    """Returns whether no process holds an exclusive lock."""
    try:
        return _try_lock(file, fcntl.LOCK_SH)
    finally:
        # A process that was forked meanwhile has the same lock, which closing the file would not release.
        fcntl.flock(file, fcntl.LOCK_UN)


def _network() -> str | None:
    """Returns the name of this process's network; programs of another one cannot be reached through loopback."""
    try:
        return str(Path("/proc/self/ns/net").readlink())
    except OSError:
        return None


def _try_lock(file: int, kind: int) -> bool:
    """Returns whether the lock was free. It is held from then on, until the file is closed."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_program(pid: int, program: str) -> bool:
    """Returns whether a process is the program. Containers may share the folder, but have their own process ids."""
    try:
        return f"evenstep-{program}".encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _open_log(log: Path) -> IO[bytes]:
    # The previous part is kept.
    with suppress(FileNotFoundError):
        if log.stat().st_size > _LOG_BYTES_MAX:
            log.replace(log.with_suffix(".log.1"))
    return log.open("ab")


def _last_line(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def own_version() -> str:
    """Returns the version of this package; ``0`` if it is not installed."""
    try:
        return metadata.version("evenstep")
    except metadata.PackageNotFoundError:
        return "0"


def _is_older(version: str, other: str) -> bool:
    one, another = _numbers(version), _numbers(other)
    # Other forms, such as those of pre-releases, are not compared.
    return bool(one and another) and one < another


def _numbers(version: str) -> list[int]:
    parts = version.split(".")
    return [int(part) for part in parts] if all(part.isdecimal() for part in parts) else []
