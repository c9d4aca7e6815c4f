"""Checks of the embedded predictor and agent."""

from evenstep.doctor.check import Check
from evenstep.start.local import AGENT, PREDICTOR, LocalError, find_program, local_url, open_folder


def check_local() -> list[Check]:
    """Checks that both programs are installed, and that the folder for them can be written."""
    return [_check_folder(), *map(_check_program, (PREDICTOR, AGENT))]


def _check_folder() -> Check:
    try:
        return Check("local folder", "ok", str(open_folder()))
    except LocalError as error:
        return Check(
            "local folder", "failed", str(error), "set EVENSTEP_HOME, or EVENSTEP_SERVER to a shared predictor"
        )


def _check_program(program: str) -> Check:
    name = f"local {program}"
    try:
        path = find_program(f"evenstep-{program}")
    except LocalError as error:
        return Check(name, "failed", str(error), "set EVENSTEP_SERVER to a shared predictor, or to off")
    url = local_url(program)
    return Check(name, "ok", f"{path}, " + (f"running at {url}" if url else "starts with the next run"))
