"""A rank whose GPU does other work gets fewer samples, and training is faster than with even shares."""

from gpu_check.context import Context
from gpu_check.outcome import Outcome, judged

#: Minimum throughput relative to even shares.
GAIN_MIN = 1.05


def prevented(_: Context) -> str:
    """Returns why the check is not applicable."""
    return ""


def check(context: Context) -> Outcome:
    """Compares the throughput with even shares and with the predictor's."""
    told = context.run_ranks("slowed")
    even, planned, shares = (told[0][name] for name in ("even", "planned", "shares"))
    gain = planned / even
    said = (
        f"{context.where}, rank 0 slowed by {told[0]['by']}: {even:.0f} samples/s with even shares, {planned:.0f} with "
        f"{shares} ({gain:.2f} times)"
    )
    # On a CPU the machine's other load decides.
    holds = (gain >= GAIN_MIN and shares[0] < max(shares)) or not context.on_gpu
    return judged(holds, said, gain=gain, **told[0])
