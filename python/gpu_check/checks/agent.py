"""The agent reads each GPU as nvidia-smi does."""

import json
import os
import subprocess
import time
import urllib.request

from gpu_check import machine
from gpu_check.context import Context
from gpu_check.outcome import Outcome, judged

#: Readings of the agent, the columns of nvidia-smi in the same unit, and the allowed difference, absolute and relative:
#: values change between two readings.
COMPARED = (
    ("gpu_temperature_celsius", "temperature.gpu", 5.0, 0.0),
    ("gpu_power_w", "power.draw", 15.0, 0.3),
    ("sm_clock_mhz", "clocks.sm", 150.0, 0.2),
    ("memory_clock_mhz", "clocks.mem", 50.0, 0.1),
)


def prevented(context: Context) -> str:
    """Returns why the check is not applicable."""
    if not context.on_gpu:
        return "the agent reads no GPU on this machine"
    return "" if context.machine.listed else "nvidia-smi lists no GPU"


def check(context: Context) -> Outcome:
    """Compares the readings of all GPUs under load."""
    import torch

    for index in range(len(context.machine.gpus)):
        matrix = torch.randn(4096, 4096, device=f"cuda:{index}")
        for _ in range(20):
            torch.mm(matrix, matrix)
        torch.cuda.synchronize(index)
    compared: dict[str, tuple[float | None, float | None]] = {}
    wrong: list[str] = []
    command = ["evenstep-agent", "--listen=127.0.0.1:0", "--server=off", f"--spool-dir={context.folder / 'spool'}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as agent:
        try:
            assert agent.stdout is not None
            address = json.loads(agent.stdout.readline())["listening"]
            for row in machine.smi("uuid", *(column for _, column, *_ in COMPARED)):
                read = _readings(f"http://{address}/sample?pid={os.getpid()}&gpu={row['uuid']}")
                for name, column, absolute, relative in COMPARED:
                    pair = read.get(name), _number(row[column])
                    compared[f"{name} of {row['uuid']}"] = pair
                    if _differ(*pair, absolute, relative):
                        wrong.append(f"{name} of {row['uuid']}: {pair[0]}, nvidia-smi has {pair[1]}")
        finally:
            agent.kill()
    both = sum(None not in pair for pair in compared.values())
    said = "; ".join(wrong) or f"{both} readings of {len(compared) // len(COMPARED)} GPUs agree"
    return judged(not wrong and both > 0, said, compared=compared)


def _readings(url: str) -> dict[str, float]:
    """Returns the readings; the second request, because the first one has no window."""
    for _ in range(2):
        with urllib.request.urlopen(url, timeout=10) as answer:
            readings: dict[str, float] = json.loads(answer.read())["readings"]
        time.sleep(0.2)
    return readings


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _differ(one: float | None, other: float | None, absolute: float, relative: float) -> bool:
    """Returns whether two readings differ; a reading that the driver does not have must be missing in both."""
    if one is None or other is None:
        return one is not other
    return abs(one - other) > max(absolute, relative * max(abs(one), abs(other)))
