"""Times on a GPU, with a simulated one: it does its work in order while the training continues."""

import logging
import time
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
import torch.distributed as dist

from evenstep._native import Plan
from evenstep.exchange.exchange import Exchange, Lead, Submission
from evenstep.exchange.report import Report
from evenstep.exchange.share_log import ShareLog
from evenstep.exchange.whole_step import WholeStep
from evenstep.hedge.watch import PassTimer
from evenstep.job import oom
from evenstep.measure import device
from evenstep.measure.drivers.gpu import gpu_name
from evenstep.measure.moment import CudaTimer, peak_memory_bytes
from evenstep.measure.sensor import Sensor
from evenstep.start.agreement import warn_of_shared_gpus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenstep.settings.budget import Budget

CUDA = torch.device("cuda", 1)
UUID = "5a2c1e4f-0b1d-4c3e-9f00-aabbccddeeff"


class Gpu:
    """A GPU, and the clock of the host that launches its work."""

    def __init__(self) -> None:
        self.host_s = self.done_s = 0.0

    def launch(self, seconds: float) -> None:
        self.done_s = max(self.host_s, self.done_s) + seconds

    def now(self) -> float:
        """Returns the time of an event, which the GPU reaches after its work."""
        return max(self.host_s, self.done_s)

    def between(self, begun: float, end: float) -> float:
        self.host_s = max(self.host_s, end)
        return end - begun


def trained(gpu: Gpu, sensor: Sensor, micro_batches: int, loader_s: float) -> float:
    """Trains an iteration with micro-batches of 100 ms, and returns the compute time."""
    for micro in range(micro_batches):
        sensor.loader_begins()
        gpu.host_s += loader_s
        sensor.loader_ends(loader_s)
        if not micro:
            sensor.iteration_begins()
        sensor.batch_arrived()
        sensor.forward_begins(CUDA)
        gpu.launch(0.1)
    compute_time_s, loader_wait_s = sensor.computed()
    assert loader_wait_s == pytest.approx(micro_batches * loader_s)
    return compute_time_s()


@pytest.mark.parametrize("loader_s", [0.0, 0.09, 0.1, 0.15, 1.0])
@pytest.mark.parametrize("micro_batches", [1, 4])
def test_a_loader_changes_nothing_about_the_time_of_a_gpu(micro_batches: int, loader_s: float) -> None:
    gpu = Gpu()
    sensor = Sensor(lambda _: gpu)
    for _ in range(3):
        assert trained(gpu, sensor, micro_batches, loader_s) == pytest.approx(0.1 * micro_batches)


def test_a_batch_that_is_read_ahead_is_no_end_of_the_computation() -> None:
    """The loop requests the next batch between forward and backward pass; the last one has no successor."""
    gpu = Gpu()
    sensor = Sensor(lambda _: gpu)
    sensor.forward_begins(CUDA)
    gpu.launch(0.1)
    sensor.loader_begins()
    gpu.host_s += 0.5
    sensor.loader_ends(0.0)
    gpu.launch(0.2)
    assert sensor.computed()[0]() == pytest.approx(0.3)
    assert sensor.computed()[0]() == 0.0, "no forward pass was observed"


def test_waits_for_other_ranks_on_the_device_are_not_compute_time() -> None:
    gpu = Gpu()
    sensor = Sensor(lambda _: gpu)
    sensor.forward_begins(CUDA)
    gpu.launch(0.1)
    with sensor.paused():
        gpu.launch(0.7)
        with sensor.paused():
            gpu.launch(0.7)
        gpu.launch(0.7)
    gpu.launch(0.2)
    assert sensor.computed()[0]() == pytest.approx(0.3)
    assert not sensor.pause(), "no iteration has begun"
    assert sensor.computed()[0]() == 0.0


def test_a_thread_that_reads_batches_does_not_end_a_wait() -> None:
    gpu = Gpu()
    sensor = Sensor(lambda _: gpu)
    sensor.forward_begins(CUDA)
    gpu.launch(0.1)
    with sensor.paused():
        for _ in range(2):
            sensor.loader_begins()
            gpu.launch(0.7)
            sensor.loader_ends(0.0)
            with sensor.paused():
                gpu.launch(0.7)
    gpu.launch(0.2)
    assert sensor.computed()[0]() == pytest.approx(0.3)


def test_an_iteration_keeps_a_bounded_number_of_events() -> None:
    gpu = Gpu()
    sensor = Sensor(lambda _: gpu)
    for _ in range(2):
        sensor.forward_begins(CUDA)
        for _ in range(10_000):
            gpu.launch(0.001)
            with sensor.paused():
                gpu.launch(0.004)
        assert len(sensor._spans) < 4096
        assert sensor.computed()[0]() == pytest.approx(10.0)


def test_passes_of_hedged_steps_are_measured_on_the_device() -> None:
    gpu = Gpu()
    watch = PassTimer(CUDA, lambda _: gpu)
    for seconds in (0.3, 0.1):
        gpu.host_s += 0.05
        watch.begin()
        gpu.launch(seconds)
        watch.end(8)
    assert watch.total_s() == pytest.approx(0.4)
    assert watch.pace_s() == pytest.approx(0.4 / 16)
    assert gpu.host_s == pytest.approx(0.45), "it waited for the device"


def test_events_sleep_and_are_of_their_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new thread's current device is GPU 0. A wait there would occupy memory of GPU 0 in each process."""
    told: list[Any] = []

    class Event:
        def __init__(self, **options: bool) -> None:
            told.append(options)

        def record(self, stream: str) -> None:
            told.append(("record", stream))

        def synchronize(self) -> None:
            told.append("synchronize")

        def elapsed_time(self, _: "Event") -> float:
            return 250.0

    @contextmanager
    def current(of: torch.device) -> "Iterator[None]":
        told.append(("on", of))
        yield
        told.append("off")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda of: f"stream of {of}")
    monkeypatch.setattr(torch.cuda, "device", current)
    timer = CudaTimer(CUDA)
    begun, end = timer.now(), timer.now()
    assert told == [{"enable_timing": True, "blocking": True}, ("record", "stream of cuda:1")] * 2
    told.clear()
    assert timer.between(begun, end) == 0.25
    assert told == [("on", CUDA), "synchronize", "off"]


def test_peak_memory_may_be_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """An allocator of the script may count nothing; the training continues."""

    def counts_nothing(_: torch.device) -> Any:
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")

    told: dict[str, Any] = {"allocated_bytes": {"all": {"peak": 7, "current": 5}}}
    for stats, peak in ((lambda _: told, 7), (lambda _: {}, None), (counts_nothing, None)):
        monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", stats)
        assert peak_memory_bytes(CUDA) == peak
    assert peak_memory_bytes(torch.device("cpu")) is None


class Bill:
    """A budget that notes the CPU time of exchanges."""

    def __init__(self) -> None:
        self.told_s: list[float] = []

    def iterations(self, _: int, cpu_s: float) -> int:
        self.told_s.append(cpu_s)
        return 1


class NoPlans:
    """A planner without plans."""

    cpu_s = 0.0

    def take(self, _: int) -> None:
        return None

    def learn(self, _: int, rows: list[float], then: int, whole: WholeStep | None = None) -> None:
        pass


def test_waits_for_a_device_are_no_cost_of_an_exchange() -> None:
    """A driver may use a core while a thread waits. Exchanges would become rare, although they are cheap."""
    burnt_s = 0.5

    def report() -> Report:
        until = time.thread_time() + burnt_s
        while time.thread_time() < until:
            pass
        return Report(0, 8, 0.1)

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        group = dist.new_group(backend="gloo")
        plan, bill = Plan.even(8, 1), Bill()
        lead = Lead(NoPlans(), cast("Budget", bill), ShareLog(plan))
        exchange = Exchange(cast("dist.ProcessGroup", group), 2, [(0, plan)], dict, lead)
        for iteration in range(2):
            exchange.submit(Submission(iteration, report, is_last=True))
        exchange.settle(60.0)
        exchange.close(60.0)
    finally:
        dist.destroy_process_group()
    assert len(bill.told_s) == 2
    assert bill.told_s[-1] < burnt_s


@pytest.mark.parametrize(
    ("properties", "name"),
    [
        ({"uuid": UUID}, UUID),
        ({"uuid": f"GPU-{UUID.upper()}"}, UUID),
        ({"uuid": UUID, "pci_domain_id": 0, "pci_bus_id": 59, "pci_device_id": 0}, UUID),
        ({"pci_domain_id": 0, "pci_bus_id": 59, "pci_device_id": 10}, "00000000:3B:0A.0"),
        ({"uuid": UUID.translate({ord(digit): "0" for digit in UUID if digit != "-"}), "pci_bus_id": 1}, None),
        ({}, None),
    ],
)
def test_a_gpu_has_a_name_that_does_not_depend_on_its_number(
    properties: dict[str, Any], name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(**properties))
    assert gpu_name(CUDA) == name


def test_ranks_that_use_one_gpu_are_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        warn_of_shared_gpus([None, None, "a on node-a", "b on node-a"])
        assert not caplog.records
        warn_of_shared_gpus(["a on node-a", "b on node-a", "a on node-a", "a on node-a"])
    (record,) = caplog.records
    assert record.getMessage().startswith("ranks 0, 2, 3 all use the GPU a on node-a: call torch.cuda.set_device(")


@pytest.mark.parametrize(
    ("config", "backend"),
    [("cpu:gloo,cuda:nccl", "nccl"), ("cuda:nccl", "nccl"), ("cpu:gloo,cuda:gloo", "gloo"), ("cpu:gloo", None)],
)
def test_a_group_may_have_several_backends(config: str, backend: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_backend_config", lambda _: config)
    assert device.backend("cuda") == backend


@pytest.mark.parametrize(
    ("backend", "expected"), [("gloo", "gloo"), ("cpu:gloo,cuda:gloo", "gloo"), ("cpu:gloo", None)]
)
def test_real_groups_tell_their_backends(backend: str, expected: str | None) -> None:
    assert device.backend("cuda") is None
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        assert device.backend("cuda") == expected
        assert device.current_device().type == ("cuda" if torch.cuda.is_initialized() else "cpu")
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("error", "is_out_of_memory"),
    [
        (torch.OutOfMemoryError("tried to allocate"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("NCCL Error 1: unhandled cuda error; Last error: Cuda failure 2 'out of memory'"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
    ],
)
def test_memory_ends_with_several_errors(error: RuntimeError, is_out_of_memory: bool) -> None:
    assert oom.is_out_of_memory(error) == is_out_of_memory
