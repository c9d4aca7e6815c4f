"""Job ids for runs without ``EVENSTEP_JOB``: the script's name, torchrun's run id, and a code of the launch."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

#: torchrun makes a random id if it gets none.
_RANDOM = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NAME_CHARS_MAX = 48
_CODE_CHARS = 10


def automatic(environ: Mapping[str, str], script: str, pid: int, parent: int, proc: Path = Path("/proc")) -> str:
    """Returns the id of this run, such as ``train-sweep-7-1f09ac``.

    It is the same after torchrun restarts the processes, and different for the next run of the script. Only rank 0
    needs it.

    Args:
        environ: the environment variables.
        script: path of the script, ``sys.argv[0]``.
        pid: this process.
        parent: its parent, which is torchrun if that started it.
        proc: where process information is mounted.
    """
    run_id = environ.get("TORCHELASTIC_RUN_ID", "")
    parts = [_word(Path(script).stem) or "job"]
    if run_id not in ("", "none") and not _RANDOM.fullmatch(run_id):
        parts.append(_word(run_id))
    launcher = parent if "TORCHELASTIC_RUN_ID" in environ else pid
    identity = f"{_text(proc / 'sys/kernel/random/boot_id')} {launcher} {_started(proc, launcher)} {run_id}"
    parts.append(hashlib.sha256(identity.encode()).hexdigest()[:_CODE_CHARS])
    return "-".join(part for part in parts if part)


def _word(text: str) -> str:
    """Returns the text with the characters and the length that ids allow."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-._")[:_NAME_CHARS_MAX].rstrip("-._")


def _started(proc: Path, pid: int) -> str:
    """Returns the start time of a process in ticks since boot; empty if it is not known."""
    # The name of the program may contain spaces and parentheses.
    fields = _text(proc / str(pid) / "stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
