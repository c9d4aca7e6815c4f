"""Compute time is the device's own: a slow loader and other ranks change nothing, and waiting for it takes no core."""

import time

from gpu_check.context import Context
from gpu_check.outcome import Outcome, judged
from gpu_check.sizes import FEATURES

MICRO_BATCHES, SECONDS, LOADER_S = 4, 0.1, 0.09

#: Maximum relative error of the compute time.
ERROR_MAX = 0.1
#: Maximum CPU time of a wait, relative to the wait.
CPU_MAX = 0.2


def prevented(_: Context) -> str:
    """Returns why the check is not applicable."""
    return ""


def check(context: Context) -> Outcome:
    """Measures micro-batches of 100 ms with a loader of 90 ms, and the same without a loader."""
    import torch

    from evenstep.sensor import Sensor
    from gpu_check.training import Work

    device = torch.device("cuda", torch.cuda.current_device()) if context.on_gpu else torch.device("cpu")
    work, x = Work(device, SECONDS / 8), torch.zeros(8, FEATURES, device=device)

    def iteration(loader_s: float) -> tuple[float, float, float]:
        """Returns the compute time, the wall time, and the CPU time of the wait relative to it."""
        sensor, begun = Sensor(), time.perf_counter()
        for _ in range(MICRO_BATCHES):
            sensor.loader_begins()
            time.sleep(loader_s)
            sensor.loader_ends(loader_s)
            sensor.forward_begins(device)
            work(x)
        compute_time_s, _ = sensor.computed()
        waiting, used = time.perf_counter(), time.thread_time()
        compute_s = compute_time_s()
        waited_s = time.perf_counter() - waiting
        return compute_s, time.perf_counter() - begun, (time.thread_time() - used) / max(waited_s, 1e-3)

    iteration(0.0)
    expected_s = iteration(0.0)[1]
    compute_s, wall_s, cpu = iteration(LOADER_S)
    error = compute_s / expected_s - 1
    said = (
        f"{MICRO_BATCHES} micro-batches take {expected_s:.3f} s; measured with a loader {compute_s:.3f} s "
        f"({error:+.1%}; wall time {wall_s:.3f} s); the wait used {cpu:.0%} of a core"
    )
    # On a CPU the machine's other load decides.
    holds = abs(error) <= ERROR_MAX and cpu <= CPU_MAX if context.on_gpu else compute_s > 0
    return judged(holds, said, expected_s=expected_s, compute_s=compute_s, wall_s=wall_s, cpu=cpu)
