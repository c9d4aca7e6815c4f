"""The checks. A check that this machine cannot run skips itself with the reason."""

import json
import math
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import time
import urllib.request
from contextlib import closing, suppress
from importlib.util import find_spec
from typing import Any

import pytest

from gpu_check import machine
from gpu_check.context import Context, last_lines
from gpu_check.place import ROOT

pytestmark = pytest.mark.gpu

#: Accuracy of parameters in float64. GPUs add in another order.
TOLERANCE = 1e-10


def _needs_listed_gpus(context: Context) -> None:
    if not context.on_gpu:
        pytest.skip("CPUs have neither a UUID nor readings of a GPU")
    if not context.machine.listed:
        pytest.skip("nvidia-smi lists no GPU")


def test_identity(context: Context) -> None:
    """CUDA's devices and NVIDIA's driver name each GPU by the same UUID, in any order of the devices."""
    _needs_listed_gpus(context)
    import torch

    from evenstep.measure.device import current_device
    from evenstep.measure.drivers.gpu import gpu_name

    torch.cuda.init()
    own = gpu_name(current_device())
    listed = context.machine.listed
    seen = [gpu["uuid"] for gpu in context.machine.gpus]
    # By UUID, because indices count in CUDA's own order.
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(reversed(seen))}
    said = context.run([sys.executable, "-m", "gpu_check.machine"], environ).stdout
    turned = [gpu["uuid"] for gpu in json.loads(said)["gpus"]]
    order = "in the same order" if seen == listed else "in another order than CUDA's"
    context.tell(f"{len(seen)} GPUs; nvidia-smi lists them {order}", cuda=seen, nvidia_smi=listed, reversed=turned)
    parts = sorted({uuid for uuid in seen if uuid not in listed})
    assert not parts, f"nvidia-smi does not list {', '.join(parts)} as a GPU (parts of GPUs have other names)"
    assert turned == seen[::-1]
    assert f"GPU-{own}" == seen[0]


#: Readings of the agent, the columns of nvidia-smi in the same unit, and the allowed difference, absolute and relative:
#: values change between two readings.
COMPARED = (
    ("gpu_temperature_celsius", "temperature.gpu", 5.0, 0.0),
    ("gpu_power_w", "power.draw", 15.0, 0.3),
    ("sm_clock_mhz", "clocks.sm", 150.0, 0.2),
    ("memory_clock_mhz", "clocks.mem", 50.0, 0.1),
)


def test_agent(context: Context) -> None:
    """The agent reads each GPU as nvidia-smi does."""
    _needs_listed_gpus(context)
    import torch

    for index in range(len(context.machine.gpus)):
        matrix = torch.randn(4096, 4096, device=f"cuda:{index}")
        for _ in range(20):
            torch.mm(matrix, matrix)
        torch.cuda.synchronize(index)
    command = ["evenstep-agent", "--listen=127.0.0.1:0", "--server=off", f"--spool-dir={context.folder / 'spool'}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as agent:
        try:
            assert agent.stdout is not None
            url = f"http://{json.loads(agent.stdout.readline())['listening']}/sample?pid={os.getpid()}&gpu="
            rows = machine.smi("uuid", *(column for _, column, *_ in COMPARED))
            read = {row["uuid"]: _readings(url + row["uuid"]) for row in rows}
        finally:
            agent.kill()
    compared = {
        f"{name} of {row['uuid']}": (read[row["uuid"]].get(name), _number(row[column]), absolute, relative)
        for row in rows
        for name, column, absolute, relative in COMPARED
    }
    wrong = [
        f"{what}: {one}, nvidia-smi has {other}"
        for what, (one, other, absolute, relative) in compared.items()
        if not _agree(one, other, absolute, relative)
    ]
    both = sum(None not in values for values in compared.values())
    context.tell(f"{both} readings of {len(rows)} GPUs compared", compared=compared)
    assert not wrong, "; ".join(wrong)
    assert both


def _readings(url: str) -> dict[str, float]:
    """Returns the readings; the second request, because the first one has no window."""
    for _ in range(2):
        with urllib.request.urlopen(url, timeout=10) as answer:
            readings: dict[str, float] = json.loads(answer.read())["readings"]
        time.sleep(0.2)
    return readings


def _number(text: str) -> float | None:
    """Returns a value of nvidia-smi, which writes words if the driver has none."""
    with suppress(ValueError):
        return float(text)
    return None


def _agree(one: float | None, other: float | None, absolute: float, relative: float) -> bool:
    """Returns whether two readings agree; a reading that the driver does not have must be missing in both."""
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, abs_tol=absolute, rel_tol=relative)


def _compare_gradients(context: Context, check: str) -> None:
    """Compares the parameters after an epoch with the parameters of one process."""
    told = context.run_ranks(check)
    worst = {name: max(one[name] for one in told) for name in told[0]}
    said = ", ".join(f"{name} {value:.0e}" for name, value in worst.items())
    context.tell(f"{context.where}: largest differences {said}", differences=worst)
    assert max(worst.values()) <= TOLERANCE


def test_ddp(context: Context) -> None:
    """DDP with uneven batches has the gradient of one process: plain, accumulated, token means, batch norm."""
    _compare_gradients(context, "ddp")


def test_hedged(context: Context) -> None:
    """Hedged steps have the gradient of one process, and ranks claim chunks of the shared tail."""
    told = context.run_ranks("hedged")
    worst, claimed = max(value for value, _ in told), sum(samples for _, samples in told)
    said = f"{context.where}: largest difference {worst:.0e}; {claimed} samples were claimed"
    context.tell(said, difference=worst, claimed=claimed)
    assert worst <= TOLERANCE
    assert claimed > 0


def test_compiled(context: Context) -> None:
    """torch.compile inside and outside of DDP has the gradient of one process with uneven batches."""
    if context.on_gpu and find_spec("triton") is None:
        pytest.skip("torch.compile needs triton on GPUs")
    if context.on_gpu and not (shutil.which("cc") or shutil.which("gcc")):
        pytest.skip("torch.compile needs a C compiler")
    _compare_gradients(context, "compiled")


def test_fsdp(context: Context) -> None:
    """FSDP2 (fully_shard) with uneven batches has the gradient of one process."""
    if context.on_gpu and context.backend != "nccl":
        pytest.skip("FSDP2 on GPUs needs NCCL, and that a GPU for each rank: this machine has one GPU")
    import torch

    if torch.__version__ < "2.9":
        pytest.skip(f"job.wrap with fully_shard needs PyTorch 2.9; this is {torch.__version__}")
    worst = max(context.run_ranks("fsdp"))
    context.tell(f"{context.where}: largest difference {worst:.0e}", difference=worst)
    assert worst <= TOLERANCE


#: Micro-batches of a measurement, and their seconds on the device and in the loader.
MICRO_BATCHES, SECONDS, LOADER_S = 4, 0.1, 0.09


def test_timing(context: Context) -> None:
    """Compute time is the device's own: a slow loader and other ranks change nothing, waits take no core."""
    import torch

    from evenstep.measure.sensor import Sensor
    from gpu_check.ranks import FEATURES, Work

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
    context.tell(said, expected_s=expected_s, compute_s=compute_s, wall_s=wall_s, cpu=cpu)
    assert compute_s > 0
    # On a CPU the machine's other load decides.
    assert abs(error) <= 0.1 or not context.on_gpu
    assert cpu <= 0.2 or not context.on_gpu


def test_drivers(context: Context) -> None:
    """Forecasts get readings of each rank's own GPU, from the agent that training starts."""
    from evenstep.start.local.folder import open_folder

    told = context.run_ranks("drivers")
    with closing(sqlite3.connect(f"file:{open_folder() / 'evenstep.db'}?mode=ro", uri=True)) as connection:
        query = "SELECT worker, drivers FROM report WHERE job_id = ?"
        rows = [(worker, json.loads(drivers)) for worker, drivers in connection.execute(query, (told[0]["job"],))]
    workers = sorted({worker for worker, _ in rows})
    # Those that enter forecasts.
    of_gpu = ("sm_clock_mhz", "gpu_busy", "gpu_power_w", "gpu_temperature_celsius")
    shares = {
        name: min((_share([drivers for worker, drivers in rows if worker == of], name) for of in workers), default=0.0)
        for name in (of_gpu if context.on_gpu else ("procs_running", "memory_used"))
    }
    said = ", ".join(f"{name} in {share:.0%}" for name, share in shares.items())
    said = f"{len(rows)} reports of {len(workers)} workers: {said} of them"
    context.tell(said, shares=shares, forecast=told[0]["forecast"])
    assert len(workers) == context.ranks
    # A driver may lack a reading of its GPU, such as the power of a laptop's.
    assert max(shares.values()) >= 0.5


def _share(drivers: list[dict[str, Any]], name: str) -> float:
    return sum(name in one for one in drivers) / len(drivers)


def test_overhead(context: Context) -> None:
    """`evenstep` adds little to a step, and ranks exchange reports at least once per second."""
    told = context.run_ranks("overhead")[0]
    plain_s, ours_s = (statistics.median(told[name]) for name in ("plain", "evenstep"))
    added, interval = ours_s / plain_s - 1, told["interval"]
    said = (
        f"{context.where}: {1e3 * plain_s:.2f} ms per step, {added:+.2%} with evenstep; an exchange every "
        f"{interval:.0f} iterations ({interval * ours_s:.2f} s)"
    )
    context.tell(said, added=added, **told)
    # On a CPU the machine's other load decides. The design allows 0.5 %; a block of 50 steps is not as exact.
    assert added <= 0.03 or not context.on_gpu
    assert interval * ours_s <= 1.0 or not context.on_gpu


def test_slowed(context: Context) -> None:
    """A rank whose GPU does other work gets fewer samples, and training is faster than with even shares."""
    told = context.run_ranks("slowed")[0]
    gain = told["planned"] / told["even"]
    said = (
        f"{context.where}, rank 0 slowed: {told['even']:.0f} samples/s with even shares, "
        f"{told['planned']:.0f} with {told['shares']} ({gain:.2f} times)"
    )
    context.tell(said, gain=gain, **told)
    # On a CPU the machine's other load decides.
    assert gain >= 1.05 or not context.on_gpu
    assert told["shares"][0] < max(told["shares"]) or not context.on_gpu


def test_memory(context: Context) -> None:
    """A batch that exceeds a GPU's memory is reported, and the restarted job gives this rank fewer samples and ends."""
    if context.on_gpu and min(gpu["memory_bytes"] for gpu in context.machine.gpus) < 4 << 30:
        pytest.skip("the GPU has less than 4 GiB of memory")
    told = context.run_ranks("memory", restarts=2)[0]
    share = told["shares"][1]
    said = f"{context.where}: {told['restarts']} restart; rank 1 has {share} samples instead of {told['even']}"
    context.tell(said, **told)
    assert told["restarts"] >= 1
    assert share < told["even"]
    assert told["difference"] <= TOLERANCE


def test_killed(context: Context) -> None:
    """After kill -9 of a rank, torchrun restarts the job, which resumes exactly: no sample is lost or used twice."""
    told = context.run_ranks("killed", restarts=1)
    worst = max(one["difference"] for one in told)
    said = f"{context.where}: {told[0]['restarts']} restart; largest difference to one process {worst:.0e}"
    context.tell(said, **told[0])
    assert told[0]["restarts"] == 1
    assert worst <= TOLERANCE


def test_profile(context: Context) -> None:
    """evenstep.profile measures the layers of a model on the device; their sum is the time of the model."""
    import torch

    import evenstep
    from gpu_check.ranks import finish

    device = torch.device("cuda", 0) if context.on_gpu else torch.device("cpu")
    samples, width = 64, 4096 if context.on_gpu else 256
    layers = [part for _ in range(4) for part in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers).to(device)
    x = torch.randn(samples, width, device=device)
    profile = evenstep.profile(model, x[:1], [samples // 2, samples])
    layers_s = sum(layer.compute_us[samples] for layer in profile.layers) / 1e6
    times = []
    for _ in range(20):
        begun = finish(device)
        model(x).sum().backward()
        times.append(finish(device) - begun)
    ratio = layers_s / statistics.median(times)
    said = (
        f"{len(profile.layers)} layers on {profile.device}: {1e3 * layers_s:.2f} ms, {ratio:.2f} times the whole model"
    )
    context.tell(said, layers_s=layers_s, ratio=ratio)
    assert layers_s > 0
    # Layers run separately in a profile.
    assert 0.5 <= ratio <= 2 or not context.on_gpu


def _succeeds(context: Context, *command: str) -> None:
    done = context.run(list(command))
    context.tell(last_lines(done.stdout) or last_lines(done.stderr))
    assert done.returncode == 0


def test_verify(context: Context) -> None:
    """`evenstep verify` finds that a script's gradients on GPUs are the gradients of one process."""
    if context.on_gpu and len(context.machine.gpus) < 2:
        pytest.skip("it needs a GPU for each of at least two ranks: this machine has one GPU")
    verify = (sys.executable, "-m", "evenstep", "verify", f"--ranks={context.ranks}", f"--device={context.device}")
    _succeeds(context, *verify, str(ROOT / "python" / "examples" / "plain.py"))


def test_trainer(context: Context) -> None:
    """The Rust trainer trains on GPUs, if it was built with a libtorch for CUDA."""
    if not shutil.which("evenstep-trainer"):
        pytest.skip("evenstep-trainer was not built (scripts/libtorch --cuda)")
    workers = len(context.machine.gpus) if context.on_gpu else context.ranks
    options = (f"--workers={workers}", "--policy=even", f"--device={context.device}", "--verify-gradient")
    _succeeds(context, "evenstep-trainer", "launch", *options)
