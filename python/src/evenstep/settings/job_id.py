"""Job ids for runs without ``EVENSTEP_JOB``: the script's name, the launcher's id, and a code of the launch."""

import re
from collections.abc import Mapping
from pathlib import Path

from evenstep.settings import launcher

#: torchrun makes a random id if it gets none.
_RANDOM = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NAME_CHARS_MAX = 48


def automatic(environ: Mapping[str, str], script: str, pid: int, parent: int, proc: Path = Path("/proc")) -> str:
    """Returns the id of this run, such as ``train-sweep-7-1f09ac``.

    It is the same after the launcher restarts the processes, and different for the next run of the script. Only rank 0
    needs it. Slurm gives each run a job step, and Ray Train a name. Otherwise a run belongs to one process of torchrun.

    Args:
        environ: the environment variables.
        script: path of the script, ``sys.argv[0]``.
        pid: this process.
        parent: its parent, which is torchrun if that started it.
        proc: where process information is mounted.
    """
    if run := launcher.ray_run():
        name, identity = run
        return f"{_word(name) or 'job'}-{launcher.code(identity)}"
    run_id, slurm = environ.get("TORCHELASTIC_RUN_ID", ""), launcher.slurm_job(environ)
    parts = [_word(Path(script).stem) or "job", _word(slurm)]
    if run_id not in ("", "none", slurm) and not _RANDOM.fullmatch(run_id):
        parts.append(_word(run_id))
    identity = launcher.slurm_step(environ)
    if not identity:
        started_by = parent if "TORCHELASTIC_RUN_ID" in environ else pid
        identity = f"{_text(proc / 'sys/kernel/random/boot_id')} {started_by} {_started(proc, started_by)} {run_id}"
    parts.append(launcher.code(identity))
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
