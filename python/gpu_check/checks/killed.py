"""After kill -9 of a rank, torchrun restarts the job, which resumes exactly: no sample is lost or used twice."""

from gpu_check.context import Context
from gpu_check.outcome import Outcome, judged


def prevented(_: Context) -> str:
    """Returns why the check is not applicable."""
    return ""


def check(context: Context) -> Outcome:
    """Compares the parameters at the end with the parameters of one process."""
    told = context.run_ranks("killed", restarts=1)
    worst = max(one["difference"] for one in told)
    said = f"{context.where}: {told[0]['restarts']} restart; largest difference to one process {worst:.0e}"
    return judged(told[0]["restarts"] == 1 and not told[0]["difference_is_large"], said, **told[0])
