"""The folder of a user's local programs on this machine."""

import fcntl
import os
import re
import socket
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from evenstep.start.local.error import LocalError

_PRIVATE = 0o700

#: Beginnings of the names of network file systems.
_REMOTE = ("nfs", "cifs", "smb", "lustre", "beegfs", "gpfs", "ceph", "glusterfs", "panfs", "9p", "afs", "fuse.sshfs")


def candidates(environ: Mapping[str, str], host: str, uid: int, mounts: str = "") -> list[Path]:
    """Returns the folders to try, in order.

    It is only ``EVENSTEP_HOME`` if that is set. Otherwise it is ``evenstep`` in the user's state folder (XDG), then a
    private folder for temporary files; on a network file system, in the other order. Machines with one home folder have
    separate folders in it.
    """
    name = re.sub(r"[^A-Za-z0-9.-]", "_", host) or "localhost"
    if given := environ.get("EVENSTEP_HOME"):
        return [Path(given).absolute() / name]
    temporary = Path(tempfile.gettempdir()) / f"evenstep-{uid}"
    if (state := environ.get("XDG_STATE_HOME", "")).startswith("/"):
        usual = Path(state) / "evenstep" / name
    elif (home := environ.get("HOME", "")).startswith("/"):
        usual = Path(home) / ".local/state/evenstep" / name
    else:
        return [temporary]
    # SQLite and locks are unreliable on network file systems.
    return [temporary, usual] if is_remote(usual, mounts) else [usual, temporary]


def is_remote(path: Path, mounts: str) -> bool:
    """Returns whether a path is on a network file system; ``mounts`` is the text of ``/proc/mounts``."""
    kinds = {line.split()[1]: line.split()[2] for line in mounts.splitlines() if len(line.split()) > 2}
    # A line of /proc/mounts covers an earlier one of the same folder.
    kind = next((kinds[str(parent)] for parent in (path, *path.parents) if str(parent) in kinds), "")
    return kind.startswith(_REMOTE)


def open_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Returns the first folder that can be written, and creates it if necessary.

    Raises:
        LocalError: none of them can be written, or others can write to it.
    """
    environ = os.environ if environ is None else environ
    try:
        mounts = Path("/proc/mounts").read_text(errors="replace")
    except OSError:
        mounts = ""
    folders = candidates(environ, socket.gethostname(), os.getuid(), mounts)
    reasons = []
    for folder in folders:
        if (reason := _prepared(folder)) is None:
            return folder
        reasons.append(f"{folder}: {reason}")
    raise LocalError(
        f"no folder for the local predictor ({'; '.join(reasons)}); set EVENSTEP_HOME to a writable folder"
    )


def _prepared(folder: Path) -> str | None:
    """Creates a folder if necessary, and returns the reason if it cannot be used."""
    try:
        folder.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        _check_private(folder)
        users = folder / "users"
        users.touch(mode=0o600)
        with users.open("rb") as file, suppress(BlockingIOError):
            # Some network file systems have no locks.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(file, fcntl.LOCK_UN)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _check_private(folder: Path) -> None:
    """Rejects a folder that another user could have prepared, such as one with a known name in /tmp."""
    known = folder.lstat()
    if known.st_uid != os.getuid() or not stat.S_ISDIR(known.st_mode) or known.st_mode & 0o022:
        raise PermissionError(None, "must belong to this user, and others must not be able to write to it")
